"""What each verb does: read, call, write; progress goes to stderr."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from oplens.assembly import assemble, default_partitions
from oplens.cli.partitions import parse_partitions
from oplens.cli.terminal import new_folder, notes, read_series, say, tell
from oplens.data import SequenceData, Sinusoid, load_example, noisy_sinusoids
from oplens.errors import ArgumentError
from oplens.estimator import S4DClassifier
from oplens.explanation import ExplicitOperator, expand
from oplens.models import S4D, Preprocessing, load_checkpoint
from oplens.report import render, what_if_lines
from oplens.results import write_results
from oplens.views import VIEWS, check_views, default_views

DEFAULT_FAMILY, DEFAULT_ORDER = "hermite", 2


@dataclass(frozen=True)
class Foreign:
    """What a reference checkpoint does not say itself."""

    standardise_with: Path | None
    raw: bool
    classes: tuple[str, ...] | None
    channels: tuple[str, ...] | None
    prenorm: bool

    def given(self) -> list[str]:
        """Options that were used."""
        names = {
            "--standardise-with": self.standardise_with,
            "--raw": self.raw,
            "--classes": self.classes,
            "--channels": self.channels,
            "--prenorm": self.prenorm,
        }
        return [name for name, value in names.items() if value]


@dataclass(frozen=True)
class Request:
    """What `explain` is asked for a model: how its operator is had, and how .ts files are read."""

    model: Path
    train: Path | None
    order: int | None
    family: str | None
    sampling_rate: float | None
    impute: str | None
    foreign: Foreign

    def read(self, path: Path) -> SequenceData:
        """Sequences of a .ts file."""
        return read_series(path, self.sampling_rate, self.impute)


def run_train(
    data: Path,
    out: Path,
    sampling_rate: float | None,
    impute: str | None,
    family: str | None,
    order: int | None,
    channels: tuple[str, ...] | None,
    options: dict[str, Any],
) -> None:
    """Fit a classifier, write model and operator."""
    sequences = read_series(data, sampling_rate, impute)
    if sequences.y is None:
        raise ArgumentError(f"train: {data} has no labels; a classifier learns from labelled sequences.")
    folder = new_folder(out)
    if channels is not None:
        sequences = dataclasses.replace(sequences, channels=channels)
    classifier = S4DClassifier(**options, checkpoint_dir=folder / "run", verbose=1)
    _train_into(classifier, sequences, folder, family or DEFAULT_FAMILY, DEFAULT_ORDER if order is None else order)
    tell(f"wrote {folder}: model, operator; explain with: oplens explain {folder} DATA.ts --out DIR")


def run_explain(
    request: Request,
    data: Path,
    out: Path,
    by: list[str] | None,
    bands: str | None,
    windows: int | None,
    view: list[str] | None,
    what_if: bool,
) -> None:
    """Explain a .ts file with a trained directory or a foreign checkpoint."""
    chosen = parse_partitions(by, bands, windows)
    sequences = request.read(data)
    kept = next((f for f in (request.model / "operator", request.model) if (f / "operator.json").is_file()), None)
    op = _expanded(request) if kept is None else _own_operator(request, kept)
    if op.expansion is None and (request.order is not None or request.family is not None):
        tell("note: a stack of several layers has no expansion, so --order and --family change nothing here")
    folder = new_folder(out)
    partitions = default_partitions(op, chosen.bands, chosen.windows) if chosen.products is None else chosen.products
    with notes():
        tree = assemble(op, sequences, partitions=partitions, views=_views(op, view, what_if), progress=say)
    say("writing results and page")
    results = write_results(tree, folder / "results.nc")
    op.save(folder / "operator")
    page = render(tree, folder / "report.html")
    _conclude(tree)
    if what_if:
        for line in what_if_lines(tree["what_if"].to_dataset()):
            typer.echo(line)
    tell(f"wrote {results} and {page}")


def _views(op: ExplicitOperator, named: list[str] | None, what_if: bool) -> list[str]:
    """Views asked for on the command line."""
    if named is not None and "none" in named:
        if len(named) > 1:
            raise ArgumentError(
                f"--view none and --view {next(n for n in named if n != 'none')} contradict each other."
            )
        named = []
    views = default_views(op) if named is None else check_views(op, named, "explain")
    return views if not what_if or "what_if" in views else [*views, *check_views(op, ["what_if"], "explain --what-if")]


def run_report(results: Path, out: Path) -> None:
    """Render a page from a result file."""
    page = render(results, out)
    tell(f"wrote {page}")


def run_demo(out: Path) -> None:
    """Two built-in data sets, end to end."""
    folder = new_folder(out)
    waves = [
        noisy_sinusoids(n_cases=n, sampling_rate=64.0, n_timepoints=128, noise=0.7, seed=seed)
        for n, seed in ((100, 0), (100, 1))
    ]
    sets = {
        "sinusoids": (waves[0], waves[1], "15 against 20 Hz in noise"),
        "basic_motions": (load_example("BasicMotions"), load_example("BasicMotions", "test"), "BasicMotions"),
    }
    for name, (training, test, title) in sets.items():
        tell(f"{title}: {training.n_cases} training cases, {test.n_cases} test cases")
        classifier = S4DClassifier(random_state=0, verbose=1, checkpoint_dir=folder / name / "run")
        op = _train_into(classifier, training, folder / name, DEFAULT_FAMILY, DEFAULT_ORDER)
        views = [view for view, made in VIEWS.items() if made.fits(op)]
        tree = assemble(op, test, train=training, views=views, title=f"{title}: what the model computes", progress=say)
        if name == "sinusoids":
            say("predicting what the model decides on signals it has not seen")
            _add_predictions(tree, op)
        write_results(tree, folder / f"{name}.nc")
        page = "report.html" if name == "basic_motions" else f"report_{name}.html"
        render(tree, folder / page)
        _conclude(tree)
    tell(f"open {folder / 'report.html'} and {folder / 'report_sinusoids.html'}")


def _add_predictions(tree: Any, op: ExplicitOperator) -> None:
    """Two tones in more noise than trained with, and every frequency, beside simulated cases."""
    import numpy as np
    import xarray as xr

    tones = {f"{frequency:g} Hz": Sinusoid(frequency, 128, 64.0) for frequency in (15.0, 20.0)}
    tree["/prediction/discrimination"] = xr.DataTree(op.discriminate(tones, 2.0, phases=4, simulate=2000))
    tree["/prediction/sweep"] = xr.DataTree(op.sweep(np.arange(1.0, 32.0, 0.5).tolist(), 0.7, simulate=100))


def _train_into(classifier: Any, data: SequenceData, folder: Path, family: str, order: int) -> ExplicitOperator:
    """Fit, save the model, expand on the training data, save the operator."""
    from oplens.explanation.training import check_family

    check_family(family, order)
    classifier.fit(data)
    # An operator of an older model would be explained as if it were the new one's, should the next lines be interrupted.
    (folder / "operator" / "operator.json").unlink(missing_ok=True)
    classifier.model_.save_pretrained(folder)
    op = expand(classifier, data, family=family, order=order)
    op.save(folder / "operator")
    return op


def _own_operator(request: Request, kept: Path) -> ExplicitOperator:
    """The operator a training run left in the folder `kept`, expanded anew when another family, order or training set is asked for."""
    model, foreign, rate = request.model, request.foreign.given(), request.sampling_rate
    if foreign:
        raise ArgumentError(
            f"explain: {', '.join(foreign)} {'is' if len(foreign) == 1 else 'are'} for foreign checkpoints; {model} "
            "states its own preprocessing and names."
        )
    op = ExplicitOperator.load(kept)
    own = op.model.config.sampling_rate
    if rate is not None and own is not None and rate != own:
        raise ArgumentError(
            f"explain(--sampling-rate {rate:g}): the model was trained at {own:g} Hz; leave the option out."
        )
    if rate is not None:
        # A rate gives frequencies their unit and changes no number, so a model that was trained without one may be told.
        op.model.config = dataclasses.replace(op.model.config, sampling_rate=rate)
    if request.train is None and request.family in (None, op.family) and request.order in (None, op.order):
        return op
    training = op.training.sequences(op.model.config) if request.train is None else request.read(request.train)
    if training is None:
        raise ArgumentError(f"explain: the training set of {model} was too large to keep; give it with --train.")
    # What is not asked for stays as it was; a stack's operator has no order to keep.
    family = request.family or (op.family if op.order else DEFAULT_FAMILY)
    order = (op.order or DEFAULT_ORDER) if request.order is None else request.order
    return expand(op.model, training, family=family, order=order)


def _expanded(request: Request) -> ExplicitOperator:
    """A model without operator: its training data are needed to fit one."""
    model, foreign = request.model, request.foreign
    if not model.exists():
        raise ArgumentError(
            f"{model}: no such file or folder; give a folder written by `oplens train` or a checkpoint file."
        )
    if foreign.raw and foreign.standardise_with is not None:
        raise ArgumentError("explain: --raw and --standardise-with contradict each other; choose one.")
    loaded = S4D.from_pretrained(model) if model.is_dir() else None
    if loaded is not None and loaded.config.pooling == "none":
        built = f"its own page is {model / 'report.html'}; " if (model / "report.html").is_file() else ""
        raise ArgumentError(
            f"explain: {model} answers at every step, as built filters do, and a page is of one decision per case; {built}from Python, "
            "oplens.expand(model, X).explain(X, at=t) takes one answer apart and .kernels(length) gives what all share."
        )
    source = request.train or foreign.standardise_with
    if source is None:
        raise ArgumentError(
            f"explain: {model} holds no operator, so its training data are needed: add --train TRAIN.ts"
            + (
                "."
                if model.is_dir()
                else ", and --standardise-with TRAIN.ts or --raw to say what the model was trained on."
            )
        )
    training = request.read(source)
    loaded = loaded or _load_foreign(request, training)
    say("expanding the model on its training data")
    order = DEFAULT_ORDER if request.order is None else request.order
    return expand(loaded, training, family=request.family or DEFAULT_FAMILY, order=order)


def _load_foreign(request: Request, training: SequenceData) -> S4D:
    foreign = request.foreign
    preprocessing: Preprocessing | str | None = "none" if foreign.raw else None
    if foreign.standardise_with is not None:
        same = request.train is None or request.train == foreign.standardise_with
        given = training if same else request.read(foreign.standardise_with)
        preprocessing = Preprocessing.standardise(given.X, given.lengths)
    classes = foreign.classes
    if classes is None and training.classes:
        classes = training.classes
        named = ", ".join(f"logit {i} is {name}" for i, name in enumerate(classes))
        tell(f"note: class names in the order of {training.source}: {named}; state another with --classes")
    return load_checkpoint(
        request.model,
        prenorm=foreign.prenorm,
        preprocessing=preprocessing,
        classes=classes,
        channels=foreign.channels,
        sampling_rate=request.sampling_rate,
    )


def _conclude(tree: Any) -> None:
    """The two lines a reader wants at the terminal."""
    tell(str(tree.attrs["headline"]))
    summary = tree["summary"].to_dataset()
    parts = []
    if "agreement" in summary:
        for order in summary["order"].values:
            row = summary.sel(order=order)
            parts.append(
                f"order {order}: decides as the model in {float(row['agreement']):.1%}, R2 {_r2(float(row['margin_r2']))}"
            )
    parts.append(f"largest completeness residual {float(summary['completeness']):.1e} of the sum of absolute terms")
    tell("; ".join(parts))


def _r2(value: float) -> str:
    """Three digits where they say something: far below zero only the size does, and one case has none."""
    return "undefined" if math.isnan(value) else f"{value:.3f}" if value > -10 else f"{value:.1e}"
