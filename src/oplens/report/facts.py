"""The model, the data and the checks as short facts in words."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from oplens.figures.style import number
from oplens.results import recomputed_completeness

CLAIM_WORDS = {
    "exact": "holds to rounding, and an independent calculation checks it",
    "conditional": "exact once named factors (gates, norms) are frozen at their values on this case",
    "truncated": "a series cut off; what the cut leaves is shown as the remainder",
    "bound": "a certified limit that is never exceeded",
    "fitted": "estimated from data, with an interval and a range where it holds",
    "measured": "counted or computed on these cases; other cases may differ",
}

_MODEL = {
    "architecture": "architecture",
    "n_layers": "layers",
    "d_model": "hidden features (d_model)",
    "d_state": "state size per feature (d_state)",
    "n_parameters": "parameters",
    "discretisation": "discretisation",
    "prenorm": "norm before each block",
    "coupling": "trained as rings whose sites hear each other up to (sites)",
    "phase_delay": "phase delay at the start of training (rad)",
}
_KINDS = {
    "plain": "S4D, plain: one layer of state-space systems, GELU, mean over time, linear decoder",
    "reference": "S4D, reference: blocks with GLU, residual and LayerNorm",
}

# What `measure` and `build` store of a model, in the words of the page.
_MEASURED = {
    "architecture": "architecture",
    "construction": "construction",
    "head": "head",
    "parameters": "parameters, tied ones once",
    "n_layers": "layers",
    "d_model": "hidden features (d_model)",
    "d_state": "state size per feature (d_state)",
    "n_heads": "attention heads a layer",
    "vocabulary": "tokens in the vocabulary",
    "d_input": "input channels",
    "d_output": "outputs",
    "max_length": "longest input",
    "causal": "sees the past only",
    "attention": "attention",
    "n_parameters": "places for weights, dense",
    "n_nonzeros": "weights that are not 0",
    "dtype": "computed in",
    "library": "run by",
}
MEASUREMENTS = (
    *("predictions", "errors", "attention", "attention_maps", "representations", "similarity", "neural", "robustness"),
)


@dataclass(frozen=True)
class Check:
    """Whether the stored lines add up to the stored target, and by how much they miss it."""

    passed: bool | None
    words: str
    residual: str
    cancellation: str


def kinds(tree: xr.DataTree) -> frozenset[str]:
    """Return what a file holds: "measurement", "construction", "explanation" (that of an operator; also a file of attributes alone).

    Examples
    --------
    >>> import xarray as xr
    >>> from oplens.report.facts import kinds
    >>> sorted(kinds(xr.DataTree.from_dict({"/attention": xr.Dataset(), "/construction": xr.Dataset()})))
    ['construction', 'measurement']
    """
    names = [str(name) for name in tree.children]
    found = {"measurement" for name in names if name in MEASUREMENTS}
    found |= {"construction" for name in names if name.split("_")[0] == "construction"}
    others = [name for name in names if name not in MEASUREMENTS and name.split("_")[0] != "construction"]
    return frozenset(found | {"explanation"} if others or not found else found)


def notes(tree: xr.DataTree) -> list[str]:
    """Return what the file says that a reader has to know."""
    try:
        found = json.loads(tree.attrs.get("notes", "[]"))
    except (TypeError, ValueError):
        return []
    return [str(note) for note in found] if isinstance(found, list) else []


def headline(tree: xr.DataTree) -> str:
    """Return the sentence a reader must see first: the file's own, else what its baselines or accuracies say."""
    for node in (tree, tree.children.get("baselines")):
        if node is not None and str(node.attrs.get("headline", "")).strip():
            return str(node.attrs["headline"])
    summary = _dataset(tree, "summary")
    if "agreement" in summary:
        best, last = float(summary["agreement"].values[-1]), int(summary["order"].values[-1])
        return f"Cut after order {last}, the operator decides {100 * best:.0f} % of the cases as the model does."
    if "explanation" not in kinds(tree):
        return "What this model is, and what was measured of it."
    return (
        "This file holds no accuracies and no baselines: the page shows what the model does, not whether it is right."
    )


def data_rows(tree: xr.DataTree) -> list[tuple[str, str]]:
    """Return what is known of the data as (words, value)."""
    data = _json(tree, "data")
    if not data:
        return []
    rows = [("name", data.get("name")), ("cases", data.get("cases"))]
    channels = data.get("channels")
    if isinstance(channels, list):
        shown = ", ".join(map(str, channels[:12])) + (", …" if len(channels) > 12 else "")
        channels = f"{len(channels)}: {shown}"
    rows.append(("channels", channels))
    length = data.get("length")
    if isinstance(length, list):
        length = f"{min(length)} to {max(length)}" if len(set(length)) > 1 else length[0] if length else None
    shortest = data.get("shortest", length)
    span = f"{length}" if shortest == length else f"{shortest} to {length}"
    unit = (
        "tokens" if "tokens" in data else "steps" if "explanation" in kinds(tree) or "channels" in data else "positions"
    )
    rows.append(("length", None if length is None else f"{span} {unit}"))
    for key, words in (("tokens", "tokens in all"), ("steps", "steps in all"), ("bytes", "bytes of text")):
        rows.append((words, f"{data[key]:,}" if isinstance(data.get(key), int) else None))
    rows.append(("tokenizer", data.get("tokenizer")))
    rate = data.get("sampling_rate")
    if "explanation" in kinds(tree) or "channels" in data:
        rows.append(
            ("sampling rate", "not known: frequencies are in cycles per step" if rate is None else f"{rate:g} Hz")
        )
    counts = data.get("class_counts", data.get("classes"))
    if isinstance(counts, Mapping):
        counts = ", ".join(f"{name} ({count})" for name, count in counts.items())
        counts = counts or None
    elif isinstance(counts, list):
        counts = ", ".join(map(str, counts))
    rows.append(("classes (cases)", counts))
    return [(words, str(value)) for words, value in rows if value is not None]


