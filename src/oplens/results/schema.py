"""What a result must look like: `docs/schema.md` as one table, and the check of a tree against it."""

import json
from collections.abc import Iterable

import numpy as np
import xarray as xr

from oplens.errors import ResultError
from oplens.results.tables import CLAIMS, DIMENSIONS, PART_DIMENSIONS, REQUIRED, TABLES

_PATTERNS = ("partition", "pairs")  # kinds that are told by their content or prefix, not by a name of their own
_FINITE = ("share", "source_share", "order_0", "remainder", "full_share", "target", "layer_share", "pair_share")


def part_dimensions(variable: xr.DataArray) -> tuple[str, ...]:
    """Return the dimensions of `variable` that number parts, such as `("channel", "band")`.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from oplens.results import part_dimensions
    >>> part_dimensions(xr.DataArray(np.zeros((2, 5, 6, 4)), dims=("order", "case", "channel", "band")))
    ('channel', 'band')
    """
    return tuple(str(name) for name in variable.dims if name in PART_DIMENSIONS)


_ACCOUNTS = (
    ("share", ("order_0", "share", "source_share", "remainder")),
    ("full_share", ("full_constant", "full_share", "source_full_share")),
    ("layer_share", ("layer_share", "layer_skip_share", "residual_share", "constant")),
)


def recomputed_completeness(partition: xr.Dataset) -> float:
    """Return the largest abs(sum of lines - target) / sum of absolute lines over all accounts that a partition holds.

    The accounts are orders with their remainder, the full readout, and layer waves; NaN where there is none, infinite where a
    term or a target is undefined.

    Examples
    --------
    >>> import xarray as xr
    >>> from oplens.results import recomputed_completeness
    >>> lines = {"share": (("order", "case", "band"), [[[1.0, 2.0]]]), "order_0": ("case", [0.5]), "remainder": ("case", [0.0])}
    >>> recomputed_completeness(xr.Dataset({**lines, "target": ("case", [3.5])}))
    0.0
    >>> recomputed_completeness(xr.Dataset({**lines, "target": ("case", [0.0])}))
    1.0
    """
    keep = partition["target"].dims
    misses: list[float] = []
    for name, lines in _ACCOUNTS:
        if name not in partition:
            continue
        present = [partition[line] for line in lines if line in partition]
        total = sum(line.sum([d for d in line.dims if d not in keep], skipna=False) for line in present)
        scale = xr.zeros_like(partition["target"]) + sum(
            abs(line).sum([d for d in line.dims if d not in keep], skipna=False) for line in present
        )
        miss = abs(total - partition["target"]) / scale.where(scale > 0, 1.0)
        misses.append(float(miss.fillna(np.inf).max()))
    return max(misses, default=float("nan"))


def validate(tree: xr.DataTree) -> None:
    """Raise a ResultError that names the group and the variable where `tree` departs from `docs/schema.md`.

    Examples
    --------
    >>> import xarray as xr
    >>> from oplens.results import validate
    >>> ds = xr.Dataset({"wave": ("case", [1.0])})
    >>> validate(xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "t"}), "/waves": xr.Dataset({"x": ("foo", [1.])})}))
    Traceback (most recent call last):
    oplens.errors.ResultError: /waves: variable 'x' has the dimension 'foo', which docs/schema.md does not know.
    """
    _check_root(tree)
    for node in tree.subtree:
        dataset = node.to_dataset(inherit=False)
        if not dataset.variables:
            continue
        _check_variables(node.path, dataset)
        kind = _kind(node.name or "", dataset)
        if kind:
            _check_group(node.path, kind, dataset)


def _check_root(tree: xr.DataTree) -> None:
    if not isinstance(tree.attrs.get("title"), str):
        raise ResultError("/: the attribute 'title' is missing; set tree.attrs['title'] to one line of text.")
    if tree.to_dataset(inherit=False).data_vars:
        names = ", ".join(sorted(map(str, tree.to_dataset(inherit=False).data_vars)))
        raise ResultError(f"/: the root holds attributes only, but has the variables {names}; move them into a group.")
    for name in ("model", "data"):
        if name not in tree.attrs:
            continue
        try:
            value = json.loads(tree.attrs[name])
        except (TypeError, ValueError):
            value = None
        if not isinstance(value, dict):
            raise ResultError(f"/: the attribute {name!r} must be the JSON text of an object.")


