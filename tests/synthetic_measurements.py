"""Invented measurements of a model, by docs/schema.md: numbers that a reader of the page can be checked against."""

import base64
import json

import numpy as np
import xarray as xr

HEAD_UNITS = {
    **{"entropy_sum": "nat", "entropy": "nat", "normalised_entropy": "1", "distance": "position", "first_mass": "1"},
    "previous_mass": "1",
    **{"effective_rank": "1", "relative_rank": "1", "stable_rank": "1", "numerical_rank": "1"},
    "eigenvalue_effective_rank": "1",
}
TEXT = ("Once", " upon", " a", " time", ",", " there", " was", "\n", "<b>", " girl", " named", "\t", " Lily", ".")


def numbers(value):
    """An array as figures carry it."""
    if isinstance(value, dict):
        flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]))
        return flat.reshape([int(n) for n in value["shape"].split(",")]) if "shape" in value else flat
    return np.asarray(value)


def array(dims, value, long_name, units="1", claim="measured"):
    return dims, value, {"units": units, "long_name": long_name, "claim": claim}


def attention(layers=5, heads=8, distance=None, missing=(), length=64, intervals=True, seed=0):
    """Heads of growing distance; layer 2 (or 1) holds one that looks back one token, the last layer one that rests on the first position."""
    rng = np.random.default_rng(seed)
    shape = (layers, heads)
    far = 2 + 12 * np.arange(1, layers + 1)[:, None] / layers * rng.uniform(0.6, 1.4, shape)
    value = {
        "distance": far if distance is None else np.broadcast_to(np.asarray(distance, float), shape).copy(),
        "normalised_entropy": rng.uniform(0.3, 0.8, shape),
        "first_mass": rng.uniform(0.01, 0.2, shape),
        "previous_mass": 0.3 / far,
        "relative_rank": rng.uniform(0.3, 0.8, shape),
        "stable_rank": rng.uniform(2, 20, shape),
    }
    if distance is None:
        back = min(1, layers - 1), 0
        value["distance"][back], value["normalised_entropy"][back], value["previous_mass"][back] = 1.04, 0.06, 0.93
        if heads > 1:
            value["first_mass"][-1, 1], value["normalised_entropy"][-1, 1], value["distance"][-1, 1] = 0.91, 0.09, 29.0
    value["entropy"] = 4 * value["normalised_entropy"]
    value["entropy_sum"] = length * value["entropy"]
    value["effective_rank"] = length * value["relative_rank"]
    value["eigenvalue_effective_rank"] = value["effective_rank"] * rng.uniform(0.4, 1.1, shape)
    value["numerical_rank"] = np.full(shape, float(length))
    variables = {}
    for name, units in HEAD_UNITS.items():
        v = value[name]
        for layer, head in missing:
            v[layer - 1, head] = np.nan
        error = 0.02 * v if intervals else np.full(shape, np.nan)
        for end, number in {"": v, "_error": error, "_low": v - 2 * error, "_high": v + 2 * error}.items():
            variables[name + end] = array(("layer", "head"), number, name + end, units)
    variables["undefined"] = array(("layer", "head"), np.zeros(shape), "share of cases where r_eff is undefined")
    variables["n_rows"] = array(("layer", "head"), np.full(shape, 32 * length), "query rows measured")
    variables["n_left_out"] = array(("layer", "head"), np.zeros(shape, int), "real rows that see nothing, left out")
    coords = {"layer": np.arange(1, layers + 1), "head": np.arange(heads)}
    return xr.Dataset(variables, coords=coords, attrs={"level": 0.95})


