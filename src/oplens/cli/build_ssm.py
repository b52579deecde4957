"""`oplens build ssm`: a filter, a template or a second-order kernel in, the weights of an S4D out."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from oplens.cli.interrupts import call
from oplens.errors import ArgumentError, OplensError

NOTHING = "nothing was written"
LONGEST_RUN = 1024  # steps

Out = Annotated[
    Path,
    typer.Option(
        "--out",
        help="Folder for the model, certificate.json, verification.json, results.nc and report.html; made if missing.",
    ),
]
Butterworth = Annotated[int | None, typer.Option("--butterworth", help="Order of a Butterworth filter.")]
Cutoff = Annotated[str | None, typer.Option("--cutoff", help="Hz: one frequency, or two for a band, such as 8:13.")]
Band = Annotated[str, typer.Option("--band", help="low, high, bandpass or bandstop.")]
Rate = Annotated[float | None, typer.Option("--sampling-rate", help="Hz.")]
Sos = Annotated[Path | None, typer.Option("--sos", help="Second-order sections (n, 6), .npy or text.")]
Ba = Annotated[Path | None, typer.Option("--ba", help="Two rows: b, then a; .npy or text.")]
Template = Annotated[
    Path | None,
    typer.Option("--template", help="A template in time, .npy or text: its matched filter is approximated."),
]
Second = Annotated[
    Path | None,
    typer.Option("--second-order", help="A symmetric matrix over lags, .npy or text: approximated as well."),
]
Rank = Annotated[int | None, typer.Option("--rank", help="Squares of filters for the second order; all when omitted.")]
Constant = Annotated[float, typer.Option("--constant", help="Added to the output.")]
Modes = Annotated[int | None, typer.Option("--modes", help="Decaying waves per filter.")]
Tolerance = Annotated[float | None, typer.Option("--tolerance", help="Largest L1 error of an approximated kernel.")]
Bound = Annotated[float, typer.Option("--input-bound", help="Largest size of the input that is certified.")]
Dtype = Annotated[str, typer.Option("--dtype", help="Of the stored weights: float64 or float32.")]
Length = Annotated[int, typer.Option("--length", help="Longest input whose rounding is certified.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the noise that is run.")]


def add(app: typer.Typer) -> None:
    """Add the command to the group of constructions."""

    @app.command(
        "ssm",
        epilog="Examples: oplens build ssm --butterworth 4 --cutoff 40 --sampling-rate 256 --out w;  "
        "oplens build ssm --template t.npy --modes 16 --out w",
    )
    def ssm(
        out: Out,
        butterworth: Butterworth = None,
        cutoff: Cutoff = None,
        band: Band = "low",
        sampling_rate: Rate = None,
        sos: Sos = None,
        ba: Ba = None,
        template: Template = None,
        second_order: Second = None,
        rank: Rank = None,
        constant: Constant = 0.0,
        modes: Modes = None,
        tolerance: Tolerance = None,
        input_bound: Bound = 1.0,
        dtype: Dtype = "float64",
        length: Length = 4096,
        seed: Seed = 0,
    ) -> None:
        """Construction S: an S4D that is a given filter, exactly or within a certified error."""
        first = {"--butterworth": butterworth, "--sos": sos, "--ba": ba, "--template": template}
        asked = _Asked(first, cutoff, band, sampling_rate, second_order, rank, constant)
        sizes = {"n_modes": modes, "tolerance": tolerance, "dtype": dtype}
        call(_build, out, asked, sizes, {"input_bound": input_bound, "length": length}, seed, left=NOTHING)


@dataclass(frozen=True)
class _Asked:
    """The kernels that the options name; `first` (option, value) of which one is given, or none beside a second order."""

    first: dict[str, Any]
    cutoff: str | None
    band: str
    sampling_rate: float | None
    second_order: Path | None
    rank: int | None
    constant: float

    def check_sizes(self, sizes: dict[str, Any]) -> None:
        """What ends is approximated: say with how many waves, or how well."""
        finite = self.first["--template"] is not None or self.second_order is not None
        if finite and sizes["n_modes"] is None and sizes["tolerance"] is None:
            raise ArgumentError(
                "build ssm: a template and a second-order kernel end, and decaying waves do so only approximately; add --modes N, the "
                "waves of each filter, or --tolerance X, the largest L1 error of a kernel."
            )

    def kernels(self) -> dict[str, Any]:
        """Of first order, of second order, and the constant, as `build_ssm` takes them."""
        from oplens.construction.filter_files import read_matrix
        from oplens.construction.second_order_kernel import SecondOrderKernel

        path = self.second_order
        if self.rank is not None and path is None:
            raise ArgumentError(
                f"--rank {self.rank}: it is the rank of a second-order kernel; give that with --second-order."
            )
        kernel1 = _first(self.first, (self.cutoff, self.band, self.sampling_rate), optional=path is not None)
        kernel2 = None
        if path is not None:
            with _placed(f"--second-order {path}"):
                kernel2 = SecondOrderKernel.from_matrix(read_matrix(path), self.rank)
        return {"kernel1": kernel1, "kernel2": kernel2, "constant": self.constant}

    @property
    def name(self) -> str:
        """In words."""
        return _name(self.first, self.second_order)


def _build(out: Path, asked: _Asked, sizes: dict[str, Any], run: dict[str, Any], seed: int) -> None:
    """Read, build, run, and only then write; `run` is what the certificate is for."""
    from oplens.cli.built_files import conclude, staged, write_model, write_page
    from oplens.cli.terminal import check_folder, progress
    from oplens.construction.ssm import build_ssm
    from oplens.construction.ssm_drawing import draw_ssm
    from oplens.construction.ssm_verification import verify_ssm

    check_folder(out)
    kernels = asked.kernels()
    asked.check_sizes(sizes)
    model, certificate = build_ssm(**kernels, sampling_rate=asked.sampling_rate, **sizes, **run)
    dtypes = ["float64", "float32"] if sizes["dtype"] == "float64" else ["float32"]
    run = {**run, "length": min(run["length"], LONGEST_RUN)}
    with progress("signals run") as tick:
        found = verify_ssm(model, **kernels, dtypes=dtypes, seed=seed, progress=tick, **run)
    typer.echo(f"{certificate}\n{found}")
    if not found.passed:
        raise ArgumentError("build ssm: an error found is above the certificate, so nothing was written.")
    tree = draw_ssm(model, **kernels, certificate=certificate, found=found, name=asked.name)
    with staged(out) as stage:
        write_model(stage, model, certificate, found.to_dict())
        write_page(stage, tree)
    conclude(out, tree)


@contextlib.contextmanager
def _placed(where: str) -> Iterator[None]:
    """What a file's numbers are refused for, with the option that named the file; those that name it already stay."""
    try:
        yield
    except OplensError as error:
        text = str(error)
        raise type(error)(text if where.split(" ", 1)[1] in text else f"{where}: {text}") from error


