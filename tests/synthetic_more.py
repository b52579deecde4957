"""Two more invented results: four classes, and a deep stack with its layer account and its input parts."""

import numpy as np
import xarray as xr

from synthetic_results import BANDS, MODEL, SCP1_CHANNELS, Draw, described, octaves


def four_class(n_cases: int = 40) -> xr.DataTree:
    """Class-centred logits of four classes, no sampling rate, with the largest pairs per case."""
    channels = ("acc x", "acc y", "acc z", "gyro x", "gyro y", "gyro z")
    draw = Draw(3, n_cases, channels, ("standing", "running", "walking", "badminton"), margin=False, rate=None)
    headline = "The model decides better than every baseline on these cases."
    return xr.DataTree.from_dict(
        {
            "/": draw.root("BasicMotions: four movements from six sensors", headline, MODEL),
            "/summary": draw.summary(),
            "/baselines": draw.baselines(headline),
            "/inputs": draw.inputs(length=100),
            "/channels_bands": draw.channels_bands(),
            "/windows": draw.windows(),
            "/waves": draw.waves(8, 8),
            "/pairs_channels_bands": draw.pairs_top(),
        }
    )


def deep(n_cases: int = 60, n_layers: int = 4) -> xr.DataTree:
    """A reference stack: layer waves, skips and the residual stream; input parts as a second account; no order axis."""
    draw = Draw(11, n_cases, SCP1_CHANNELS, ("negativity", "positivity"), margin=True, rate=256.0)
    rng, claim = draw.rng, "conditional"
    share = rng.normal(size=(n_cases, n_layers, 8, 8)) * 0.2 * np.arange(1, n_layers + 1)[:, None, None]
    skip = rng.normal(size=(n_cases, n_layers, 8)) * 0.3
    residual, constant = rng.normal(size=n_cases) * 0.5, rng.normal(size=n_cases) * 0.2
    target = share.sum((1, 2, 3)) + skip.sum((1, 2)) + residual + constant
    total = abs(share).sum((1, 2, 3)) + abs(skip).sum((1, 2)) + abs(residual) + abs(constant)
    _, common, attributes = draw.common("waves")
    attributes |= {
        "architecture": "reference",
        "account": "conditional: gates, Phi and LayerNorm scales frozen per case",
    }
    coords = {k: v for k, v in common.items() if k != "order"}
    predicted = np.asarray(draw.classes)[draw.logits(target).argmax(-1)]
    coords["predicted"] = ("case", predicted)
    checks = {
        "target": (("case",), target, described("explained number")),
        "logits": (("case", "class"), draw.logits(target), described("logits of the model")),
        "sum_abs_terms": (("case",), total, described("sum of absolute terms")),
        "completeness_residual": (("case",), rng.normal(size=n_cases) * 1e-15, described("residual", claim="measured")),
        "cancellation_ratio": (("case",), total / abs(target), described("cancellation", "1", "measured")),
    }
    layered = ("case", "layer", "feature", "wave")
    waves = xr.Dataset(
        {
            "layer_share": (layered, share, described("share of a layer's wave", claim=claim)),
            "layer_skip_share": (layered[:3], skip, described("share of a layer's skip", claim=claim)),
            "residual_share": (("case",), residual, described("the encoder's residual stream", claim=claim)),
            "constant": (("case",), constant, described("constants", claim=claim)),
            **checks,
        },
        coords={**coords, "layer": np.arange(1, n_layers + 1)},
        attrs=attributes,
    )
    full = rng.normal(size=(n_cases, len(SCP1_CHANNELS), len(BANDS))) * 0.1
    input_parts = xr.Dataset(
        {
            "full_share": (("case", "channel", "band"), full, described("gradient times input", claim=claim)),
            "full_constant": (("case",), target - full.sum((1, 2)), described("constants", claim=claim)),
            **checks,
        },
        coords={**coords, "channel": list(SCP1_CHANNELS), **octaves(256.0)},
        attrs={**attributes, "partition": "channels_bands"},
    )
    label = np.asarray(draw.classes)[draw.label]
    summary = xr.Dataset(
        {
            "model_accuracy": (
                (),
                float(np.mean(predicted == label)),
                described("accuracy of the model", "1", "measured"),
            ),
            "completeness": ((), 2.2e-15, described("largest relative completeness residual", "1", "measured")),
            "cancellation": ((), 24.0, described("median cancellation ratio", "1", "measured")),
        }
    )
    model = {**MODEL, "architecture": "reference", "n_layers": n_layers, "norm": "post"}
    return xr.DataTree.from_dict(
        {
            "/": draw.root("A four-layer reference stack", "The model's own account, layer by layer.", model),
            "/summary": summary,
            "/inputs": draw.inputs(),
            "/waves": waves,
            "/channels_bands": input_parts,
        }
    )
