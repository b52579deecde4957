"""What each verb does: read, call, write; progress goes to stderr."""

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from oplens.assembly import assemble
from oplens.cli.partitions import parse_partitions
from oplens.data import SequenceData, load_example, noisy_sinusoids, read_ts
from oplens.errors import ArgumentError
from oplens.estimator import S4DClassifier
from oplens.explanation import ExplicitOperator, expand
from oplens.models import S4D, Preprocessing, load_checkpoint
from oplens.report import render
from oplens.results import write_results

console = Console(stderr=True, highlight=False)
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
    sequences = _read(data, sampling_rate, impute)
    if sequences.y is None:
        raise ArgumentError(f"train: {data} has no labels; a classifier learns from labelled sequences.")
    folder = _folder(out)
    if channels is not None:
        sequences = dataclasses.replace(sequences, channels=channels)
    classifier = S4DClassifier(**options, checkpoint_dir=folder / "run", verbose=1)
    _train_into(classifier, sequences, folder, family or DEFAULT_FAMILY, order or _default(order))
    console.print(f"wrote {folder}: model, operator; explain with: oplens explain {folder} DATA.ts --out DIR")


def run_explain(
    model: Path,
    data: Path,
    out: Path,
    train: Path | None,
    order: int | None,
    family: str | None,
    by: list[str] | None,
    bands: str | None,
    windows: int,
    sampling_rate: float | None,
    foreign: Foreign,
    impute: str | None,
) -> None:
    """Explain a .ts file with a trained directory or a foreign checkpoint."""
    partitions = parse_partitions(by, bands, windows)
    sequences = _read(data, sampling_rate, impute)
    if (model / "operator" / "operator.json").is_file():
        op = _own_operator(model, train, order, family, sampling_rate, foreign, impute)
    else:
        op = _expanded(model, train, order, family, sampling_rate, foreign, impute)
    _check_labels(op.model, sequences, data)
    folder = _folder(out)
    tree = assemble(op, sequences, partitions=partitions, progress=_say)
    _say("writing results and page")
    results = write_results(tree, folder / "results.nc")
    op.save(folder / "operator")
    page = render(tree, folder / "report.html")
    _conclude(tree)
    console.print(f"wrote {results} and {page}")


def run_report(results: Path, out: Path) -> None:
    """Render a page from a result file."""
    page = render(results, out)
    console.print(f"wrote {page}")


def run_demo(out: Path) -> None:
    """Two built-in data sets, end to end."""
    folder = _folder(out)
    waves = [
        noisy_sinusoids(n_cases=n, sampling_rate=128.0, n_timepoints=256, noise=1.0, seed=seed)
        for n, seed in ((120, 0), (120, 1))
    ]
    sets = {
        "sinusoids": (waves[0], waves[1], "15 against 20 Hz in noise"),
        "basic_motions": (load_example("BasicMotions"), load_example("BasicMotions", "test"), "BasicMotions"),
    }
    for name, (training, test, title) in sets.items():
        console.print(f"[bold]{title}[/bold]: {training.n_cases} training cases, {test.n_cases} test cases")
        classifier = S4DClassifier(random_state=0, verbose=1, checkpoint_dir=folder / name / "run")
        op = _train_into(classifier, training, folder / name, DEFAULT_FAMILY, DEFAULT_ORDER)
        tree = assemble(op, test, train=training, title=f"{title}: what the model computes", progress=_say)
        write_results(tree, folder / f"{name}.nc")
        page = "report.html" if name == "basic_motions" else f"report_{name}.html"
        render(tree, folder / page)
        _conclude(tree)
    console.print(f"open {folder / 'report.html'} and {folder / 'report_sinusoids.html'}")


def _train_into(classifier: Any, data: SequenceData, folder: Path, family: str, order: int) -> ExplicitOperator:
    """Fit, save the model, expand on the training data, save the operator."""
    from oplens.operators.polynomial import check_order

    check_order(order)
    classifier.fit(data)
    classifier.model_.save_pretrained(folder)
    op = expand(classifier, data, family=family, order=order)
    op.save(folder / "operator")
    return op


