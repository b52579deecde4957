"""What `oplens measure` does: a model directory and data in, every measure out; finished stages are kept when it is interrupted."""

import dataclasses
import hashlib
import itertools
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from oplens.cli.rehearsal import Stage, rehearse, run
from oplens.cli.stages import Stages, digest
from oplens.cli.terminal import check_folder, new_folder, read_series, say, tell
from oplens.construction import FunctionTable
from oplens.data import SequenceData
from oplens.data.responses import Responses, read_responses
from oplens.data.texts import read_tokenizer
from oplens.data.token_files import read_tokens
from oplens.data.tokens import Tokens, as_tokens
from oplens.errors import ArgumentError, DataError
from oplens.measurement.against import errors_against
from oplens.measurement.neural import measure_neural, stimulus_tokens
from oplens.measurement.robustness import weight_noise
from oplens.measurement.sentences import errors_headline
from oplens.measurement.survey import measure
from oplens.models.recorders import load_recorder
from oplens.models.recording import Recorder
from oplens.report import render
from oplens.results import write_results

OWN_TOKENS = ("sampled_tokens.npy", "tokens.npy")  # what a model directory may hold to be measured on
ALL_SEQUENCES = 2**14  # of a small vocabulary and a known length, run where no data are given


@dataclass(frozen=True)
class Reading:
    """How data are read, and how many of them."""

    window: int | None
    pad: int | None
    length: int | None
    cases: int | None
    sampling_rate: float | None
    impute: str | None


@dataclass(frozen=True)
class Survey:
    """How the one pass is made that most measures come from."""

    dtype: str
    batch_size: int
    maps: int
    sample: int
    seed: int


@dataclass(frozen=True)
class Against:
    """What answers are compared with: a model's directory or an array of values."""

    target: Path
    outputs: str


@dataclass(frozen=True)
class Neural:
    """Recorded responses to predict."""

    file: Path
    variable: str | None
    pool: str
    folds: int
    permutations: int


@dataclass(frozen=True)
class Noise:
    """The sweep over noise on weights."""

    draws: int
    cases: int
    relative: bool
    lipschitz: float | None


@dataclass(frozen=True)
class Asked:
    """All that `oplens measure` was asked for."""

    model: Path
    data: Path | None
    reading: Reading
    survey: Survey
    against: Against | None
    neural: Neural | None
    noise: Noise | None


def run_measure(asked: Asked, out: Path) -> None:
    """Measure, write results.nc and report.html."""
    survey = asked.survey
    recorder = load_recorder(asked.model, survey.dtype)
    responses = None if asked.neural is None else read_responses(asked.neural.file, variable=asked.neural.variable)
    table = _table(asked)
    heard, responses = _stimuli(asked, recorder, responses)
    inputs = _inputs(asked, recorder, heard, table)
    target = None if asked.against is None else _target(asked.against, survey, table)
    if asked.noise is not None and survey.dtype != "float64":
        raise ArgumentError("--robustness: derivatives are taken in float64; leave --dtype out.")
    check_folder(out)
    stages = _stages(asked, inputs, heard or inputs, target, responses)
    for stage in stages:
        rehearse(stage, recorder)
    folder = new_folder(out)
    for line in (*recorder.notes, *(() if responses is None else responses.notes)):
        tell(f"note: {line}")
    base = (digest(asked.model), json.dumps(dict(recorder.facts), sort_keys=True), _digest(inputs), repr(survey))
    kept = Stages(folder / "partial", base)
    found: dict[str, xr.Dataset] = {}
    for stage in stages:
        found = kept.groups(stage.name, stage.depends, partial(run, stage, recorder)) | found
    tree = xr.DataTree.from_dict(found)
    if responses is not None:
        tree.attrs["notes"] = json.dumps([*json.loads(tree.attrs["notes"]), *responses.notes])
    if "/errors" in found:
        told = errors_headline(found["/errors"], found["/errors"].attrs["against"])
        tree.attrs["headline"] = f"{told} {tree.attrs['headline']}"
    results = write_results(tree, folder / "results.nc")
    page = render(tree, folder / "report.html")
    kept.clear()
    tell(str(tree.attrs["headline"]))
    tell(f"wrote {results} and {page}")


