"""Some inputs in a built model as Datasets: what positions hold, where they look, what the answer is the sum of."""

from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from oplens.construction.certificate import Certificate
from oplens.construction.layouts import Sizes, read_holdings, tolerance
from oplens.construction.steps import walk
from oplens.construction.terms import answer_terms
from oplens.models.transformer import Transformer
from oplens.results.variables import variable

TERMS = 12  # terms of an answer that are kept by name
VALUE = "units of the function's values"


def add_cases(
    tree: xr.DataTree,
    model: Transformer,
    certificate: Certificate,
    sizes: Sizes,
    inputs: torch.Tensor,
    values: NDArray[np.float64],
    why: list[str],
    attributes: dict[str, Any],
) -> None:
    """States, maps and terms of the examples, one after the other."""
    dtype = next(model.parameters()).dtype
    allowed = tolerance(certificate.construction, sizes, dtype)
    states, maps, terms = [], [], []
    for x in inputs:
        steps = walk(model, x[None])
        given = x.double().numpy().reshape(-1)
        holdings = read_holdings(certificate.construction, steps, sizes)
        states.append((holdings.known, holdings.wrong(given, steps.used, allowed), steps.used, steps.firing))
        maps.append(steps.weights)
        terms.append((answer_terms(certificate.construction, model, steps, sizes), steps.output))
    coordinates: dict[str, Any] = {
        "case": np.arange(len(inputs)),
        "why": ("case", why),
        "token": np.arange(1, sizes.length + 1),
        "text": (("case", "token"), _texts(inputs, sizes)),
    }
    places = {**coordinates, "token_2": coordinates["token"]}
    what = "symbol" if inputs.ndim == 2 else "number"
    told = {"what": what, "error_bound": certificate.error_bound, "construction": certificate.construction}
    tree["/construction_states"] = xr.DataTree(
        _states(states, what, allowed).assign_coords(places).assign_attrs(attributes, tolerance=allowed, **told)
    )
    tree["/construction_maps"] = xr.DataTree(_maps(maps).assign_coords(places).assign_attrs(attributes))
    tree["/construction_terms"] = xr.DataTree(
        _terms(terms, values, sizes)
        .assign_coords({name: coordinates[name] for name in ("case", "why")})
        .assign_attrs(attributes)
    )


def _states(states: list[tuple[Any, ...]], what: str, allowed: float) -> xr.Dataset:
    """What positions hold after each layer, from 0, the embedding."""
    known, wrong, used, firing = (np.stack(part) for part in zip(*states, strict=True))
    firing = np.concatenate((np.zeros_like(firing[:, :1]), firing), 1)  # the embedding has no units
    name, claim = f"{what} of position token_2 that position token holds", "bound" if allowed else "exact"
    pairs, places = ("case", "layer", "token", "token_2"), ("case", "layer", "token")
    return xr.Dataset(
        {
            "known": variable(pairs, known, name, "1", claim),
            "wrong": variable(pairs, wrong.astype(np.int8), "is not what it should be", claim="exact"),
            "used": variable(places, used.astype(np.int8), "the answer is made of it", claim="exact"),
            "firing": variable(places, firing, "hidden units above 0", claim="exact"),
        },
        {"layer": np.arange(known.shape[1])},
    )


def _maps(maps: list[NDArray[np.float64]]) -> xr.Dataset:
    """Where positions look in each layer, from 1."""
    weights, dims = np.stack(maps).astype(np.float32), ("case", "layer", "head", "token", "token_2")
    layer, head = 1 + np.arange(weights.shape[1]), np.arange(weights.shape[2])
    return xr.Dataset(
        {"weight": variable(dims, weights, "attention weight", claim="exact")}, {"layer": layer, "head": head}
    )


def _texts(inputs: torch.Tensor, sizes: Sizes) -> list[list[str]]:
    if inputs.ndim == 3:
        return [[f"{value:.4g}" for value in x.double().reshape(-1).tolist()] for x in inputs]
    return [[sizes.name(symbol) for symbol in x] for x in inputs.tolist()]


def _terms(terms: list[Any], values: NDArray[np.float64], sizes: Sizes) -> xr.Dataset:
    most = min(TERMS, max(len(found.labels) for found, _ in terms))
    shape = (len(terms), most, sizes.outputs)
    contribution, labels = np.full(shape, np.nan), np.full(shape[:2], "", dtype=object)
    rest, count = np.zeros((len(terms), sizes.outputs)), np.zeros(len(terms), dtype=np.int64)
    for case, (found, _) in enumerate(terms):
        kept = min(most, len(found.labels))
        contribution[case, :kept], labels[case, :kept] = found.values[:kept], found.labels[:kept]
        rest[case], count[case] = found.values[kept:].sum(0), len(found.labels)
    dims = ("case", "quantity")
    return xr.Dataset(
        {
            "contribution": variable(
                ("case", "rank", "quantity"), contribution, "what a term adds to the answer", VALUE, claim="exact"
            ),
            "rest": variable(dims, rest, "smaller terms together", VALUE, claim="exact"),
            "constant": variable(
                dims, np.stack([t.constant for t, _ in terms]), "constant of the answer", VALUE, claim="exact"
            ),
            "answer": variable(
                dims, np.stack([output for _, output in terms]), "the model's output", VALUE, claim="exact"
            ),
            "wanted": variable(dims, values, "the function's value", VALUE, claim="exact"),
            "n_terms": variable("case", count, "terms that are not 0", claim="exact"),
        },
        {
            "member": (("case", "rank"), labels.astype(str)),
            "quantity": [f"output {k + 1}" for k in range(sizes.outputs)] if sizes.outputs > 1 else ["output"],
        },
    )
