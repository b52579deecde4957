"""Verbs and their options; the work is done in :mod:`oplens.cli.verbs`, imported only when a verb runs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from oplens.cli.build import app as build_app
from oplens.cli.interrupts import call
from oplens.errors import ArgumentError, OplensError

app = typer.Typer(
    name="oplens",
    help="Say what a sequence model computes: explain a state-space model, build one for a function, measure one, bound what any can do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(build_app, name="build")

Out = Annotated[Path, typer.Option("--out", help="Folder for what is written; made if missing.")]
Rate = Annotated[float | None, typer.Option("--sampling-rate", help="Steps per second, Hz.")]
Impute = Annotated[str | None, typer.Option("--impute", help="Fill missing values: linear or mean.")]
Order = Annotated[int | None, typer.Option("--order", help="Degree of the expansion (default 2).")]
Family = Annotated[str | None, typer.Option("--family", help="hermite (default), taylor, chebyshev or empirical.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of weights, batches and splits.")]


def _version(wanted: bool) -> None:
    if wanted:
        from oplens import __version__

        typer.echo(f"oplens {__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a refused request.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Rewrite a trained state-space model as an explicit operator: every decision a sum of terms."""
    del debug, version  # main() reads --debug before anything is parsed; --version stops in its callback


@app.command()
def demo(out: Out) -> None:
    """Train on two built-in data sets, explain both, write the pages; no network, under two minutes on two cores."""
    from oplens.cli.verbs import run_demo

    _call(run_demo, out)


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="Labelled training sequences, a .ts file.")],
    out: Out,
    sampling_rate: Rate = None,
    impute: Impute = None,
    family: Family = None,
    order: Order = None,
    architecture: Annotated[str, typer.Option(help="plain (explained exactly) or reference.")] = "plain",
    n_layers: Annotated[int, typer.Option(help="Layers of the reference architecture.")] = 1,
    d_model: Annotated[int | None, typer.Option(help="Hidden features.")] = None,
    d_state: Annotated[int | None, typer.Option(help="State size, counting conjugate pairs.")] = None,
    initialisation: Annotated[str, typer.Option(help="Poles before training: lin, inv or real.")] = "lin",
    coupling: Annotated[
        int | None, typer.Option(help="Train features as rings whose sites hear each other up to so many sites away.")
    ] = None,
    phase_delay: Annotated[
        float | None, typer.Option(help="Delay in radians that the sites of every ring start with; learned afterwards.")
    ] = None,
    max_epochs: Annotated[int | None, typer.Option(help="Epochs at most.")] = None,
    remove_offset: Annotated[bool, typer.Option("--remove-offset", help="Subtract each case's channel means.")] = False,
    channels: Annotated[str | None, typer.Option(help="Channel names, separated by commas.")] = None,
    seed: Seed = 0,
) -> None:
    """Train an S4D classifier and write its model and operator; a killed run continues when called again."""
    from oplens.cli.verbs import run_train

    options = {
        "architecture": architecture,
        "n_layers": n_layers,
        "d_model": d_model,
        "d_state": d_state,
        "initialisation": initialisation,
        "coupling": coupling,
        "phase_delay": phase_delay,
        "max_epochs": max_epochs,
        "remove_offset": remove_offset,
        "random_state": seed,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    _call(run_train, data, out, sampling_rate, impute, family, order, _names(channels), chosen)


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(help="A folder written by `oplens train`, or a reference checkpoint.")],
    data: Annotated[Path, typer.Argument(help="Sequences to explain, a .ts file.")],
    out: Out,
    train: Annotated[Path | None, typer.Option(help="Training sequences, a .ts file.")] = None,
    order: Order = None,
    family: Family = None,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Parts: waves, layerwaves, channels, bands, windows; products with commas; repeatable."),
    ] = None,
    bands: Annotated[str | None, typer.Option(help="Band edges such as 0-4,4-8,8-13.")] = None,
    windows: Annotated[int | None, typer.Option(help="Number of time windows (default 8).")] = None,
    view: Annotated[
        list[str] | None,
        typer.Option(
            help="Besides parts: ring, certificates, kernels, reduction, ray, what_if, ablation, or none; repeatable. "
            "Default: what the model can have, without the last two."
        ),
    ] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Print the smallest change of the input that flips each decision.")
    ] = False,
    sampling_rate: Rate = None,
    standardise_with: Annotated[
        Path | None, typer.Option(help="Foreign checkpoint: .ts file whose mean and scale it was trained with.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Foreign checkpoint: it was trained on raw values.")] = False,
    classes: Annotated[str | None, typer.Option(help="Foreign checkpoint: names of logits 0, 1, ...")] = None,
    channels: Annotated[str | None, typer.Option(help="Foreign checkpoint: channel names.")] = None,
    prenorm: Annotated[bool, typer.Option("--prenorm", help="Foreign checkpoint: LayerNorm before blocks.")] = False,
    impute: Impute = None,
) -> None:
    """Rewrite a model as an explicit operator and explain every decision; writes results.nc and report.html."""
    from oplens.cli.verbs import Foreign, Request, run_explain

    foreign = Foreign(standardise_with, raw, _names(classes), _names(channels), prenorm)
    request = Request(model, train, order, family, sampling_rate, impute, foreign)
    _call(run_explain, request, data, out, by, bands, windows, view, what_if)