def _stimuli(asked: Asked, recorder: Recorder, responses: Responses | None) -> tuple[Tokens | None, Responses | None]:
    """The texts of a recording as inputs, where it holds texts, and the recording with the numbers of those cases."""
    if responses is None or responses.text is None or recorder.kind == "series":
        return None, responses
    tokenizer = read_tokenizer(asked.model)
    if tokenizer is None:
        raise DataError(
            f"{responses.name}: holds texts, but {asked.model} has no tokenizer; leave `text` out and give token ids as DATA."
        )
    return stimulus_tokens(responses, tokenizer, max_length=recorder.max_length)


def _inputs(
    asked: Asked, recorder: Recorder, heard: Tokens | None, table: FunctionTable | None
) -> Tokens | SequenceData:
    """What the model is run on."""
    data, reading, model = asked.data, asked.reading, asked.model
    if reading.cases is not None and reading.cases < 1:
        raise ArgumentError(f"--cases {reading.cases}: give at least 1.")
    _refuse_idle(reading, recorder.kind == "series", data is not None or heard is not None)
    if recorder.kind == "series":
        if data is None:
            raise ArgumentError(f"measure: {model} takes sequences of real numbers; give a .ts file of them.")
        return _first_cases(read_series(data, reading.sampling_rate, reading.impute), reading.cases)
    if table is not None:
        return _every_sequence(recorder, model, table.length)
    if data is None and heard is not None:
        return heard
    if data is None and reading.length is None:
        data = next((model / name for name in OWN_TOKENS if (model / name).is_file()), None)
        if data is not None:
            say(f"reading {data}, since no data were given")
    if data is None:
        return _every_sequence(recorder, model, reading.length)
    limits: dict[str, Any] = {"max_length": recorder.max_length, "vocabulary": recorder.vocabulary}
    tokens = read_tokens(data, read_tokenizer(model), window=reading.window, pad=reading.pad, **limits)
    return tokens if reading.cases is None else tokens.first(reading.cases)


def _refuse_idle(reading: Reading, series: bool, given: bool) -> None:
    """An option that would change nothing is a mistake."""
    tokens = {"--window": reading.window, "--pad": reading.pad, "--length": reading.length}
    numbers = {"--sampling-rate": reading.sampling_rate, "--impute": reading.impute}
    idle = [name for name, value in (tokens if series else numbers).items() if value is not None]
    if idle:
        takes, of = ("sequences of real numbers", "tokens") if series else ("tokens", "sequences of real numbers")
        raise ArgumentError(f"measure({idle[0]}): it is about {of}, and the model takes {takes}; leave it out.")
    if given and reading.length is not None:
        raise ArgumentError(
            f"measure(--length {reading.length}): it stands for data, all sequences of so many symbols, and data were given; leave one out."
        )


def _table(asked: Asked) -> FunctionTable | None:
    """A function's table to compare with; its inputs are all there are, so they are not given."""
    path = None if asked.against is None else asked.against.target
    if path is None or path.suffix.lower() not in (".csv", ".parquet"):
        return None
    table = FunctionTable.from_file(path)
    if asked.data is not None or asked.reading.cases is not None or asked.reading.length not in (None, table.length):
        raise ArgumentError(
            f"--against {path}: a function's table is compared on all its sequences of {table.length} symbols; leave out data, --cases and "
            "--length."
        )
    return table


def _every_sequence(recorder: Recorder, model: Path, length: int | None) -> Tokens:
    """All inputs of a model of few symbols, such as a construction."""
    vocabulary, asked = recorder.vocabulary, length is not None
    length = length if asked else recorder.max_length
    many = vocabulary is not None and length is not None and vocabulary ** min(length, 64) > ALL_SEQUENCES
    if vocabulary is None or length is None or (many and not asked):
        raise ArgumentError(
            f"measure: no data were given and {model} holds none of {', '.join(OWN_TOKENS)}; give tokens (.npy, .npz, .json, .jsonl) or "
            "text (.txt), or --length N for all sequences of N symbols."
        )
    if length < 1 or many:
        raise ArgumentError(
            f"measure(--length {length}): {vocabulary:,} symbols have {vocabulary}^{length} such sequences, and 1 to {ALL_SEQUENCES:,} are "
            "run; give tokens of some."
        )
    count = f"all {vocabulary**length:,} sequences of {length} symbols"
    say(f"running {count}, since no data were given")
    rows = list(itertools.product(range(vocabulary), repeat=length))
    return as_tokens(np.array(rows), vocabulary=vocabulary, name=count, source="enumeration")


