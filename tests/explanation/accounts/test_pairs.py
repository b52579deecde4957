"""Pairs of parts cell by cell against plain loops; what they sum to; the largest; class means; games."""

import itertools
import math

import numpy as np
import pytest
import torch

from account_oracles import Case, Oracle, Weights, derivative, gelu
from oplens.explanation import Bands, CentredLogits, Channels, Margin, Pairs, Waves, Windows, expand
from oplens.models import S4D, S4DConfig
from oplens.operators import pairs as operators_pairs

LENGTHS = [30, 26, 34, 30]
TWO = [(0.08, 0.2), (0.2, 0.5)]

PARTITIONS = {
    "waves": (Waves(), {"waves": True}, True),
    "channels": (Channels(), {"channels": [0, 1]}, True),
    "one channel": (Channels(("b",)), {"channels": [1]}, False),
    "some bands": (Bands(TWO), {"bands": TWO}, False),
    "channels x windows": ((Channels(), Windows(2)), {"channels": [0, 1], "windows": 2}, True),
    "waves x channels": ((Waves(), Channels()), {"waves": True, "channels": [0, 1]}, True),
    "waves x some bands": ((Waves(), Bands(TWO)), {"waves": True, "bands": TWO}, False),
}


def make_model(kind, n_classes=2):
    torch.manual_seed(3)
    architecture = "plain" if kind == "plain" else "reference"
    classes = tuple("xyz"[:n_classes])
    config = S4DConfig(
        2,
        n_classes,
        3,
        4,
        architecture=architecture,
        prenorm=kind == "pre",
        dt_min=0.1,
        dt_max=0.6,
        channels=("a", "b"),
        classes=classes,
    )
    model = S4D(config)
    if kind != "plain":
        torch.nn.init.normal_(model.norms[0].weight, 1, 0.5)
        torch.nn.init.normal_(model.norms[0].bias)
    return model.double()


def make_cases(seed, lengths=LENGTHS):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.5, 1.2, size=(2, n)) for n in lengths]


TRAIN, TEST = make_cases(0), make_cases(1, LENGTHS[:3])
MARGIN = np.array([[-1.0, 1.0]])


def assembled(ds, per_feature):
    """Parts and sources in one matrix: (order, case, [feature], J, J) of parts with parts and with sources; and sources alone."""
    lead = 3 if per_feature else 2
    share, mixed = ds["pair_share"].values, ds["pair_source_share"].values
    n = round(math.sqrt(math.prod(share.shape[lead:])))
    return (
        share.reshape(*share.shape[:lead], n, n),
        mixed.reshape(*share.shape[:lead], n, -1),
        ds["source_pair_share"].values,
    )


def expected_pairs(oracle, by, covers, per_feature):
    found = [oracle.pairs(x, by, covers) for x in TEST]
    names = found[0][1]
    cells = np.stack([cells[:, 0] for cells, _ in found], 1)  # (order, case, J, J, H)
    n = cells.shape[2] - len(names)
    parts, mixed = cells[:, :, :n, :n], cells[:, :, :n, n:]
    if per_feature:
        parts, mixed = np.moveaxis(parts, -1, 2), np.moveaxis(mixed, -1, 2)
    else:
        parts, mixed = parts.sum(-1), mixed.sum(-1)
    return parts, mixed, cells[:, :, n:, n:].sum(-1), names


def check(kind, family, order, partition):
    parts, by, covers = PARTITIONS[partition]
    op = expand(make_model(kind), TRAIN, family=family, order=order)
    ds = op.explain(TEST, by=Pairs(parts))
    per_feature = "waves" in by
    oracle = Oracle(op.model, TRAIN, family, order, MARGIN)
    *expected, names = expected_pairs(oracle, by, covers, per_feature)
    assert ds["source"].values.tolist() == names
    for got, cells in zip(assembled(ds, per_feature), expected, strict=True):
        assert got.shape == cells.shape
        for k in range(order - 1):
            scale = max(np.abs(cells[k]).max(), np.abs(expected[0][k]).max())
            assert np.abs(got[k] - cells[k]).max() <= 1e-10 * scale, (k + 2, got.shape)
    return op, ds


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("family", ["hermite", "taylor"])
@pytest.mark.parametrize("kind", ["plain", "post", "pre"])
def test_every_cell_to_order_five_and_sums(kind, family, partition):
    op, ds = check(kind, family, 5, partition)
    by = PARTITIONS[partition][0]
    shares = op.explain(TEST, by=by).sel(order=slice(2, None))
    seconds = [d for d in ds["pair_share"].dims if d.endswith("_2")]
    rows = ds["pair_share"].sum(seconds) + ds["pair_source_share"].sum("source")
    scale = float(abs(shares["share"]).max())
    assert float(abs(rows - shares["share"]).max()) < 1e-12 * scale
    over = [d for d in ds["pair_source_share"].dims if d not in ("order", "case", "source")]
    sources = ds["source_pair_share"].sum("source_2") + ds["pair_source_share"].sum(over)
    assert float(abs(sources - shares["source_share"]).max()) < 1e-12 * scale


