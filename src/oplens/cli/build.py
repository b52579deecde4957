"""`oplens build`: a function in, weights with a certificate out; the work is imported only when a verb runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from oplens.cli.build_ssm import add
from oplens.cli.interrupts import call

LEFT = "no model was written; a verification of over a minute is kept in --out, the same command continues it"

app = typer.Typer(
    no_args_is_help=True,
    help="Write the weights of a model that computes a given function, with a certificate and a page that shows both.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_FUNCTION, _WEIGHTS, _CHECK = "The function", "The weights", "Verification and page"

Out = Annotated[
    Path,
    typer.Option(
        "--out",
        help="Folder for the model, certificate.json, verification.json, results.nc and report.html; made if missing.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of random functions, samples, orders and examples.")]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="FILE.py:NAME",
        help="A function in a Python file of yours, which is run.",
        rich_help_panel=_FUNCTION,
    ),
]
Frequencies = Annotated[
    int, typer.Option("--n-frequencies", help="Sinusoids of the positional code.", rich_help_panel=_WEIGHTS)
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory-limit",
        help="Bytes that table, or weights, may take; refused before work starts beyond. K, M, G are understood.",
        rich_help_panel=_WEIGHTS,
    ),
]
Examples = Annotated[
    list[str] | None,
    typer.Option(
        "--example",
        help="An input to draw layer by layer, such as 0,1,1,0; repeatable; chosen when omitted.",
        rich_help_panel=_CHECK,
    ),
]

Function = Annotated[
    str | None,
    typer.Option(
        "--function",
        metavar="NAME",
        help="parity, majority, k-hop, palindrome, modular-sum, min, max, threshold or random.",
        rich_help_panel=_FUNCTION,
    ),
]
Table = Annotated[
    Path | None,
    typer.Option(
        "--table",
        metavar="FILE",
        help="A CSV or Parquet table: a column per position, then the value.",
        rich_help_panel=_FUNCTION,
    ),
]
Length = Annotated[
    int | None,
    typer.Option("--length", help="Symbols of an input (with --function or --python).", rich_help_panel=_FUNCTION),
]
Vocabulary = Annotated[
    str | None,
    typer.Option(
        "--vocabulary",
        metavar="NUMBER|NAMES",
        help="Number of symbols (default 2); for a table also their names with commas, those that occur when omitted.",
        rich_help_panel=_FUNCTION,
    ),
]
Hops = Annotated[int | None, typer.Option("--hops", help="Of k-hop (default 1).", rich_help_panel=_FUNCTION)]
Modulus = Annotated[
    int | None,
    typer.Option("--modulus", help="Of modular-sum (default: the vocabulary's size).", rich_help_panel=_FUNCTION),
]
Threshold = Annotated[
    int | None,
    typer.Option("--threshold", help="Of threshold (default: half of the largest sum).", rich_help_panel=_FUNCTION),
]
Labels = Annotated[
    int | None,
    typer.Option(
        "--labels",
        help="Labels of random (default: the vocabulary's size); of a table or Python function: values must be whole numbers below it.",
        rich_help_panel=_FUNCTION,
    ),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        metavar="COLUMN",
        help="Column of a table that holds values; repeatable; the last when omitted.",
        rich_help_panel=_FUNCTION,
    ),
]
OneHot = Annotated[
    bool,
    typer.Option(
        "--one-hot",
        help="One output per label, 1 at the value and 0 elsewhere: a classifier.",
        rich_help_panel=_FUNCTION,
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--weights", help="dense or sparse; when omitted, dense up to 262,144 places.", rich_help_panel=_WEIGHTS
    ),
]
Base = Annotated[
    float | None,
    typer.Option(
        "--frequency-base",
        help="Base of the sinusoids; chosen when omitted, 10000 where it serves.",
        rich_help_panel=_WEIGHTS,
    ),
]
Causal = Annotated[
    bool, typer.Option("--causal", help="A decoder: attention sees the past only.", rich_help_panel=_WEIGHTS)
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        help="Verified in: float64, float32, float16, bfloat16; repeatable; all when omitted. Weights are stored in the widest.",
        rich_help_panel=_CHECK,
    ),
]
Budget = Annotated[
    float,
    typer.Option(
        "--verify-budget",
        help="Every input is run while inputs times hidden units stay within this; beyond, a stratified sample of that size.",
        rich_help_panel=_CHECK,
    ),
]
Shuffles = Annotated[
    int, typer.Option("--shuffles", help="Further passes, in shuffled orders of summation.", rich_help_panel=_CHECK)
]


_TABLES = {
    "lookup": "Construction A: log depth, one-hot codes of strings.",
    "bits": "Construction B: log depth, bits of symbols.",
    "depth2": "Construction C: two layers, uniform attention; built once per dtype, a folder each.",
}


def _table_command(kind: str, words: str) -> None:
    """Add one construction of a table; they take the same options."""

    @app.command(kind, help=words, epilog=f"Example: oplens build {kind} --function parity --length 6 --out w")
    def build(
        out: Out,
        function: Function = None,
        python: Python = None,
        table: Table = None,
        length: Length = None,
        vocabulary: Vocabulary = None,
        hops: Hops = None,
        modulus: Modulus = None,
        threshold: Threshold = None,
        labels: Labels = None,
        output: Outputs = None,
        one_hot: OneHot = False,
        weights: Kind = None,
        n_frequencies: Frequencies = 4,
        frequency_base: Base = None,
        causal: Causal = False,
        memory_limit: Memory = "4G",
        dtype: Dtypes = None,
        verify_budget: Budget = 1e10,
        shuffles: Shuffles = 1,
        example: Examples = None,
        seed: Seed = 0,
    ) -> None:
        from oplens.cli.constructions import Checks, build_table
        from oplens.cli.functions import Wanted, read_bytes

        limit = read_bytes(memory_limit)
        options = {"hops": hops, "modulus": modulus, "threshold": threshold}
        wanted = Wanted(
            kind, function, python, table, length, vocabulary, options, labels, output, one_hot, limit, seed
        )
        sizes = {
            "weights": weights,
            "n_frequencies": n_frequencies,
            "frequency_base": frequency_base,
            "causal": causal,
            "memory_limit": limit,
        }
        checks = Checks(dtype, verify_budget, shuffles, example, seed)
        call(build_table, kind, out, wanted, sizes, checks, left=LEFT)


for _kind, _words in _TABLES.items():
    _table_command(_kind, _words)


Formula = Annotated[
    str | None,
    typer.Option(
        "--function", metavar="FORMULA", help='Of x1, x2, ..., such as "abs(x1 - x2)".', rich_help_panel=_FUNCTION
    ),
]
Variables = Annotated[
    int | None,
    typer.Option(
        "--variables",
        help="Number of variables (with --python, whose function takes an array (points, variables)).",
        rich_help_panel=_FUNCTION,
    ),
]
Lipschitz = Annotated[
    str,
    typer.Option("--lipschitz", help="Norm and constant, such as max:1, l1:2 or l2:1.5.", rich_help_panel=_FUNCTION),
]
Interval = Annotated[
    str, typer.Option("--bounds", help="Interval of every x, such as 0:1 or -1:1.", rich_help_panel=_FUNCTION)
]
Dtype = Annotated[
    str, typer.Option("--dtype", help="float64 or float32, of weights and arithmetic.", rich_help_panel=_WEIGHTS)
]
Points = Annotated[
    int,
    typer.Option(
        "--points",
        help="Grid points, and as many random ones, at which the error is looked at.",
        rich_help_panel=_CHECK,
    ),
]


@app.command(
    "piecewise-linear",
    epilog='Example: oplens build piecewise-linear --function "abs(x1 - x2)" --knots 7 --lipschitz max:2 --out w',
)
def piecewise_linear(
    out: Out,
    knots: Annotated[int, typer.Option("--knots", help="Intervals per axis, M.", rich_help_panel=_WEIGHTS)],
    lipschitz: Lipschitz,
    function: Formula = None,
    python: Python = None,
    variables: Variables = None,
    bounds: Interval = "0:1",
    dtype: Dtype = "float64",
    n_frequencies: Frequencies = 4,
    memory_limit: Memory = "2G",
    points: Points = 20000,
    example: Examples = None,
    seed: Seed = 0,
) -> None:
    """Construction F: interpolation on a triangulation, with a bound on the sup error."""
    sizes = {"M": knots, "n_frequencies": n_frequencies}
    _real(
        "piecewise-linear",
        out,
        (function, python, variables),
        lipschitz,
        bounds,
        dtype,
        sizes,
        memory_limit,
        points,
        example,
        seed,
    )


@app.command(epilog='Example: oplens build fourier --function "abs(x1 - x2)" --degree 6 --lipschitz l1:1 --out w')
def fourier(
    out: Out,
    degree: Annotated[
        int, typer.Option("--degree", help="Degree of the trigonometric mean, D.", rich_help_panel=_WEIGHTS)
    ],
    lipschitz: Lipschitz,
    function: Formula = None,
    python: Python = None,
    variables: Variables = None,
    bounds: Interval = "0:1",
    step: Annotated[
        float | None,
        typer.Option(
            "--step",
            help="Largest distance of a cosine's knots in radians; chosen when omitted.",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            help="Points per axis at which the function is read (default: degree + 2).",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    dtype: Dtype = "float64",
    n_frequencies: Frequencies = 4,
    memory_limit: Memory = "2G",
    points: Points = 20000,
    example: Examples = None,
    seed: Seed = 0,
) -> None:
    """Construction E: a Fejér-Korovkin mean by ridge functions, with a bound on the sup error."""
    sizes = {"D": degree, "step": step, "nodes": nodes, "n_frequencies": n_frequencies}
    _real(
        "fourier",
        out,
        (function, python, variables),
        lipschitz,
        bounds,
        dtype,
        sizes,
        memory_limit,
        points,
        example,
        seed,
    )


def _real(kind: str, out: Path, *arguments: Any) -> None:
    from oplens.cli.constructions import build_real

    call(build_real, kind, out, *arguments, left=LEFT)


add(app)