def _first_cases(series: SequenceData, count: int | None) -> SequenceData:
    return series if count is None or count >= series.n_cases else series.select(range(count))


def _target(against: Against, survey: Survey, table: FunctionTable | None) -> Any:
    """A second model, or values per case."""
    path = against.target
    if table is not None:
        return table.values
    if path.is_dir():
        return load_recorder(path, survey.dtype)
    if path.suffix != ".npy" or not path.is_file():
        raise ArgumentError(
            f"--against {path}: give the directory of a second model, a .npy file of values, one row per case, or the table of a function "
            "(.csv, .parquet)."
        )
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"--against {path}: not an array of numbers ({str(error)[:120]}).") from None


def _stages(
    asked: Asked,
    inputs: Tokens | SequenceData,
    stimuli: Tokens | SequenceData,
    target: Any,
    responses: Responses | None,
) -> list[Stage]:
    """What is asked for, the survey first."""
    survey, against, neural, noise = asked.survey, asked.against, asked.neural, asked.noise
    batches: dict[str, Any] = {"batch_size": survey.batch_size}
    sizes = batches | {"maps": survey.maps, "sample": survey.sample, "seed": survey.seed}
    stages = [Stage("survey", "running the model", (), lambda r, tick: measure(r, inputs, progress=tick, **sizes))]
    if against is not None:
        name = against.target.resolve().name

        def errors(recorder: Recorder, tick: Any) -> xr.DataTree:
            ds = errors_against(recorder, inputs, target, outputs=against.outputs, progress=tick, **batches)
            return _group("errors", ds.assign_attrs(against=name))

        depends = (digest(against.target), repr(against))
        stages.append(Stage("errors", "comparing answers", depends, errors))
    if neural is not None and responses is not None:
        options = batches | {"pool": neural.pool, "folds": neural.folds, "permutations": neural.permutations}

        def predicted(recorder: Recorder, tick: Any) -> xr.DataTree:
            ds = measure_neural(recorder, stimuli, responses, seed=survey.seed, progress=tick, **options)
            return _group("neural", ds)

        stages.append(Stage("neural", "", (digest(neural.file), repr(neural)), predicted))
    if noise is not None:

        def moved(recorder: Recorder, tick: Any) -> xr.DataTree:
            return _group("robustness", _noise(recorder, inputs, noise, batches | {"seed": survey.seed}, tick))

        stages.append(Stage("robustness", "moving the weights", (repr(noise),), moved))
    return stages


def _noise(
    recorder: Recorder, inputs: Tokens | SequenceData, noise: Noise, run: dict[str, Any], tick: Any
) -> xr.Dataset:
    """On the first cases: draws and scales multiply the passes."""
    if noise.cases < 1:
        raise ArgumentError(f"--noise-cases {noise.cases}: give at least 1.")
    if isinstance(inputs, Tokens):
        few = inputs.first(min(noise.cases, inputs.n_cases))
        x: Any = few.ids
        mask = few.mask
    else:
        first = _first_cases(inputs, noise.cases)
        x, mask = first.X.transpose(0, 2, 1), np.arange(first.X.shape[2]) < first.lengths[:, None]
    options: dict[str, Any] = {"draws": noise.draws, "relative": noise.relative, "lipschitz": noise.lipschitz}
    return weight_noise(recorder, x, mask, progress=tick, **options, **run)


def _group(name: str, ds: xr.Dataset) -> xr.DataTree:
    """One group on its own; the whole's root is that of the survey."""
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": name}), f"/{name}": ds})


def _digest(inputs: Tokens | SequenceData) -> str:
    """Of all that a result or a page takes from the inputs, labels and names among it; the tokenizer is the model's."""
    found = hashlib.sha256()
    for field in dataclasses.fields(inputs):
        value = getattr(inputs, field.name)
        if isinstance(value, np.ndarray):
            found.update(f"{field.name} {value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        elif field.name != "tokenizer":
            found.update(f"{field.name} {value!r}".encode())
    return found.hexdigest()
