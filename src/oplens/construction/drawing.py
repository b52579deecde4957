"""A built model as a result: its certificate, its verification, and what some inputs do in it layer by layer."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from oplens.construction.cases import VALUE, add_cases
from oplens.construction.certificate import Certificate
from oplens.construction.error_maps import error_slices, error_surface
from oplens.construction.function import FunctionTable
from oplens.construction.layouts import Sizes
from oplens.construction.real_functions import MeasuredError
from oplens.construction.verification import Verification
from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.models.transformer_layers import SparseLinear
from oplens.results import provenance
from oplens.results.variables import variable

CASES = 4  # inputs that are drawn unless others are asked for


def draw_table(
    model: Transformer,
    table: FunctionTable,
    certified: Sequence[tuple[Certificate, Verification]],
    examples: Sequence[Sequence[int]] | None = None,
    seed: int = 0,
) -> xr.DataTree:
    """What `oplens build` writes of a construction on symbols (lookup, bits, depth2), for :func:`oplens.report.render`.

    Parameters
    ----------
    model : Transformer
        Is run; everything drawn of it is read from this run.
    table : FunctionTable
        What it was built from.
    certified : sequence of (Certificate, Verification)
        The model's own first; further ones are of the same function built for other dtypes.
    examples : sequence of inputs, optional
        Drawn layer by layer; by default wrong ones, if verification found any, and some of different values.
    seed : int
        Of the default examples.

    Returns
    -------
    xr.DataTree
        Groups `construction`, `construction_margins`, `construction_checks`, `construction_states`, `construction_maps`,
        `construction_terms`; see docs/schema.md.

    Examples
    --------
    >>> from oplens.construction import FunctionTable, build_lookup, verify
    >>> table = FunctionTable.from_family("parity", vocabulary=2, length=4)
    >>> model, certificate = build_lookup(table)
    >>> tree = draw_table(model, table, [(certificate, verify(model, table))], examples=[[1, 0, 1, 1]])
    >>> tree["construction_states"].known.sel(layer=1, case=0).values[-1].tolist()
    [nan, nan, 1.0, 1.0]
    """
    certificate, verification = certified[0]
    sizes = Sizes(table.vocabulary, table.length, table.outputs, model.config.n_frequencies, symbols=table.symbols)
    inputs, why = _table_examples(table, verification, examples, seed)
    tree = root_tree(
        _facts(model, certificate),
        _layers(model),
        [pair[0] for pair in certified],
        f"{certificate.construction}: {table.name}",
    )
    checks = [check for _, found in certified for check in found.checks]
    tree.attrs |= {
        "headline": _table_headline(table, certificate, [found for _, found in certified]),
        "data": json.dumps({"name": table.name, "cases": len(table), "length": table.length}),
    }
    attributes = provenance(
        source=f"build {certificate.construction}: {table.name}", dtype=certificate.dtype, seed=seed
    )
    verified = json.dumps(dataclasses.asdict(dataclasses.replace(verification, checks=())))
    tree["/construction_checks"] = xr.DataTree(
        _checks(checks, "exact" if verification.mode == "exhaustive" else "measured").assign_attrs(
            attributes, verification=verified
        )
    )
    add_cases(tree, model, certificate, sizes, torch.from_numpy(inputs), table(inputs), why, attributes)
    return tree


def draw_real(
    model: Transformer,
    f: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    certificate: Certificate,
    found: MeasuredError,
    bounds: tuple[float, float] = (0.0, 1.0),
    name: str = "f",
    examples: Sequence[Sequence[float]] | None = None,
    seed: int = 0,
) -> xr.DataTree:
    """The same of a construction on reals (fourier, piecewise-linear).

    Parameters
    ----------
    model, f, certificate, bounds
        As built.
    found : MeasuredError
        Of :func:`oplens.construction.real_functions.sup_error`; sections and the map go through its point.
    name : str
        What the function is called.
    examples : sequence of points, optional
        Drawn layer by layer; by default that of the largest error, the middle, and a random one.

    Returns
    -------
    xr.DataTree
        Groups as of :func:`draw_table`, with `construction_slices` and, for two variables or more, `construction_surface`.

    Notes
    -----
    Cost: n evaluations of 241 points, and 49^2 for the map.
    """
    n = model.config.max_length or 1
    sizes = Sizes(2, n, 1, model.config.n_frequencies, bounds)
    points, why = _real_examples(n, found, bounds, examples, seed)
    tree = root_tree(_facts(model, certificate), _layers(model), [certificate], f"{certificate.construction}: {name}")
    tree.attrs |= {
        "headline": f"{name} is computed in {certificate.depth} layers within {certificate.error_bound:.3g} everywhere (certified); the "
        f"largest error found at {found.evaluations:,} points is {found.value:.3g}.",
        "data": json.dumps({"name": name, "length": n}),
    }
    attributes = provenance(source=f"build {certificate.construction}: {name}", dtype=certificate.dtype, seed=seed)
    tree["/construction_checks"] = xr.DataTree(
        xr.Dataset(
            {
                "inputs": variable(
                    "rank", [found.evaluations], "points at which the error was looked at", claim="exact"
                ),
                "largest_error": variable("rank", [found.value], "largest error found", VALUE, "measured"),
            },
            {"dtype_of": ("rank", [certificate.dtype]), "order_of": ("rank", ["grid, random points, local search"])},
            attributes,
        )
    )
    x = torch.from_numpy(points).to(next(model.parameters()).dtype)[..., None]
    add_cases(tree, model, certificate, sizes, x, np.asarray(f(points))[:, None], why, attributes)
    tree["/construction_slices"] = xr.DataTree(error_slices(model, f, found, bounds).assign_attrs(attributes))
    if n > 1:
        tree["/construction_surface"] = xr.DataTree(error_surface(model, f, found, bounds).assign_attrs(attributes))
    return tree


def _facts(model: Transformer, certificate: Certificate) -> dict[str, Any]:
    """What a page tells of the model first."""
    config = model.config
    return {
        "architecture": f"transformer, {'decoder' if config.causal else 'encoder'}, {config.weights} weights",
        "construction": certificate.construction,
        "n_layers": config.n_layers,
        "d_model": config.d_model,
        "n_parameters": certificate.dense,
        "n_nonzeros": certificate.sparse,
        "dtype": certificate.dtype,
    }


def _layers(model: Transformer) -> NDArray[np.int64]:
    """(n_layers, 3): heads, places of the dense form, weights that are not 0."""
    found = []
    for index, layer in enumerate(model.config.layers):
        parameters = list(model.block(index).parameters())
        sparse = [module for module in model.block(index).modules() if isinstance(module, SparseLinear)]
        stored = sum(parameter.numel() for parameter in parameters)
        places = stored + sum(module.d_input * module.d_output - module.nonzeros for module in sparse)
        found.append((layer.n_heads, places, sum(int(torch.count_nonzero(parameter)) for parameter in parameters)))
    return np.array(found)


def root_tree(
    facts: dict[str, Any], layers: NDArray[np.int64], certificates: Sequence[Certificate], title: str
) -> xr.DataTree:
    """Root, certificate and margins; `layers` (n_layers, 3) are heads, places and weights that are not 0."""
    certificate = certificates[0]
    attributes = provenance(
        source=f"build {certificate.construction}",
        dtype=certificate.dtype,
        certificate=certificate.to_dict(),
        statement=certificate.statement,
        hypotheses=list(certificate.hypotheses),
        construction=certificate.construction,
    )
    margins = [margin for item in certificates for margin in item.margins]
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset(attrs={"title": title, "model": json.dumps(facts)}),
            "/construction": _sizes_dataset(layers, certificate).assign_attrs(attributes),
        }
    )
    if margins:
        tree["/construction_margins"] = xr.DataTree(
            xr.Dataset(
                {
                    "required": variable("rank", [m.required for m in margins], "what exactness needs", "1", "bound"),
                    "delivered": variable(
                        "rank",
                        [m.delivered for m in margins],
                        "what the weights give at the worst rounding",
                        "1",
                        "bound",
                    ),
                },
                {"dtype_of": ("rank", [m.dtype for m in margins]), "compared": ("rank", [m.quantity for m in margins])},
            )
        )
    return tree


def _sizes_dataset(layers: NDArray[np.int64], certificate: Certificate) -> xr.Dataset:
    names, values = zip(*certificate.error_parts, *certificate.rounding_parts, strict=True)
    return xr.Dataset(
        {
            "hidden_units": variable("layer", np.array(certificate.hidden), "hidden units", claim="exact"),
            "n_heads": variable("layer", layers[:, 0], "attention heads", claim="exact"),
            "nonzeros": variable("layer", layers[:, 2], "weights that are not 0", claim="exact"),
            "places": variable("layer", layers[:, 1], "places for weights in the dense model", claim="exact"),
            "error_part": variable("quantity", np.array(values), "part of the error bound", VALUE, "bound"),
            "error_bound": variable((), certificate.error_bound, "bound on the error everywhere", VALUE, "bound"),
            "width": variable((), certificate.width, "coordinates of the residual stream", claim="exact"),
            "dense": variable((), certificate.dense, "places for weights in the dense model", claim="exact"),
            "sparse": variable((), certificate.sparse, "weights that are not 0", claim="exact"),
        },
        {"layer": np.arange(1, len(layers) + 1), "quantity": list(names)},
    )


def _checks(checks: Sequence[Any], claim: str) -> xr.Dataset:
    return xr.Dataset(
        {
            "inputs": variable("rank", [check.inputs for check in checks], "inputs run", claim="exact"),
            "errors": variable(
                "rank", [check.errors for check in checks], "outputs that are not f to the last bit", "1", claim
            ),
            "largest_error": variable(
                "rank", [check.largest_error for check in checks], "largest difference from f", VALUE, claim
            ),
        },
        {
            "dtype_of": ("rank", [check.dtype for check in checks]),
            "order_of": ("rank", [check.order for check in checks]),
        },
    )


def _table_headline(table: FunctionTable, certificate: Certificate, found: Sequence[Verification]) -> str:
    names = list(dict.fromkeys(check.dtype for item in found for check in item.checks))
    orders = max(len({check.order for check in item.checks}) for item in found)
    errors, checks = sum(item.errors for item in found), [check for item in found for check in item.checks]
    layers = f"{certificate.depth} layer{'s' if certificate.depth > 1 else ''}"
    run = checks[0].inputs
    inputs = f"all {run:,} inputs" if found[0].mode == "exhaustive" else f"{run:,} of {len(table):,} inputs"
    passes = f"in {', '.join(names)}" + (f", each in {orders} orders of summation" if orders > 1 else "")
    verdict = f"{errors:,} outputs are WRONG" if errors > 1 else "1 output is WRONG" if errors else "no output is wrong"
    return f"{table.name} in {layers}: {inputs} run {passes}; {verdict}."


def _table_examples(
    table: FunctionTable, verification: Verification, examples: Sequence[Sequence[int]] | None, seed: int
) -> tuple[NDArray[np.int64], list[str]]:
    if examples is not None:
        table(asked := np.array(examples))  # refuses what is no input
        return asked, ["asked for"] * len(asked)
    rng = np.random.default_rng(seed)
    wrong = list(dict.fromkeys(c.first_wrong for c in verification.checks if c.first_wrong is not None))[:CASES]
    inputs, why = [list(x) for x in wrong], ["wrong answer"] * len(wrong)
    _, group, counts = np.unique(table.values, axis=0, return_inverse=True, return_counts=True)
    # The most frequent values first, one input of each, and again from the start.
    order = np.argsort(-counts, kind="stable")
    pools = [rng.permutation(np.flatnonzero(group.ravel() == value)) for value in order[:CASES]]
    for turn in range(CASES):
        for pool in pools:
            if turn < len(pool) and len(inputs) < min(CASES, len(table)):
                inputs.append(table.inputs_at(pool[turn : turn + 1])[0].tolist())
                why.append("drawn at random among the inputs of its value")
    return np.array(inputs), why


def _real_examples(
    n: int,
    found: MeasuredError,
    bounds: tuple[float, float],
    examples: Sequence[Sequence[float]] | None,
    seed: int,
) -> tuple[NDArray[np.float64], list[str]]:
    low, high = bounds
    if examples is not None:
        points = np.array(examples, dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != n or not ((points >= low) & (points <= high)).all():
            raise ArgumentError(
                f"draw_real(examples of shape {points.shape}): give points of {n} numbers from {low:g} to {high:g}."
            )
        return points, ["asked for"] * len(points)
    random = low + (high - low) * np.random.default_rng(seed).random(n)
    middle = np.linspace(low, high, n + 2)[1:-1]
    return np.stack((np.array(found.point), middle, random)), [
        "largest error found",
        "evenly spread",
        "drawn at random",
    ]