_AGAINST, _NEURONS, _NOISE = "Errors", "Recorded neurons", "Noise on the weights"


@app.command(
    epilog="Examples: oplens measure DIR TEXT.txt --out m;  oplens measure DIR TOKENS.npy --robustness --against OTHER_DIR --out m;  "
    "oplens measure BUILT --length 6 --against TABLE.csv --out m"
)
def measure(
    context: typer.Context,
    model: Annotated[
        Path, typer.Argument(help="A Hugging Face model's directory, or one written by `oplens train` or `build`.")
    ],
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Tokens (.npy, .npz, .json, .jsonl), text (.txt) or sequences (.ts). Default: the directory's sampled_tokens.npy, or "
            "every sequence of a small vocabulary."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for results.nc and report.html.")] = Path("measured"),
    cases: Annotated[int | None, typer.Option("--cases", help="Measure the first cases only.")] = None,
    window: Annotated[int | None, typer.Option("--window", help="Cut tokens into windows of this length.")] = None,
    pad: Annotated[int | None, typer.Option("--pad", help="Token that pads rows; -1: nothing is padding.")] = None,
    length: Annotated[
        int | None, typer.Option("--length", help="Without data: all sequences of so many symbols.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float64, float32, float16 or bfloat16.")] = "float64",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Cases in memory together; changes no number.")] = 4,
    maps: Annotated[int, typer.Option("--maps", help="Heads whose attention is drawn.")] = 12,
    sample: Annotated[int, typer.Option("--sample", help="Points for dimensions from neighbours.")] = 2000,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            help="Errors from a second model's directory, a .npy of values, or a function's table (.csv, .parquet).",
            rich_help_panel=_AGAINST,
        ),
    ] = None,
    compare: Annotated[
        str,
        typer.Option("--compare", help="What --against compares: output or probabilities.", rich_help_panel=_AGAINST),
    ] = "output",
    neural: Annotated[
        Path | None,
        typer.Option(
            "--neural", help="NetCDF of responses (stimulus, neuron[, repeat]) to predict.", rich_help_panel=_NEURONS
        ),
    ] = None,
    neural_variable: Annotated[
        str | None, typer.Option(help="Its variable, where there are several.", rich_help_panel=_NEURONS)
    ] = None,
    pool: Annotated[
        str, typer.Option("--pool", help="What stands for a stimulus: mean, last or first.", rich_help_panel=_NEURONS)
    ] = "mean",
    folds: Annotated[
        int,
        typer.Option("--folds", help="Parts of the stimuli, each predicted from the others.", rich_help_panel=_NEURONS),
    ] = 5,
    permutations: Annotated[
        int, typer.Option("--permutations", help="Of responses, for p values.", rich_help_panel=_NEURONS)
    ] = 200,
    robustness: Annotated[
        bool, typer.Option("--robustness", help="Also move the weights by noise.", rich_help_panel=_NOISE)
    ] = False,
    draws: Annotated[int, typer.Option("--draws", help="Draws of the noise.", rich_help_panel=_NOISE)] = 32,
    noise_cases: Annotated[
        int, typer.Option("--noise-cases", help="Cases the noisy model is run on.", rich_help_panel=_NOISE)
    ] = 8,
    relative: Annotated[
        bool,
        typer.Option("--relative", help="Noise relative to each tensor's root mean square.", rich_help_panel=_NOISE),
    ] = False,
    lipschitz: Annotated[
        float | None, typer.Option("--lipschitz", help="L of the paper's formula.", rich_help_panel=_NOISE)
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of samples, folds and noise.")] = 0,
    sampling_rate: Rate = None,
    impute: Impute = None,
) -> None:
    """Measure a model: attention, ranks and dimensions per layer and head, perplexity, errors, robustness."""
    from oplens.cli.measure import Against, Asked, Neural, Noise, Reading, Survey, run_measure

    _refuse_idle(context, "against", ("compare",))
    _refuse_idle(context, "neural", ("neural_variable", "pool", "folds", "permutations"))
    _refuse_idle(context, "robustness", ("draws", "noise_cases", "relative", "lipschitz"))
    asked = Asked(
        model,
        data,
        Reading(window, pad, length, cases, sampling_rate, impute),
        Survey(dtype, batch_size, maps, sample, seed),
        None if against is None else Against(against, compare),
        None if neural is None else Neural(neural, neural_variable, pool, folds, permutations),
        Noise(draws, noise_cases, relative, lipschitz) if robustness else None,
    )
    call(run_measure, asked, out, left="finished stages are kept, the same command continues")


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="A results.nc file.")],
    out: Annotated[Path, typer.Option("--out", help="HTML file to write.")],
) -> None:
    """Render a result file as one self-contained page."""
    from oplens.cli.verbs import run_report

    _call(run_report, results, out)