def representations(layers=5, seed=1):
    rng = np.random.default_rng(seed)
    n = layers + 1
    ratio = np.linspace(30, 12, n) * rng.uniform(0.9, 1.1, n)
    two = np.linspace(3, 6, n)
    value = {
        "d_int": (1.6 * ratio, "measured"),
        "d_int_centred": (1.7 * ratio, "measured"),
        "participation_ratio": (0.97 * ratio, "measured"),
        "participation_ratio_corrected": (ratio, "measured"),
        "effective_rank": (1.9 * ratio, "measured"),
        "stable_rank": (0.4 * ratio, "measured"),
        "numerical_rank": (np.full(n, 64.0), "measured"),
        "n_points": (np.full(n, 2048), "measured"),
        "two_nn": (two * 1.05, "fitted"),
        "two_nn_likelihood": (two, "fitted"),
        "two_nn_low": (two - 0.4, "fitted"),
        "two_nn_high": (two + 0.4, "fitted"),
        "mle": (two * 1.2, "fitted"),
        "mle_error": (np.full(n, 0.1), "bound"),
        "n_sampled": (np.array([150] + [900] * layers), "measured"),
        "n_repeated": (np.array([850] + [100] * layers), "measured"),
    }
    variables = {name: array("layer", v, name, claim=claim) for name, (v, claim) in value.items()}
    return xr.Dataset(variables, coords={"layer": np.arange(n)})


def similarity(layers=5):
    at = np.arange(layers + 1)
    plain = np.exp(-0.2 * np.abs(at[:, None] - at) * (1 + 0.5 * (np.minimum(at[:, None], at) == 0)))
    variables = {
        "cka": array(("layer", "layer_2"), plain, "linear CKA"),
        "cka_unbiased": array(("layer", "layer_2"), plain**1.1, "linear CKA from unbiased HSIC"),
        "n_points": array((), 2048, "points compared", claim="exact"),
    }
    return xr.Dataset(variables, coords={"layer": at, "layer_2": at})


def predictions(n_bytes=True):
    variables = {
        "perplexity": array((), 3.6555, "perplexity over all predictions"),
        "perplexity_low": array((), 3.5, "lower end of the 95% interval of perplexity"),
        "perplexity_high": array((), 3.8, "upper end of the 95% interval of perplexity"),
        "loss": array((), np.log(3.6555), "cross-entropy of a prediction", "nat"),
        "loss_error": array((), 0.02, "standard error of the loss over cases", "nat"),
        "n_predictions": array((), 65280, "predictions counted", claim="exact"),
    }
    if n_bytes:
        variables["bits_per_byte"] = array((), 0.8123, "bits per byte of text", "bit")
        variables["bits_per_byte_error"] = array((), 0.011, "standard error of bits per byte over cases", "bit")
        variables["n_bytes"] = array((), 150_000, "bytes of text covered", claim="exact")
    return xr.Dataset(variables, attrs={"level": 0.95})


def classified():
    variables = {
        "accuracy": array((), 0.85, "accuracy"),
        "accuracy_low": array((), 0.71, "lower end"),
        "accuracy_high": array((), 0.93, "upper end"),
        "n_cases": array((), 40, "cases", claim="exact"),
    }
    return xr.Dataset(variables, attrs={"level": 0.95})


def errors(exhaustive=False):
    n = 200
    largest = (
        f"largest error over all {n} inputs" if exhaustive else f"lower bound of the largest error, from {n} samples"
    )
    variables = {
        "eam": array(
            (), 0.125, "mean approximation error EAM of the paper", "same as f", "exact" if exhaustive else "measured"
        ),
        "n_cases": array((), n, "cases measured", claim="exact"),
        "largest": array((), 0.75, largest, "same as f", "exact" if exhaustive else "bound"),
    }
    if not exhaustive:
        variables["eam_error"] = array((), 0.01, "standard error of EAM over cases", "same as f")
        variables["eam_low"] = array((), 0.105, "lower end of the 95% interval of EAM", "same as f")
        variables["eam_high"] = array((), 0.145, "upper end of the 95% interval of EAM", "same as f")
        variables["exceedance"] = array((), 0.0149, "share of inputs with a larger error", claim="bound")
    return xr.Dataset(variables, attrs={"level": 0.95, "exhaustive": int(exhaustive)})


