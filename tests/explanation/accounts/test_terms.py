"""Every cell of an explanation against plain loops over time and cases (tests/account_oracles.py)."""

import numpy as np
import pytest
import torch

from account_oracles import Oracle
from oplens.explanation import Bands, CentredLogits, Channels, Margin, Waves, Windows, expand
from oplens.models import S4D, Preprocessing, S4DConfig

KINDS = ["plain", "offset", "bilinear", "post", "pre"]
THREE = [(0.0, 5.0), (5.0, 12.5), (12.5, 25.0)]
TWO = [(3.0, 8.0), (8.0, 30.0)]  # leaves out what is below 3; reaches beyond Nyquist, 25

# by, the same for the oracle, whether the parts cover the input
PARTITIONS = {
    "waves": (Waves(), {"waves": True}, True),
    "channels": (Channels(), {"channels": [0, 1, 2]}, True),
    "permuted channels": (Channels(("c", "a", "b")), {"channels": [2, 0, 1]}, True),
    "some channels": (Channels(("c", "a")), {"channels": [2, 0]}, False),
    "bands": (Bands(THREE), {"bands": THREE}, True),
    "octaves": (
        Bands(),
        {"bands": [(0, 3.125), (3.125, 6.25), (6.25, 12.5), (12.5, 25)]},
        True,
    ),
    "some bands": (Bands(TWO), {"bands": TWO}, False),
    "bands up to 12.5": (Bands(THREE[:2]), {"bands": THREE[:2]}, False),
    "bands with a gap": (Bands([THREE[2], THREE[0]]), {"bands": [THREE[2], THREE[0]]}, False),
    "windows": (Windows(3), {"windows": 3}, True),
    "channels x bands": ((Channels(), Bands(THREE)), {"channels": [0, 1, 2], "bands": THREE}, True),
    "some channels x some bands": ((Bands(TWO), Channels(("b",))), {"channels": [1], "bands": TWO}, False),
    "channels x windows": ((Channels(), Windows(2)), {"channels": [0, 1, 2], "windows": 2}, True),
    "bands x windows": ((Bands(TWO), Windows(2)), {"bands": TWO, "windows": 2}, False),
    "channels x bands x windows": (
        (Windows(2), Channels(), Bands(TWO)),
        {"channels": [0, 1, 2], "bands": TWO, "windows": 2},
        False,
    ),
    "waves x channels": ((Waves(), Channels()), {"waves": True, "channels": [0, 1, 2]}, True),
    "waves x some bands": ((Waves(), Bands(TWO)), {"waves": True, "bands": TWO}, False),
    "waves x windows": ((Windows(2), Waves()), {"waves": True, "windows": 2}, True),
    "waves x some channels x windows": (
        (Waves(), Channels(("a",)), Windows(2)),
        {"waves": True, "channels": [0], "windows": 2},
        False,
    ),
}


def make_model(kind, n_classes=3):
    torch.manual_seed(KINDS.index(kind))
    reference = kind in ("post", "pre")
    preprocessing = Preprocessing((0.3, -0.2, 1.0), (1.5, 0.8, 2.0), remove_offset=kind == "offset")
    names = tuple("xyz"[:n_classes])
    config = S4DConfig(
        3, n_classes, 3, 6, architecture="reference" if reference else "plain", prenorm=kind == "pre", dt_min=0.05, dt_max=0.6,
        discretisation="bilinear" if kind == "bilinear" else "zoh", channels=("a", "b", "c"), classes=names,
        sampling_rate=50.0, preprocessing=preprocessing,
    )  # fmt: skip
    model = S4D(config)
    with torch.no_grad():
        layer = model.layer(0).kernel
        layer.A_imag[:, 1] *= -1  # negative imaginary parts are met in trained checkpoints
        layer.A_imag[:, 2] *= 3  # aliased in some features
        if reference:
            model.norms[0].weight.normal_(1, 0.5)
            model.norms[0].bias.normal_()
    return model.double()


def make_cases(seed, n, low=23, high=42):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.6, 1.3, size=(3, int(length))) for length in rng.integers(low, high, n)]


TRAIN, TEST = make_cases(0, 6), make_cases(1, 4)
CENTRED = np.eye(3) - 1 / 3
MARGIN = np.array([[-1.0, 0.0, 1.0]])


def compare(ds, found, name, scale, tolerance=1e-10):
    expected = np.asarray(found)
    assert ds[name].shape == expected.shape, name
    apart = np.abs(ds[name].values - expected).max()
    assert apart <= tolerance * scale, (name, apart, scale)


def expected_arrays(oracle, by, covers, per_class, wave_shape):
    """The oracle's cases stacked as `explain` lays them out."""
    cases = [oracle.terms(x, by, covers)[0] for x in TEST]
    arrays = {}
    for name in cases[0]:
        axis = 1 if name in ("share", "source_share") else 0
        array = np.stack([case[name] for case in cases], axis)
        if name != "logits" and not per_class:
            array = array.squeeze(axis + 1)
        arrays[name] = array
    for name in ("share", "full_share"):
        axes = arrays[name].ndim - (2 if by.get("waves") else 1)
        arrays[name] = arrays[name].reshape(*arrays[name].shape[:axes], *wave_shape)
    return arrays


def part_shape(by):
    shape = [3, 3] if by.get("waves") else []
    shape += [len(by[name]) for name in ("channels", "bands") if name in by]
    return shape + ([by["windows"]] if "windows" in by else [])