def _name(first: dict[str, Any], second: Path | None) -> str:
    """What was built, in words."""
    words = {
        "--butterworth": "Butterworth filter of order {}",
        "--sos": "filter of {}",
        "--ba": "filter of {}",
        "--template": "matched filter of {}",
    }
    given = [
        words[name].format(value.name if isinstance(value, Path) else value)
        for name, value in first.items()
        if value is not None
    ]
    return " and ".join([*given, *([f"second-order kernel of {second.name}"] if second else [])])


def _first(first: dict[str, Any], design: tuple[str | None, str, float | None], optional: bool) -> Any:
    """The first-order kernel that one of the options names."""
    from oplens.construction.filter_files import read_matrix, read_rows, read_series
    from oplens.construction.filters import ExponentialSum, FiniteKernel

    given = {name: value for name, value in first.items() if value is not None}
    if len(given) > 1 or (not given and not optional):
        raise ArgumentError(
            f"build ssm: {' and '.join(given) or 'no filter'} given; give one of {', '.join(first)}, or --second-order."
        )
    cutoff, band, rate = design
    if "--butterworth" not in given and (cutoff is not None or band != "low"):
        raise ArgumentError("build ssm: --cutoff and --band belong to --butterworth, which was not given.")
    if "--butterworth" in given:
        if cutoff is None:
            raise ArgumentError("build ssm(--butterworth): --cutoff is missing, a frequency in Hz or two for a band.")
        return ExponentialSum.butterworth(given["--butterworth"], _frequencies(cutoff), rate, band)
    if not given:
        return None
    ((option, path),) = given.items()
    with _placed(f"{option} {path}"):
        if option == "--sos":
            return ExponentialSum.from_sos(read_matrix(path))
        if option == "--template":
            return FiniteKernel.matched(read_series(path))
        rows = read_rows(path)
        if len(rows) != 2:
            raise ArgumentError(f"expected two rows, b and a, got {len(rows)}.")
        return ExponentialSum.from_ba(*rows)


def _frequencies(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(":")]
    except ValueError:
        raise ArgumentError(f"--cutoff {text}: give a frequency in Hz, or two such as 8:13.") from None
