"""The names a user relies on, the speed of `import oplens`, and the README's own example."""

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import oplens

TOP_LEVEL = [
    "Bands",
    "CentredLogits",
    "Channels",
    "ExplicitOperator",
    "LayerWaves",
    "Margin",
    "OplensError",
    "Outputs",
    "Pairs",
    "Preprocessing",
    "S4D",
    "S4DClassifier",
    "S4DConfig",
    "Transformer",
    "TransformerConfig",
    "Waves",
    "Windows",
    "__version__",
    "assemble",
    "check_consistency",
    "expand",
    "load_checkpoint",
    "read_results",
    "read_ts",
    "render",
    "write_results",
]


def test_the_top_level_names_are_the_agreed_ones():
    assert sorted(oplens.__all__) == sorted(TOP_LEVEL)
    for name in TOP_LEVEL:
        assert getattr(oplens, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        oplens.no_such_name  # noqa: B018


def test_importing_the_package_and_asking_for_help_load_no_heavy_library():
    heavy = ("torch", "aeon", "skorch", "sklearn", "plotly", "xarray", "pandas")
    for statement in ("import oplens", "import oplens.cli.main"):
        code = f"import sys; {statement}; print([m for m in {heavy!r} if m in sys.modules])"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert found.strip() == "[]", statement


def test_every_room_states_what_it_exports():
    rooms = [m.name for m in pkgutil.iter_modules(oplens.__path__) if m.ispkg]
    assert {
        "data",
        "estimator",
        "explanation",
        "figures",
        "models",
        "operators",
        "report",
        "results",
        "theory",
        "measurement",
        "construction",
    } <= set(rooms)
    for room in rooms:
        module = importlib.import_module(f"oplens.{room}")
        assert module.__all__, room
        for name in module.__all__:
            assert hasattr(module, name), f"{room}.{name}"


def readme_examples() -> list[str]:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", readme, re.DOTALL)


def run_example(code: str, folder: Path) -> str:
    assert len(code.strip().splitlines()) <= 12
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_first_example_of_the_readme_runs_and_prints_what_it_says(tmp_path):
    out = run_example(readme_examples()[0], tmp_path)
    assert float(out.split()[-1]) < 1e-10
    assert (tmp_path / "report.html").stat().st_size > 100_000


@pytest.mark.slow
def test_the_second_example_of_the_readme_measures_a_real_model(tmp_path, shared_data):
    (tmp_path / "DIR").symlink_to(shared_data / "models" / "stories260K")
    (tmp_path / "TEXT.txt").write_text(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    )
    second = readme_examples()[1]
    shown = 'ds = tree["attention"]\nprint(*ds["distance"].shape, bool((ds["distance"] > 0).all()))\n'
    assert run_example(second + shown, tmp_path).split() == ["5", "8", "True"]