def _own_operator(
    model: Path,
    train: Path | None,
    order: int | None,
    family: str | None,
    sampling_rate: float | None,
    foreign: Foreign,
    impute: str | None,
) -> ExplicitOperator:
    """The operator a training run left, expanded anew when another family, order or training set is asked for."""
    if foreign.given():
        raise ArgumentError(
            f"explain: {', '.join(foreign.given())} {'is' if len(foreign.given()) == 1 else 'are'} for foreign checkpoints; {model} "
            "states its own preprocessing and names."
        )
    op = ExplicitOperator.load(model / "operator")
    own = op.model.config.sampling_rate
    if sampling_rate is not None and own is not None and sampling_rate != own:
        raise ArgumentError(
            f"explain(--sampling-rate {sampling_rate:g}): the model was trained at {own:g} Hz; leave the option out."
        )
    same = family in (None, op.family) and order in (None, op.order)
    if train is None and same:
        return op
    if train is not None:
        known = _read(train, sampling_rate, impute)
        return expand(S4D.from_pretrained(model), known, family=family or DEFAULT_FAMILY, order=_default(order))
    from oplens.assembly import kept_training

    kept = kept_training(op)
    if kept is None:
        raise ArgumentError(f"explain: the training set of {model} was too large to keep; give it with --train.")
    wanted = op.order if order is None else order
    return expand(op.model, kept, family=family or op.family, order=wanted)


def _expanded(
    model: Path,
    train: Path | None,
    order: int | None,
    family: str | None,
    sampling_rate: float | None,
    foreign: Foreign,
    impute: str | None,
) -> ExplicitOperator:
    """A model without operator: its training data are needed to fit one."""
    if not model.exists():
        raise ArgumentError(
            f"{model}: no such file or folder; give a folder written by `oplens train` or a checkpoint file."
        )
    if foreign.raw and foreign.standardise_with is not None:
        raise ArgumentError("explain: --raw and --standardise-with contradict each other; choose one.")
    source = train or foreign.standardise_with
    if source is None:
        raise ArgumentError(
            f"explain: {model} holds no operator, so its training data are needed: add --train TRAIN.ts"
            + (
                "."
                if model.is_dir()
                else ", and --standardise-with TRAIN.ts or --raw to say what the model was trained on."
            )
        )
    training = _read(source, sampling_rate, impute)
    own = model.is_dir()
    loaded = S4D.from_pretrained(model) if own else _load_foreign(model, training, sampling_rate, foreign, impute)
    _say("expanding the model on its training data")
    return expand(loaded, training, family=family or DEFAULT_FAMILY, order=_default(order))


def _load_foreign(
    path: Path, training: SequenceData, sampling_rate: float | None, foreign: Foreign, impute: str | None
) -> S4D:
    preprocessing: Preprocessing | str | None = "none" if foreign.raw else None
    if foreign.standardise_with is not None:
        given = _read(foreign.standardise_with, sampling_rate, impute)
        preprocessing = Preprocessing.standardise(given.X, given.lengths)
    classes = foreign.classes
    if classes is None and training.classes:
        classes = training.classes
        named = ", ".join(f"logit {i} is {name}" for i, name in enumerate(classes))
        console.print(
            f"note: class names in the order of {training.source}: {named}; state another with --classes", markup=False
        )
    return load_checkpoint(
        path,
        prenorm=foreign.prenorm,
        preprocessing=preprocessing,
        classes=classes,
        channels=foreign.channels,
        sampling_rate=sampling_rate,
    )


def _check_labels(model: S4D, sequences: SequenceData, path: Path) -> None:
    """A label the model has no logit for would silently count as an error."""
    if sequences.y is None:
        return
    known = model.config.classes
    unknown = sorted(set(sequences.y.tolist()) - set(known))
    if unknown:
        raise ArgumentError(
            f"explain: {path} holds the labels {', '.join(unknown)}, the model knows {', '.join(known)}; "
            "check the data, or name the logits with --classes."
        )


def _read(path: Path, sampling_rate: float | None, impute: str | None) -> SequenceData:
    """Read a .ts file; its warnings become lines on stderr."""
    if impute not in (None, "linear", "mean"):
        raise ArgumentError(f"--impute {impute}: choose linear or mean.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = read_ts(path, impute=impute, sampling_rate=sampling_rate)  # type: ignore[arg-type]
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            console.print(f"note: {warning.message}", markup=False)
    return data


def _folder(out: Path) -> Path:
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"--out {out}: this is a file; give a folder.")
    out.mkdir(parents=True, exist_ok=True)
    return out


def _default(order: int | None) -> int:
    return DEFAULT_ORDER if order is None else order


def _say(line: str) -> None:
    console.print(f"  {line} ...", markup=False)


def _conclude(tree: Any) -> None:
    """The two lines a reader wants at the terminal."""
    console.print(str(tree.attrs["headline"]), markup=False)
    summary = tree["summary"].to_dataset()
    parts = []
    if "agreement" in summary:
        for order in summary["order"].values:
            row = summary.sel(order=order)
            parts.append(
                f"order {order}: decides as the model in {float(row['agreement']):.1%}, R2 {float(row['margin_r2']):.3f}"
            )
    parts.append(f"largest completeness residual {float(summary['completeness']):.1e} of the sum of absolute terms")
    console.print("; ".join(parts), markup=False)