def _check_variables(path: str, dataset: xr.Dataset) -> None:
    for name, variable in dataset.variables.items():
        for dimension in variable.dims:
            if dimension not in DIMENSIONS:
                raise ResultError(
                    f"{path}: variable {name!r} has the dimension {dimension!r}, which docs/schema.md does not know."
                )
    for name, array in dataset.data_vars.items():
        if name in DIMENSIONS:
            raise ResultError(f"{path}: variable {name!r} takes a dimension's name; make it a coordinate or rename it.")
        for attribute in ("units", "long_name", "claim"):
            if not isinstance(array.attrs.get(attribute), str):
                raise ResultError(f"{path}: variable {name!r} lacks the attribute {attribute!r}.")
        if array.attrs["claim"] not in CLAIMS:
            raise ResultError(
                f"{path}: variable {name!r} claims {array.attrs['claim']!r}; a claim is one of {', '.join(CLAIMS)}."
            )
        if name in _FINITE and array.dtype.kind in "fc" and not np.isfinite(array.values).all():
            raise ResultError(f"{path}: variable {name!r} contains NaN or infinite values; no term of a sum can.")


def _kind(name: str, dataset: xr.Dataset) -> str | None:
    if name in TABLES and name not in _PATTERNS:
        return name
    if name.startswith("pairs_"):
        return "pairs"
    words = {f"{part}s" for part in PART_DIMENSIONS}
    return "partition" if words.issuperset(name.split("_")) or "share" in dataset else None


def _check_group(path: str, kind: str, dataset: xr.Dataset) -> None:
    present = set(map(str, dataset.data_vars))
    choices = REQUIRED[kind]
    if not any(present.issuperset(choice) for choice in choices):
        best = max(choices, key=lambda choice: len(present.intersection(choice)))
        missing = ", ".join(repr(name) for name in best if name not in present)
        raise ResultError(
            f"{path}: the variable {missing} is missing; a group of this kind needs {' and '.join(best)}."
        )
    table = TABLES[kind]
    parts = _parts(dataset)
    for name in sorted(present.intersection(table)):
        got = tuple(map(str, dataset[name].dims))
        allowed = _expand(table[name].split(), parts)
        if got not in allowed:
            raise ResultError(
                f"{path}: variable {name!r} has the dimensions {_shown(got)}; expected {' or '.join(map(_shown, allowed))}."
            )
    if kind == "pairs":
        _check_pairs(path, dataset["pair_share"])


def _parts(dataset: xr.Dataset) -> tuple[str, ...]:
    for name in ("share", "full_share"):
        if name in dataset:
            return part_dimensions(dataset[name])
    return ()


def _expand(words: Iterable[str], parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    choices: list[tuple[str, ...]] = [()]
    for word in words:
        if word == "[class]":
            choices = [*choices, *((*choice, "class") for choice in choices)]
        elif word == "*parts":
            choices = [(*choice, *(parts or ("part",))) for choice in choices]
        else:
            choices = [(*choice, word) for choice in choices]
    return choices


def _check_pairs(path: str, share: xr.DataArray) -> None:
    dims = tuple(map(str, share.dims))
    if "rank" in dims:
        expected = [("case", "rank"), ("class", "rank"), ("order", "case", "rank"), ("order", "class", "rank")]
        if dims not in expected:
            raise ResultError(
                f"{path}: variable 'pair_share' has the dimensions {_shown(dims)}; expected (case, rank)."
            )
        return
    first, second = part_dimensions(share), tuple(name for name in dims if name.endswith("_2"))
    seconds = [
        tuple(f"{name}_2" for name in names) for names in (first, first[1:] if first[:1] == ("feature",) else first)
    ]
    heads = [("order", "case"), ("order", "case", "class"), ("order", "class")]
    if not first or second not in seconds or not any(dims == (*head, *first, *second) for head in heads):
        raise ResultError(
            f"{path}: variable 'pair_share' has the dimensions {_shown(dims)}; expected (order, case, [class], parts, "
            "parts_2), or (order, class, parts, parts_2) for class means."
        )


def _shown(dims: tuple[str, ...]) -> str:
    return f"({', '.join(dims)})"
