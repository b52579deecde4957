# `make demo` and `make test` do all the set-up themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= out/demo
# `dev,models` adds the packages with real models, whose tests are skipped without them.
EXTRAS ?= dev

.PHONY: demo test check clean

demo: $(READY)
	$(BIN)/oplens demo --out $(OUT)

# One thread per worker: two workers on two cores would otherwise fight over them.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

# What .ci/run checks besides the tests.
check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --doctest-modules src/oplens

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf $(VENV) out