@app.command()
def bound(
    name: Annotated[str | None, typer.Argument(help="A bound; without it they are listed.")] = None,
    values: Annotated[list[str] | None, typer.Argument(help="Its arguments, such as length=10 epsilon=0.1.")] = None,
) -> None:
    """Print a bound on what transformers can represent, with its hypotheses and what the first paper states."""
    from oplens.cli.bounds import print_bound

    _call(print_bound, name, values or [])


def main() -> None:
    """Entry point: a refused request is one sentence on stderr and exit code 1."""
    debug = "--debug" in sys.argv[1:]
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        app(args=arguments, prog_name="oplens")
    except (OplensError, OSError, MemoryError) as error:
        _refuse(error, debug)


def _call(verb: Callable[..., None], *arguments: Any) -> None:
    """Run a verb whose work an interrupt keeps."""
    call(verb, *arguments, left="what was finished is kept, the same command continues")


def _refuse_idle(context: typer.Context, option: str, others: tuple[str, ...]) -> None:
    """An option that would change nothing, since the one it belongs to is missing, is a mistake."""
    for name in others:
        source = context.get_parameter_source(name)
        if not context.params[option] and source is not None and source.name == "COMMANDLINE":
            raise ArgumentError(
                f"{context.info_name}: --{name.replace('_', '-')} belongs to --{option}, which was not given; give both, or leave it out."
            )


def _refuse(error: BaseException, debug: bool) -> None:
    if debug:
        raise error
    if isinstance(error, MemoryError):
        text = "not enough memory; give fewer cases, coarser parts or a smaller model."
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror or error}."
    else:
        text = str(error)
    typer.echo(f"oplens: {' '.join(text.split())}", err=True)
    sys.exit(1)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))