def model_rows(tree: xr.DataTree) -> list[tuple[str, str]]:
    """Return what is known of the model and its expansion as (words, value)."""
    model = _json(tree, "model")
    rows = []
    if "explanation" not in kinds(tree):
        return [
            (words, _of_model(model[key]))
            for key, words in _MEASURED.items()
            if model.get(key) not in (None, "", [], {})
        ]
    for key, words in _MODEL.items():
        if key in model and model[key] is not None:
            value = model[key]
            value = _kind(model) if key == "architecture" else value
            value = ("yes" if value else "no") if isinstance(value, bool) else value
            rows.append((words, f"{value:,}" if isinstance(value, int) else str(value)))
    preprocessing = model.get("preprocessing")
    if isinstance(preprocessing, Mapping):
        removed = preprocessing.get("remove_offset")
        words = "each case's own mean removed, then scaled per channel" if removed else "shifted and scaled per channel"
        rows.append(("preprocessing (part of the model)", words))
    for node in tree.subtree:
        # Other groups have an order of their own, such as the degree of a polynomial along a ray.
        if "share" in node.data_vars and int(node.attrs.get("order", 0)) > 0:
            rows.append(("expansion", f"{node.attrs.get('family', '')}, orders 1 to {int(node.attrs['order'])}"))
            break
    for node in tree.subtree:
        if "account" in node.attrs:
            rows.append(("account", str(node.attrs["account"])))
            break
    return rows


def _kind(model: Mapping[str, Any]) -> str:
    """Return an architecture in words; a polynomial takes the place of GELU where the model says so."""
    words = _KINDS.get(str(model["architecture"]), str(model["architecture"]))
    if model.get("readout") == "polynomial":
        words = words.replace("GELU", f"a polynomial of degree {model.get('degree')} per feature")
    return words.replace("mean over time", "an answer at every step") if model.get("pooling") == "none" else words


def used_claims(tree: xr.DataTree) -> list[tuple[str, str]]:
    """Return the claim words this file uses, with their meaning."""
    used = {
        str(v.attrs.get("claim")) for node in tree.subtree for v in node.to_dataset(inherit=False).data_vars.values()
    }
    return [(word, meaning) for word, meaning in CLAIM_WORDS.items() if word in used]


def check(tree: xr.DataTree) -> Check:
    """Add up every partition in the file again and say how far the sums are from their targets."""
    values, single = [], False
    for node in tree.subtree:
        dataset = node.to_dataset(inherit=False)
        if "target" in dataset:
            values.append(recomputed_completeness(dataset))
            single = single or dataset["target"].dtype == np.float32
    values = [value for value in values if np.isfinite(value)]
    cancellation = _cancellation(tree)
    if not values:
        return Check(None, "The file holds no partition whose sum could be checked.", "–", cancellation)
    passed = max(values) <= (1e-5 if single else 1e-10)
    how = "added up again from this file when the page was made"
    words = (
        f"Every case's terms add up to its decision ({how})."
        if passed
        else f"The terms do NOT add up to the decisions ({how}): do not trust the shares on this page."
    )
    return Check(passed, words, number(max(values), 2), cancellation)


def attribute_tables(tree: xr.DataTree) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return every group's attributes as (group, rows)."""
    tables = []
    for node in sorted(tree.subtree, key=lambda node: node.path):
        rows = [(str(name), _shown(value)) for name, value in sorted(node.attrs.items())]
        if rows:
            tables.append((node.path, rows))
    return tables


def _of_model(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return _shown(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cancellation(tree: xr.DataTree) -> str:
    summary = _dataset(tree, "summary")
    if "cancellation" in summary:
        return number(float(summary["cancellation"]), 1)
    for node in tree.subtree:
        dataset = node.to_dataset(inherit=False)
        if "cancellation_ratio" in dataset:
            return number(float(np.median(dataset["cancellation_ratio"].values)), 1)
    return "–"


def _dataset(tree: xr.DataTree, name: str) -> xr.Dataset:
    return tree.children[name].to_dataset(inherit=False) if name in tree.children else xr.Dataset()


def _json(tree: xr.DataTree, name: str) -> dict[str, Any]:
    value = json.loads(tree.attrs.get(name, "{}"))
    return value if isinstance(value, dict) else {}


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple, np.ndarray)):
        items = [str(item) for item in np.asarray(value).ravel().tolist()]
        return ", ".join(items[:20]) + (", …" if len(items) > 20 else "")
    return str(value)