def neural(layers=5, neurons=20, repeats=True, permutations=200, seed=2, rivals=None):
    """With `rivals`, intervals in which these layers may be the best."""
    rng = np.random.default_rng(seed)
    n = layers + 1
    ceiling = rng.uniform(0.5, 0.9, neurons)
    r = ceiling * np.sin(np.linspace(0.3, 2.6, n))[:, None] * rng.uniform(0.4, 0.9, (n, neurons))
    p = np.where(r.mean(1) > 0.2, 1 / (1 + permutations), 0.4)
    variables = {
        "predictivity": array(("layer", "neuron"), r, "correlation of held-out prediction and response"),
        "alpha": array(("layer", "neuron"), np.ones((n, neurons)), "ridge penalty, median over folds"),
        "mean_predictivity": array("layer", r.mean(1), "predictivity, mean over neurons"),
    }
    if repeats:
        variables["noise_ceiling"] = array("neuron", ceiling, "correlation that a perfect model would reach")
        variables["normalised_predictivity"] = array(("layer", "neuron"), r / ceiling, "predictivity over the ceiling")
        variables["median_normalised_predictivity"] = array("layer", np.median(r / ceiling, 1), "median over neurons")
    if permutations:
        variables["p_value"] = array("layer", p, "share of permutations that predict as well")
        variables["null_mean"] = array("layer", 0.01 * np.ones(n), "mean predictivity of permuted responses")
    if rivals is not None:
        apart = r.mean(1) - r.mean(1).max()
        above = {"mean_predictivity": r.mean(1) + 0.04, "difference_to_best": np.minimum(apart / 2, -1e-3)}
        above["difference_to_best"][list(rivals)] = 0
        for name, value in {"mean_predictivity": r.mean(1), "difference_to_best": apart}.items():
            variables[name] = array("layer", value, name)
            variables[f"{name}_low"] = array("layer", value - 0.05, f"{name}, low end")
            variables[f"{name}_high"] = array("layer", above[name], f"{name}, high end")
    coords = {"layer": np.arange(n), "neuron": np.arange(neurons)}
    return xr.Dataset(variables, coords=coords, attrs={"folds": 5, "permutations": permutations})


def attention_maps(attended, tokens=14, causal=True, texts=TEXT, n_maps=6, seed=3):
    """Maps of the first heads that are there; the first is the head of layer 2 that looks back one token."""
    rng = np.random.default_rng(seed)
    found = np.argwhere(np.isfinite(attended["distance"].values))
    order = np.argsort(attended["distance"].values[tuple(found.T)])
    chosen = found[order][: min(n_maps, len(found))]
    weight = rng.random((len(chosen), tokens, tokens)) ** 3
    weight[0] = np.eye(tokens, k=-1) + 0.02
    if causal:
        weight = np.tril(weight)
    weight /= weight.sum(-1, keepdims=True)
    why = ["shortest distance", "widest", "most on first position", "lowest normalised entropy"]
    coords = {
        "rank": np.arange(len(chosen)),
        "layer_of": ("rank", attended["layer"].values[chosen[:, 0]]),
        "head_of": ("rank", attended["head"].values[chosen[:, 1]]),
        "why": ("rank", [why[k % 4] for k in range(len(chosen))]),
        "token": np.arange(tokens),
        "token_2": np.arange(tokens),
        "text": ("token", [texts[k % len(texts)] for k in range(tokens)]),
    }
    return xr.Dataset(
        {"weight": array(("rank", "token", "token_2"), weight.astype(np.float32), "attention")}, coords=coords
    )


def measured(
    layers=5, heads=8, causal=True, attends=True, missing=(), name="tiny", texts=TEXT, tokens=14, scores=None, **more
):
    """A whole tree; `more` are groups to add, or None to leave out."""
    model = {
        **{"architecture": "TinyForCausalLM", "parameters": 260032, "n_layers": layers, "d_model": 64},
        **{
            "n_heads": heads if attends else 0,
            "vocabulary": 512,
            "causal": causal,
            "dtype": "float64",
            "attention": "eager",
        },
    }
    data = {"name": name, "cases": 32, "tokens": 2048, "length": [64, 64]}
    attrs = {
        "title": f"{name}, measured",
        "headline": f"{name} holds no surprise.",
        "model": json.dumps(model),
        "data": json.dumps(data),
        "notes": json.dumps(["Eager attention was forced: the default implementation returns no weights."]),
    }
    groups = {"predictions": predictions() if scores is None else scores, "representations": representations(layers)}
    groups["similarity"] = similarity(layers)
    if attends:
        groups["attention"] = attention(layers, heads, missing=missing)
        groups["attention_maps"] = attention_maps(groups["attention"], tokens, causal, texts)
    groups = {name: ds for name, ds in {**groups, **more}.items() if ds is not None}
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=attrs), **{f"/{n}": ds for n, ds in groups.items()}})