def check(kind, family, order, partition, target, directions, names=None):
    parts, by, covers = PARTITIONS[partition]
    model = make_model(kind)
    ds = expand(model, TRAIN, family=family, order=order).explain(TEST, by=parts, target=target)
    oracle = Oracle(model, TRAIN, family, order, directions)
    per_class = len(directions) > 1
    arrays = expected_arrays(oracle, by, covers, per_class, part_shape(by))
    _, sources = oracle.terms(TEST[0], by, covers)
    assert ds["source"].values.tolist() == sources
    scale = float(ds["sum_abs_terms"].max())
    for name, array in arrays.items():
        compare(ds, array, name, scale)
    absolute = sum(
        np.abs(arrays[n]).reshape(*arrays[n].shape[: 2 + per_class], -1).sum((0, -1)) for n in ("share", "source_share")
    )
    absolute = absolute + np.abs(arrays["order_0"]) + np.abs(arrays["remainder"])
    compare(ds, absolute, "sum_abs_terms", scale)
    compare(ds, absolute / np.abs(arrays["target"]), "cancellation_ratio", float(ds["cancellation_ratio"].max()), 1e-8)
    return ds, oracle, arrays


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("family", ["hermite", "taylor"])
@pytest.mark.parametrize("kind", ["plain", "post", "pre"])
def test_every_cell_to_order_five(kind, family, partition):
    check(kind, family, 5, partition, CentredLogits(), CENTRED)


@pytest.mark.parametrize("partition", ["waves", "some channels x some bands", "waves x some channels x windows"])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["plain", "offset", "bilinear", "post", "pre"])
def test_every_cell_of_a_margin_at_every_order(kind, order, partition):
    ds, _, _ = check(kind, "hermite", order, partition, Margin("z", "x"), MARGIN)
    assert ds["share"].dims[:2] == ("order", "case")
    assert "class" not in ds["share"].dims


@pytest.mark.parametrize("family", ["hermite", "taylor"])
@pytest.mark.parametrize("kind", ["plain", "offset", "post", "pre"])
def test_truncated_logits_are_sums_of_orders(kind, family):
    model = make_model(kind)
    ds = expand(model, TRAIN, family=family, order=4).explain(TEST, by=Windows(2))
    oracle = Oracle(model, TRAIN, family, 4, np.eye(3))
    for case, x in enumerate(TEST):
        terms, _ = oracle.terms(x, {"windows": 2})
        per_order = terms["share"].sum(-1) + terms["source_share"].sum(-1)  # (order, class)
        cut = terms["order_0"] + np.cumsum(per_order, 0)
        scale = np.abs(per_order).sum()
        assert np.abs(ds["truncated_logits"].values[:, case] - cut).max() < 1e-10 * scale
        assert np.abs(cut[-1] + terms["remainder"] - terms["logits"]).max() < 1e-10 * scale


def test_centre_and_scale_are_those_of_the_training_cases_each_weighing_the_same():
    model = make_model("plain")
    op = expand(model, TRAIN, order=3)
    oracle = Oracle(model, TRAIN, "hermite", 3, MARGIN)
    assert np.abs(op.expansion.centre.numpy() - oracle.m).max() < 1e-12
    assert np.abs(op.expansion.variance.numpy() - oracle.v).max() < 1e-12
    assert np.abs(op.expansion.coefficients.numpy() - oracle.d).max() < 1e-12
    pooled = np.concatenate([c.z for c in oracle.train], -1).mean(-1)
    assert np.abs(pooled - oracle.m).max() > 1e-3  # weighing steps the same instead would be noticed
    ds = op.explain(TEST, by=Channels())
    assert np.abs(ds["centre"].values - oracle.m).max() < 1e-12
    assert np.abs(ds["scale"].values ** 2 - oracle.v).max() < 1e-12


def test_training_is_rounded_to_float32_before_it_is_fitted():
    model = make_model("plain")
    rounded = [x.astype(np.float32).astype(float) for x in TRAIN]
    assert expand(model, TRAIN) == expand(model, rounded)


def test_a_padded_array_equals_the_list_of_cases():
    model = make_model("offset")
    op = expand(model, TRAIN)
    for by in (Waves(), Bands(TWO), (Channels(), Windows(3))):
        whole = op.explain(TEST, by=by)
        for i, x in enumerate(TEST):
            alone = op.explain(x[None], by=by)
            scale = float(whole["sum_abs_terms"].max())
            for name in ("share", "source_share", "full_share", "remainder", "target"):
                at = {"case": slice(i, i + 1)}
                assert np.abs(alone[name].values - whole.isel(at)[name].values).max() <= 1e-12 * scale, (by, name)


@pytest.mark.parametrize(
    ("length", "bin_", "edge"), [(100, 29, 14.5), (200, 29, 7.25), (500, 37, 3.7), (100, 20, 10.0)]
)
def test_bins_on_an_edge_belong_to_the_upper_band(length, bin_, edge):
    """29 * 50 / 100 is 14.5, but 29 * (1 / 100) * 50 rounds below it: the bin would fall into the band that ends there."""
    model = make_model("plain")
    x = (
        np.cos(2 * np.pi * bin_ * np.arange(length) / length)[None, None].repeat(3, 1)
        + np.array([0.3, -0.2, 1.0])[:, None]
    )
    full = np.abs(
        expand(model, x, family="taylor").explain(x, by=Bands([(0.1, edge), (edge, 25)]))["full_share"].values
    )
    assert (full[..., 0] < 1e-8 * full[..., 1]).all()