@pytest.mark.parametrize("family", ["hermite", "taylor"])
def test_every_cell_of_order_two_by_the_recurrence_identity(family, monkeypatch):
    check("plain", family, 2, "waves")
    monkeypatch.setattr(operators_pairs, "NEARLY_UNDAMPED", 1e9)
    check("plain", family, 2, "waves")


def test_one_value_per_class_for_centred_logits():
    op = expand(make_model("plain", 3), TRAIN, order=3)
    whole = op.explain(TEST, by=Pairs(Waves()), target=CentredLogits())
    assert whole["pair_share"].dims == ("order", "case", "class", "feature", "wave", "wave_2")
    margin = op.explain(TEST, by=Pairs(Waves()), target=Margin("z", "x"))["pair_share"]
    difference = whole["pair_share"].sel({"class": "z"}) - whole["pair_share"].sel({"class": "x"})
    assert float(abs(difference - margin).max()) < 1e-13 * float(abs(margin).max())
    assert float(abs(whole["pair_share"].sum("class")).max()) < 1e-13 * float(abs(margin).max())


@pytest.mark.parametrize("by", [Waves(), (Channels(), Windows(2))])
@pytest.mark.parametrize("top", [1, 4, 10_000])
def test_top_pairs_are_the_largest_by_sorting(by, top):
    op = expand(make_model("plain"), TRAIN, order=3)
    ds, whole = op.explain(TEST, by=Pairs(by, top=top)), op.explain(TEST, by=Pairs(by))
    share = whole["pair_share"].values
    features = 3 if by == Waves() else 1
    share = share.reshape(2, len(TEST), features, *([math.isqrt(share[0, 0].size // features)] * 2))
    for order, case in itertools.product(range(2), range(len(TEST))):
        content = {}
        for h, i, j in itertools.product(*map(range, share.shape[2:])):
            if i <= j:
                label = f"feature {h} · wave {{}}" if by == Waves() else None
                names = (
                    [label.format(n) for n in (i, j)] if label else [f"{'ab'[n // 2]} · window {n % 2}" for n in (i, j)]
                )
                content[names[0], names[1]] = share[order, case, h, i, j] * (1 if i == j else 2)
        ranked = sorted(content.items(), key=lambda item: -abs(item[1]))[:top]
        got = ds.isel(order=order, case=case)
        assert len(got["rank"]) == len(ranked)
        assert np.allclose(got["pair_share"], [value for _, value in ranked], rtol=1e-12, atol=1e-14)
        for (names, value), a, b, found in zip(
            ranked, got["member"].values, got["member_2"].values, got["pair_share"].values, strict=True
        ):
            assert content[a, b] == pytest.approx(found, rel=1e-12)
            assert (a, b) == names or abs(abs(content[a, b]) - abs(value)) < 1e-12


@pytest.mark.parametrize("by", [Waves(), Channels(), (Waves(), Bands(TWO))])
def test_class_means_are_averages_over_true_classes(by):
    op = expand(make_model("plain"), TRAIN, order=3)
    cases, labels = TEST + TRAIN, ["y", "x", "y", "y", "x", "y", "y"]
    ds, whole = op.explain(cases, labels, by=Pairs(by, mean="class")), op.explain(cases, labels, by=Pairs(by))
    assert ds["class"].values.tolist() == ["x", "y"]
    assert ds["n_cases"].values.tolist() == [2, 5]
    for name in ("pair_share", "pair_source_share", "source_pair_share"):
        for label in "xy":
            rows = [i for i, value in enumerate(labels) if value == label]
            expected = sum(whole[name].values[:, i] for i in rows) / len(rows)
            assert np.abs(ds[name].sel({"class": label}).values - expected).max() < 1e-13 * np.abs(expected).max()


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
@pytest.mark.parametrize("by", [Waves(), Channels()])
def test_an_offset_that_the_encoder_removes_costs_no_digits(by, offset):
    """Raw data far from 0: the parts' means are large, the bias source cancels them, and products of means must not be formed."""
    model = make_model("plain")
    with torch.no_grad():
        model.encoder.bias -= offset * model.encoder.weight.sum(1)
    train, cases = ([x + offset for x in values] for values in (TRAIN, TEST))
    op = expand(model, train, order=2)
    ds, shares = op.explain(cases, by=Pairs(by)), op.explain(cases, by=by).sel(order=[2])
    rows = ds["pair_share"].sum([d for d in ds["pair_share"].dims if d.endswith("_2")]) + ds["pair_source_share"].sum(
        "source"
    )
    # Of the largest cell; 4e-13 when the products of means are subtracted from the sums instead.
    assert float(abs(rows - shares["share"]).max()) < 3e-14 * float(abs(ds["pair_share"]).max())


def test_chunks_do_not_matter(monkeypatch):
    op = expand(make_model("plain"), TRAIN, order=3)
    labels = ["x", "y", "x"]
    asked = [Pairs(Waves()), Pairs((Channels(), Windows(2))), Pairs(Waves(), top=3), Pairs(Channels(), mean="class")]
    whole = [op.explain(TEST, labels, by=by)["pair_share"].values for by in asked]
    monkeypatch.setattr("oplens.explanation.training.BATCH_BYTES", 1)
    fresh = expand(make_model("plain"), TRAIN, order=3)
    for by, expected in zip(asked, whole, strict=True):
        got = fresh.explain(TEST, labels, by=by)["pair_share"].values
        assert np.abs(got - expected).max() < 1e-12 * np.abs(expected).max(), by


def test_one_number_per_case_of_centred_logits_is_that_of_the_predicted_or_own_class():
    op = expand(make_model("plain", 3), TRAIN, order=3)
    cases, labels = TEST + TRAIN, ["y", "x", "z", "y", "x", "x", "y"]
    whole = op.explain(cases, labels, by=Pairs(Waves()), target=CentredLogits())
    means = op.explain(cases, labels, by=Pairs(Waves(), mean="class"), target=CentredLogits())
    assert means["class"].values.tolist() == ["x", "y", "z"]
    for label in "xyz":
        rows = [i for i, value in enumerate(labels) if value == label]
        expected = whole["pair_share"].sel({"class": label}).values[:, rows].mean(1)
        assert (
            np.abs(means["pair_share"].sel({"class": label}).values - expected).max() < 1e-13 * np.abs(expected).max()
        )
    top = op.explain(cases, labels, by=Pairs(Waves(), top=1), target=CentredLogits())
    for case, label in enumerate(whole["predicted"].values):
        cells = whole["pair_share"].sel({"class": label}).values[:, case]
        doubled = cells * np.where(np.eye(cells.shape[-1]), 1, 2)
        for order in range(2):
            flat = doubled[order].ravel()
            assert float(top["pair_share"].values[order, case, 0]) == pytest.approx(
                flat[np.abs(flat).argmax()], rel=1e-12
            )
    assert "predicted" in top.attrs["target"]
    assert "own" in means.attrs["target"]


# Games: what a part's share means, computed without any formula of shares.


def channel_model(n):
    torch.manual_seed(5)
    model = S4D(S4DConfig(n, 2, 3, 4, dt_min=0.1, dt_max=0.6)).double()
    rng = np.random.default_rng(2)
    return model, [rng.normal(0.3, 1, size=(n, 25)) for _ in range(2)]


def test_order_two_shares_are_shapley_values():
    """The game v(S): the degree-2 Taylor logit when only the channels of S enter; the bias always does."""
    n = 5
    model, cases = channel_model(n)
    op = expand(model, cases, family="taylor", order=2)
    ds, pairs = op.explain(cases, by=Channels()), op.explain(cases, by=Pairs(Channels()))
    root = math.sqrt(2 * math.pi)
    for index, raw in enumerate(cases):

        def value(kept, raw=raw):
            case = Case(Weights(model), raw * np.isin(np.arange(n), kept)[:, None], MARGIN)
            return float(np.einsum("hl,hl->", case.omega[0], case.z / 2 + case.z**2 / root))

        games = {s: value(s) for size in range(n + 1) for s in itertools.combinations(range(n), size)}
        for i in range(n):
            others = [j for j in range(n) if j != i]
            shapley = 0.0
            for size in range(n):
                weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
                for s in itertools.combinations(others, size):
                    shapley += weight * (games[tuple(sorted((*s, i)))] - games[s])
            # The bias is a player of its own in a share: a pair with it is split in half, in the game it belongs to the channel.
            with_bias = float(pairs["pair_source_share"].values[0, index, i, 0])
            share = float(ds["share"].values[:, index, i].sum())
            assert abs(share + with_bias - shapley) < 1e-11 * max(abs(v) for v in games.values())


def test_shares_are_shapley_values_with_the_bias_as_a_player():
    n = 4
    model, cases = channel_model(n)
    ds = expand(model, cases, family="taylor", order=2).explain(cases, by=Channels())
    root = math.sqrt(2 * math.pi)
    for index, raw in enumerate(cases):
        case = Case(Weights(model), raw, MARGIN)
        parts, sources = case.zeta({"channels": list(range(n))}, True)
        players = [*parts, sources["bias"]]

        def value(kept, players=players, case=case):
            z = sum((players[i] for i in kept), np.zeros_like(case.z))
            return float(np.einsum("hl,hl->", case.omega[0], z / 2 + z**2 / root))

        count = n + 1
        games = {s: value(s) for size in range(count + 1) for s in itertools.combinations(range(count), size)}
        for i in range(count):
            shapley = 0.0
            for size in range(count):
                weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
                for s in itertools.combinations([j for j in range(count) if j != i], size):
                    shapley += weight * (games[tuple(sorted((*s, i)))] - games[s])
            name = "share" if i < n else "source_share"
            share = float(ds[name].values[:, index, i if i < n else 0].sum())
            assert abs(share - shapley) < 1e-12 * max(abs(v) for v in games.values())


@pytest.mark.parametrize("by", [{"channels": [0, 1, 2]}, {"windows": 3}, {"waves": True}])
def test_full_shares_are_integrated_gradients(by):
    """The ray from no pre-activation to the case's own: sum omega zeta_i integral of g'(eps z), by Simpson's rule."""
    model, cases = channel_model(3)
    part = {"channels": Channels(), "windows": Windows(3), "waves": Waves()}[next(iter(by))]
    ds = expand(model, cases, family="taylor", order=1).explain(cases, by=part)
    eps = np.linspace(0, 1, 401)
    simpson = np.full(401, 2.0)
    simpson[1::2], simpson[[0, -1]] = 4, 1
    simpson /= simpson.sum()
    for index, raw in enumerate(cases):
        case = Case(Weights(model), raw, MARGIN)
        zeta, _ = case.zeta(by, True)
        gradient = sum(w * derivative(e * case.z, 1) for w, e in zip(simpson, eps, strict=True))
        cells = np.einsum("hl,hl,jhl->jh", case.omega[0], gradient, zeta)
        expected = cells.T if "waves" in by else cells.sum(-1)
        got = ds["full_share"].values[index]
        assert np.abs(got - expected).max() < 1e-9 * np.abs(expected).max()


def test_hermite_full_shares_are_integrated_gradients_from_the_mean():
    model, cases = channel_model(3)
    ds = expand(model, cases, order=1).explain(cases, by=Channels())
    oracle = Oracle(model, cases, "hermite", 1, MARGIN)
    parts = [oracle.members(c, {"channels": [0, 1, 2]}, True)[0] for c in oracle.train]
    mean = np.mean([p.mean(-1) for p in parts], 0)
    for index, raw in enumerate(cases):
        case = Case(oracle.w, raw, MARGIN)
        zeta, _ = oracle.members(case, {"channels": [0, 1, 2]}, True)
        scales = np.linspace(0, 1, 401)
        weights = np.full(401, 2.0)
        weights[1::2], weights[[0, -1]] = 4, 1
        weights /= weights.sum()
        m = oracle.m[:, None]
        slope = sum(w * derivative(m + e * (case.z - m), 1) for w, e in zip(weights, scales, strict=True))
        cells = np.einsum("hl,hl,jhl->j", case.omega[0], slope, zeta - mean[..., None])
        assert np.abs(ds["full_share"].values[index] - cells[:3]).max() < 1e-9 * np.abs(cells).max()
        assert abs(float(ds["source_full_share"].values[index, 0]) - cells[3]) < 1e-9 * np.abs(cells).max()
        constant = case.constant + np.einsum("thl,h->t", case.omega, gelu(oracle.m))
        assert abs(float(ds["full_constant"].values[index]) - constant[0]) < 1e-10
