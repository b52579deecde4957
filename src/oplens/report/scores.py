"""What a model scores: predictions, accuracy, errors, each with its interval and with what it is."""

import math

import xarray as xr

from oplens.figures.layers import between, estimate
from oplens.figures.style import number
from oplens.report.blocks import Section, Tile, group


def scores_section(tree: xr.DataTree) -> list[Section]:
    """Perplexity, bits per byte, accuracy and errors as numbers; nothing where the file has none."""
    predictions, errors = group(tree, "predictions"), group(tree, "errors")
    tiles: list[Tile] = []
    findings, notes = [], []
    if predictions is not None:
        tiles += _prediction_tiles(predictions)
        if "perplexity" in predictions:
            findings.append(_perplexity(predictions))
    if errors is not None:
        tiles += _error_tiles(errors)
        findings.append(_worst(errors))
    if not tiles:
        return []
    levels = {float(ds.attrs["level"]) for ds in (predictions, errors) if ds is not None and "level" in ds.attrs}
    if levels:
        notes.append(
            f"Intervals: {' and '.join(f'{100 * level:g} %' for level in sorted(levels))}, over cases as independent draws."
        )
    words = [w for w in findings if w]
    return [Section("scores", "Scores", "How well does the model do?", findings=words, tiles=tiles, notes=notes)]


def _prediction_tiles(ds: xr.Dataset) -> list[Tile]:
    tiles = []
    if "perplexity" in ds:
        tiles.append(Tile(_short(ds, "perplexity"), "perplexity", _ends(ds, "perplexity").strip()))
    if "loss" in ds:
        tiles.append(Tile(_short(ds, "loss"), "nats a prediction", _error(ds, "loss_error")))
    if "bits_per_byte" in ds:
        over = f"{int(ds['n_bytes']):,} bytes" if "n_bytes" in ds else ""
        more = ", ".join(words for words in (_error(ds, "bits_per_byte_error"), over) if words)
        tiles.append(Tile(_short(ds, "bits_per_byte"), "bits per byte of text", more))
    if "accuracy" in ds:
        ends = [100 * float(ds[f"accuracy_{end}"]) if f"accuracy_{end}" in ds else math.nan for end in ("low", "high")]
        interval = f"[{ends[0]:.1f}, {ends[1]:.1f}] %" if all(map(math.isfinite, ends)) else ""
        tiles.append(Tile(f"{100 * float(ds['accuracy']):.1f} %", "of cases decided rightly", interval))
    for name, words in (("n_predictions", "predictions counted"), ("n_cases", "cases")):
        if name in ds:
            tiles.append(Tile(f"{int(ds[name]):,}", words))
    return tiles


def _error_tiles(ds: xr.Dataset) -> list[Tile]:
    tiles = []
    exact = str(ds["eam"].attrs.get("claim", "")) == "exact" if "eam" in ds else False
    if "eam" in ds:
        tiles.append(
            Tile(
                estimate(float(ds["eam"])),
                "mean error (the paper's EAM)",
                "over all inputs, exact" if exact else _ends(ds, "eam").strip(),
            )
        )
    if "largest" in ds:
        exact = str(ds["largest"].attrs.get("claim", "")) == "exact"
        words = "largest error, exact" if exact else "largest error seen"
        more = "over all inputs" if exact else "a lower bound of the supremum"
        tiles.append(Tile(estimate(float(ds["largest"])), words, more))
    if "n_cases" in ds:
        tiles.append(Tile(f"{int(ds['n_cases']):,}", "cases compared with the target"))
    return tiles


def _perplexity(ds: xr.Dataset) -> str:
    value = float(ds["perplexity"])
    if not math.isfinite(value):
        return "The perplexity is infinite: the model called a token impossible that came."
    over = f", over {int(ds['n_predictions']):,} predictions" if "n_predictions" in ds else ""
    byte = (
        f" A byte of text costs it {estimate(float(ds['bits_per_byte']))} bits; unlike perplexity, this does not depend on the tokenizer."
        if "bits_per_byte" in ds
        else ""
    )
    told = _short(ds, "perplexity")
    return (
        f"Perplexity {told}{_ends(ds, 'perplexity')}{over}: on average the model is as unsure of the next token as if it chose among {told} "
        f"equally likely ones.{byte}"
    )


def _worst(ds: xr.Dataset) -> str:
    """The mean error and the largest one, with what it is: exact, or a lower bound."""
    if "eam" not in ds or "largest" not in ds:
        return ""
    against = str(ds.attrs.get("target", "its target"))
    size = float(ds["target_size"]) if "target_size" in ds else 0.0
    relative = f", {100 * float(ds['eam']) / size:.2g} % of the mean size of its values" if size > 0 else ""
    case = f" (case {int(ds['largest_case'])})" if "largest_case" in ds else ""
    both = (
        f" Both put the same token first at {100 * float(ds['agreement']):.1f} % of the positions."
        if "agreement" in ds
        else ""
    )
    largest = f"{estimate(float(ds['largest']))}{case}"
    mean = f"The model misses {against} by {estimate(float(ds['eam']))}{_ends(ds, 'eam')} on average{relative}"
    if str(ds["largest"].attrs.get("claim", "")) == "exact":
        return f"{mean}, and by {largest} at most: exact, over {ds.attrs.get('scope', 'all inputs there are')}.{both}"
    level = 100 * float(ds.attrs.get("level", 0.95))
    share = (
        f" At most {estimate(100 * float(ds['exceedance']))} % of inputs of this kind have a larger one ({level:g} % confidence)."
        if "exceedance" in ds
        else ""
    )
    return (
        f"{mean}. The largest error seen, {largest}, is a lower bound of the largest there is: inputs that were not tried may be worse."
        f"{share}{both}"
    )


def _short(ds: xr.Dataset, name: str) -> str:
    """Five digits: what published perplexities are compared by."""
    value = float(ds[name])
    return number(value, _decimals(value) + 2) if math.isfinite(value) else number(value)


def _decimals(value: float) -> int:
    """As many as leave three digits."""
    return max(0, 2 - math.floor(math.log10(abs(value)))) if value and math.isfinite(value) else 2


def _ends(ds: xr.Dataset, name: str) -> str:
    if f"{name}_low" not in ds or f"{name}_high" not in ds:
        return ""
    return between(float(ds[f"{name}_low"]), float(ds[f"{name}_high"]), float(ds[name]))


def _error(ds: xr.Dataset, name: str) -> str:
    if name not in ds or not math.isfinite(float(ds[name])):
        return ""
    return f"± {number(float(ds[name]), _decimals(float(ds[name.removesuffix('_error')])))} (standard error)"
