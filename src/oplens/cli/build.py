"""`oplens build`: a function in, weights with a certificate out; the work is imported only when a verb runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from oplens.cli.interrupts import call

NOTHING = "nothing was written"

app = typer.Typer(
    no_args_is_help=True,
    help="Write the weights of a transformer that computes a given function, with a certificate.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Out = Annotated[Path, typer.Option("--out", help="Folder for model, certificate.json and verification.json.")]
Function = Annotated[
    str | None,
    typer.Option("--function", help="parity, majority, k-hop, palindrome, modular-sum, min, max, threshold or random."),
]
Table = Annotated[
    Path | None, typer.Option("--table", help="A CSV or Parquet file instead: positions, then the value.")
]
Length = Annotated[int | None, typer.Option("--length", help="Symbols of an input (with --function).")]
Vocabulary = Annotated[int, typer.Option("--vocabulary", help="Number of symbols (with --function).")]
Dtypes = Annotated[
    list[str] | None,
    typer.Option("--dtype", help="float64, float32, float16, bfloat16; repeatable; default: all four."),
]
Budget = Annotated[float, typer.Option("--verify-budget", help="Inputs times hidden units that are run at most.")]
Shuffles = Annotated[int, typer.Option("--shuffles", help="Passes in shuffled orders of summation.")]
Seed = Annotated[int, typer.Option("--seed", help="Of random functions, samples and orders.")]


_TABLES = {
    "lookup": "Construction A: log depth, one-hot codes of strings.",
    "bits": "Construction B: log depth, bits of symbols.",
    "depth2": "Construction C: two layers, uniform attention; built once per dtype, a folder each.",
}


def _table_command(kind: str, words: str) -> None:
    """Add one construction of a table; they take the same options."""

    @app.command(kind, help=words)
    def build(
        out: Out,
        function: Function = None,
        table: Table = None,
        length: Length = None,
        vocabulary: Vocabulary = 2,
        dtype: Dtypes = None,
        verify_budget: Budget = 1e10,
        shuffles: Shuffles = 1,
        seed: Seed = 0,
    ) -> None:
        from oplens.cli.constructions import build_table

        arguments = (kind, out, function, table, length, vocabulary, dtype, verify_budget, shuffles, seed)
        call(build_table, *arguments, left=NOTHING)


for _kind, _words in _TABLES.items():
    _table_command(_kind, _words)


Formula = Annotated[str, typer.Option("--function", help='Of x1, x2, ..., such as "abs(x1 - x2)".')]
Lipschitz = Annotated[str, typer.Option("--lipschitz", help="Norm and constant, such as max:1, l1:2 or l2:1.5.")]
Interval = Annotated[str, typer.Option("--bounds", help="Interval of every x, such as 0:1.")]


@app.command("piecewise-linear")
def piecewise_linear(
    out: Out,
    function: Formula,
    knots: Annotated[int, typer.Option("--knots", help="Intervals per axis, M.")],
    lipschitz: Lipschitz,
    bounds: Interval = "0:1",
    seed: Seed = 0,
) -> None:
    """Construction F: interpolation on a triangulation, with a bound on the sup error."""
    _real("piecewise-linear", out, function, knots, lipschitz, bounds, seed)


@app.command()
def fourier(
    out: Out,
    function: Formula,
    degree: Annotated[int, typer.Option("--degree", help="Degree of the trigonometric mean, D.")],
    lipschitz: Lipschitz,
    bounds: Interval = "0:1",
    seed: Seed = 0,
) -> None:
    """Construction E: a Fejér-Korovkin mean by ridge functions, with a bound on the sup error."""
    _real("fourier", out, function, degree, lipschitz, bounds, seed)


def _real(*arguments: Any) -> None:
    from oplens.cli.constructions import build_real

    call(build_real, *arguments, left=NOTHING)
