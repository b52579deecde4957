"""The operator as an object: saved and loaded, kept or recalled training data, refusals, mode tables, what a Dataset says of itself."""

import math
import re

import numpy as np
import pytest
import torch
import xarray as xr

from oplens.assembly import assemble
from oplens.data import SequenceData
from oplens.errors import OplensError
from oplens.explanation import (
    Bands,
    CentredLogits,
    Channels,
    ExplicitOperator,
    LayerWaves,
    Margin,
    Pairs,
    Waves,
    Windows,
    choose_cases,
    expand,
    summarise,
)
from oplens.models import S4D, Preprocessing, S4DConfig
from oplens.results import read_results, recomputed_completeness, validate, write_results

CHANNELS, CLASSES = ("a", "b"), ("x", "y")


def make_model(n_layers=1, architecture="plain", seed=0, n_classes=2, **kwargs):
    torch.manual_seed(seed)
    config = S4DConfig(
        2, n_classes, 3, 6, n_layers, architecture, dt_min=0.05, dt_max=0.5, channels=CHANNELS, classes=("x", "y", "z")[:n_classes],
        sampling_rate=50.0, preprocessing=Preprocessing((0.1, 0.2), (1.0, 2.0)), **kwargs,
    )  # fmt: skip
    return S4D(config)


def make_cases(seed=0, n=8, steps=40):
    return np.random.default_rng(seed).normal(0.3, 1, size=(n, 2, steps))


X, TEST = make_cases(0), make_cases(1, 4)
LABELS = ["x", "y"] * 4


@pytest.mark.parametrize("family", ["hermite", "taylor"])
@pytest.mark.parametrize(("n_layers", "architecture"), [(1, "plain"), (1, "reference"), (2, "reference")])
def test_a_round_trip_leaves_nothing_different(tmp_path, family, n_layers, architecture):
    op = expand(make_model(n_layers, architecture), X, LABELS, family=family, order=3)
    op.save(tmp_path / "operator")
    back = ExplicitOperator.load(tmp_path / "operator")
    assert back == op
    assert (back.family, back.order) == (op.family, op.order)
    for by in (Channels(), Windows(2), LayerWaves()):
        a, b = op.explain(TEST, by=by), back.explain(TEST, by=by)
        a.attrs.pop("created_at"), b.attrs.pop("created_at")
        xr.testing.assert_identical(a, b)


def test_equality_notices_every_ingredient(tmp_path):
    op = expand(make_model(), X, LABELS, order=3)
    assert op == expand(make_model(), X, LABELS, order=3)
    others = [
        expand(make_model(seed=1), X, LABELS, order=3),
        expand(make_model(), X, LABELS, order=2),
        expand(make_model(), X, LABELS, family="taylor", order=3),
        expand(make_model(), X[::-1], LABELS, order=3),
        expand(make_model(), X, ["y", "x"] * 4, order=3),
        expand(make_model(), X, order=3),
        expand(make_model(discretisation="bilinear"), X, LABELS, order=3),
    ]
    for other in others:
        assert op != other
    assert op != "an operator"


def test_the_model_is_a_frozen_copy():
    model = make_model()
    op = expand(model, X)
    before = op.explain(TEST)["share"].values
    with torch.no_grad():
        model.decoder.weight.zero_()
    assert np.array_equal(op.explain(TEST)["share"].values, before)
    assert not any(p.requires_grad for p in op.model.parameters())


def test_large_training_sets_are_asked_for_again_and_checked(tmp_path, monkeypatch):
    kept = expand(make_model(), X, LABELS)
    monkeypatch.setattr("oplens.explanation.training.TRAINING_LIMIT", X.size * 4 - 1)
    op = expand(make_model(), X, LABELS)
    assert op.training.X is None
    assert op.training.sequences(op.model.config) is None
    assert op.training.digest == kept.training.digest
    assert op != kept
    op.save(tmp_path)
    assert not (tmp_path / "operator.safetensors").stat().st_size > X.size * 4
    back = ExplicitOperator.load(tmp_path)
    assert back == op
    for operator in (op, back):
        for by in (Channels(), Pairs(Channels())):
            with pytest.raises(OplensError, match="X_train"):
                operator.explain(TEST, by=by)
            changed = X.copy()
            changed[3, 1, 7] += 1e-3
            with pytest.raises(OplensError, match="hash"):
                operator.explain(TEST, by=by, X_train=changed)
            with pytest.raises(OplensError, match="hash"):
                operator.explain(TEST, by=by, X_train=X[:, :, :-1])
    for by in (Waves(), Channels(), Pairs(Channels())):
        got, expected = back.explain(TEST, by=by, X_train=X), kept.explain(TEST, by=by)
        name = "pair_share" if isinstance(by, Pairs) else "share"
        assert np.array_equal(got[name].values, expected[name].values)
    back.explain(TEST, by=Channels())  # its moments are known now
    taylor = expand(make_model(), X, family="taylor")
    assert taylor.training.X is None
    taylor.explain(TEST, by=Bands())  # needs no moments
    deep = expand(make_model(2, "reference"), X)
    deep.explain(TEST, by=Channels())


def test_the_limit_itself_is_kept(monkeypatch):
    monkeypatch.setattr("oplens.explanation.training.TRAINING_LIMIT", X.size * 4)
    assert expand(make_model(), X).training.X is not None


def test_the_hash_knows_values_lengths_and_shape():
    base = expand(make_model(), X).training.digest
    ragged = [*X[:-1], X[-1][:, :-1]]
    zeroed = X.copy()
    zeroed[-1, :, -1] = 0
    hashes = {
        base,
        expand(make_model(), ragged).training.digest,
        expand(make_model(), zeroed).training.digest,
        expand(make_model(), X[:4]).training.digest,
    }
    assert len(hashes) == 4
    assert expand(make_model(), X).explain(TEST).attrs["training_hash"] == base


# Refusals: each is a sentence, raised before work starts.

OP = expand(make_model(), X, LABELS, order=2)
FIRST = expand(make_model(), X, order=1)
DEEP = expand(make_model(2, "reference"), X)
SINGLE = expand(make_model(n_classes=1), X)


def named(channels, rate):
    return SequenceData(TEST, np.full(len(TEST), 40), None, channels, (), rate, "named", "a test")


def unfitted():
    from oplens.estimator import S4DClassifier

    return S4DClassifier()


REFUSALS = {
    "order 0": (lambda: expand(make_model(), X, order=0), "at least 1"),
    "order -1": (lambda: expand(make_model(), X, order=-1), "at least 1"),
    "order True": (lambda: expand(make_model(), X, order=True), "whole number"),
    "order 2.0": (lambda: expand(make_model(), X, order=2.0), "whole number"),
    "order of a deep stack": (lambda: expand(make_model(2, "reference"), X, order=0), "at least 1"),
    "family": (lambda: expand(make_model(), X, family="fourier"), "hermite, taylor"),
    "family of a deep stack": (lambda: expand(make_model(2, "reference"), X, family="fourier"), "hermite, taylor"),
    "a part for a list of partitions": (lambda: assemble(OP, TEST, partitions=Waves()), "give a list"),
    "no model": (lambda: expand("model.pth", X), "load_checkpoint"),
    "unfitted classifier": (lambda: expand(unfitted(), X), "not fitted"),
    "training channels": (lambda: expand(make_model(), make_cases()[:, :1]), "2 input channels"),
    "training labels": (lambda: expand(make_model(), X, ["x"] * 7), "8 cases"),
    "training labels nested": (lambda: expand(make_model(), X, [LABELS]), "8 cases"),
    "training NaN": (lambda: expand(make_model(), X * np.nan), "NaN"),
    "training beyond float32": (lambda: expand(make_model(), X * 1e39), "float32"),
    "empty training set": (lambda: expand(make_model(), X[:0]), ""),
    "channels": (lambda: OP.explain(TEST[:, :1]), "2 input channels"),
    "channels in another order": (lambda: OP.explain(named(("b", "a"), 50.0)), "put them in the model's order"),
    "another rate": (lambda: OP.explain(named(("a", "b"), 128.0)), "reads 50 Hz, the sequences are sampled at 128 Hz"),
    "training at another rate": (lambda: expand(OP.model, named(("a", "b"), 128.0)), "reads 50 Hz"),
    "an order beyond numbers": (lambda: expand(make_model(), X, order=1000).explain(TEST), "lower the order"),
    "transposed": (lambda: OP.explain(TEST.transpose(0, 2, 1)), "n_timepoints"),
    "two dimensions": (lambda: OP.explain(TEST[0]), ""),
    "NaN": (lambda: OP.explain(TEST * np.nan), "NaN"),
    "labels": (lambda: OP.explain(TEST, ["x"]), "4 cases"),
    "label text": (lambda: OP.explain(TEST, "xyxy"), "4 cases"),
    "unknown class": (lambda: OP.explain(TEST, target=Margin("x", "w")), "no class 'w'"),
    "unknown class reversed": (lambda: OP.explain(TEST, target=Margin("w", "x")), "no class 'w'"),
    "same class": (lambda: OP.explain(TEST, target=Margin("x", "x")), "two different classes"),
    "target text": (lambda: OP.explain(TEST, target="x"), "Margin"),
    "target class": (lambda: OP.explain(TEST, target=CentredLogits), "CentredLogits()"),
    "single class": (lambda: SINGLE.explain(TEST), "one class"),
    "single class pairs": (lambda: SINGLE.explain(TEST, by=Pairs(Waves())), "one class"),
    "unknown channel": (lambda: OP.explain(TEST, by=Channels(("a", "C3"))), "no channel 'C3'"),
    "channel twice": (lambda: Channels(("a", "a")), "only once"),
    "no channel": (lambda: Channels(()), "at least one"),
    "channel text": (lambda: Channels("ab"), "tuple of names"),
    "channel number": (lambda: Channels(3), "tuple of names"),
    "channel index": (lambda: OP.explain(TEST, by=Channels((0,))), "no channel 0"),
    "overlapping bands": (lambda: Bands([(0, 5), (4, 8)]), "overlap"),
    "nested bands": (lambda: Bands([(0, 20), (4, 8)]), "overlap"),
    "unsorted overlapping bands": (lambda: Bands([(8, 12), (0, 9)]), "overlap"),
    "empty band": (lambda: Bands([(4, 4)]), "empty"),
    "reversed band": (lambda: Bands([(8, 4)]), "empty"),
    "negative band": (lambda: Bands([(-1, 4)]), "negative"),
    "NaN band": (lambda: Bands([(0, math.nan)]), "empty"),
    "no bands": (lambda: Bands([]), "at least one"),
    "three edges": (lambda: Bands([(1, 2, 3)]), "pairs"),
    "flat edges": (lambda: Bands([1, 2, 3]), "pairs"),
    "band text": (lambda: Bands("alpha"), "pairs"),
    "band above Nyquist": (lambda: OP.explain(TEST, by=Bands([(0, 5), (25, 30)])), "Nyquist, 25"),
    "windows 0": (lambda: Windows(0), "at least 1"),
    "windows -2": (lambda: Windows(-2), "at least 1"),
    "windows True": (lambda: Windows(True), "whole number"),
    "windows 2.5": (lambda: Windows(2.5), "whole number"),
    "nothing": (lambda: OP.explain(TEST, by=()), "at least one kind"),
    "repeated kind": (lambda: OP.explain(TEST, by=(Windows(2), Windows(3))), "only once"),
    "waves twice": (lambda: OP.explain(TEST, by=(Waves(), Waves())), "only once"),
    "layer waves in a product": (lambda: OP.explain(TEST, by=(LayerWaves(), Channels())), "no products"),
    "by text": (lambda: OP.explain(TEST, by="waves"), "Waves()"),
    "by None": (lambda: OP.explain(TEST, by=None), "Waves()"),
    "by class": (lambda: OP.explain(TEST, by=Waves), "Waves()"),
    "by tuple of texts": (lambda: OP.explain(TEST, by=("waves",)), "no part"),
    "pairs in a product": (lambda: OP.explain(TEST, by=(Waves(), Pairs(Channels()))), "no part"),
    "pairs of pairs": (lambda: Pairs(Pairs(Waves())), "Waves()"),
    "pairs of nothing": (lambda: Pairs(()), "at least one kind"),
    "pairs of layer waves": (lambda: OP.explain(TEST, by=Pairs(LayerWaves())), "no pairs"),
    "pairs at order 1": (lambda: FIRST.explain(TEST, by=Pairs(Waves())), "order 2"),
    "pairs of a deep stack": (lambda: DEEP.explain(TEST, by=Pairs(Channels())), "no order axis"),
    "top 0": (lambda: Pairs(Waves(), top=0), "at least 1"),
    "top True": (lambda: Pairs(Waves(), top=True), "whole number"),
    "top 1.5": (lambda: Pairs(Waves(), top=1.5), "whole number"),
    "mean of what": (lambda: Pairs(Waves(), mean="case"), "class"),
    "top and mean": (lambda: Pairs(Waves(), top=3, mean="class"), "choose one"),
    "means without labels": (lambda: OP.explain(TEST, by=Pairs(Waves(), mean="class")), "labels"),
    "means of other labels": (lambda: OP.explain(TEST, list("xyxw"), by=Pairs(Waves(), mean="class")), "no class w"),
    "waves of a deep stack": (lambda: DEEP.explain(TEST), "LayerWaves"),
    "wave products of a deep stack": (lambda: DEEP.explain(TEST, by=(Waves(), Channels())), "LayerWaves"),
    "summary of other cases": (lambda: summarise(OP, OP.explain(TEST), X), "4 cases"),
    "summary labels": (lambda: summarise(OP, OP.explain(TEST), TEST, ["x"]), "4 cases"),
    "choice from other cases": (lambda: choose_cases(OP, OP.explain(TEST), X), "4 cases"),
    "choice of none": (lambda: choose_cases(OP, OP.explain(TEST), TEST, 0), "at least one"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_are_sentences(name):
    call, words = REFUSALS[name]
    with pytest.raises(OplensError) as caught:
        call()
    text = str(caught.value)
    assert words in text
    assert re.search(r"[.)?']$", text), text
    assert " " in text.strip()
    assert len(text) > 30


@pytest.mark.parametrize("op", [OP, DEEP])
def test_sequences_in_other_units_are_warned_of(op):
    by = Channels()
    for scale, word in ((1e-6, "1e-06"), (1e-3, "0.001"), (1e3, "1e+03")):
        with pytest.warns(UserWarning, match=re.escape(f"vary {word} times as much")):
            op.explain(scale * X, by=by)
    dead = TEST * [[1.0], [0.0]]  # a dead channel is no change of units, and a constant case has no spread to compare
    for same in (100 * TEST, TEST / 100, dead, np.ones_like(TEST)):
        op.explain(same, by=by)


@pytest.mark.parametrize(
    ("op", "by", "values"),
    [
        (OP, Waves(), 3 * 4 * 3 * 3),
        (OP, (Channels(), Windows(2)), 3 * 4 * 4),
        (DEEP, LayerWaves(), 4 * 2 * 3 * 4),
        (DEEP, Channels(), 4 * 2),
        (OP, Pairs(Waves()), 4 * 3 * 25),
        (OP, Pairs(Channels()), 4 * 9),
    ],
)
def test_what_does_not_fit_is_told_before_work_starts(op, by, values, monkeypatch):
    for room in ("explain", "pairs"):
        monkeypatch.setattr(
            f"oplens.explanation.accounts.{room}.batches", lambda *args, **kwargs: pytest.fail("work had started")
        )
    monkeypatch.setattr("oplens.explanation.accounts.stacks._traces", lambda *args: pytest.fail("work had started"))
    if isinstance(by, Pairs):  # one case's working set is checked first; let it pass
        monkeypatch.setattr("oplens.explanation.accounts.pairs.check_memory", _only_results)
    with pytest.raises(OplensError, match=rf"\b{values:,} values \(\d+\.\d+ GiB\)") as caught:
        op.explain(TEST, by=by, memory_limit=values * 8 - 1)
    assert "memory_limit" in str(caught.value)
    assert not isinstance(by, Pairs) or ("top=" in str(caught.value) and "mean=" in str(caught.value))


def _only_results(values, limit, call, cure, what="result"):
    from oplens.explanation.accounts.explain import check_memory

    if what == "result":
        check_memory(values, limit, call, cure)


@pytest.mark.parametrize("limit", ["2 GB", None, 0, -1, float("nan"), True, [2**30]])
def test_a_limit_that_is_no_number_of_bytes_is_a_sentence(limit):
    with pytest.raises(OplensError, match="number of bytes above 0"):
        OP.explain(TEST, memory_limit=limit)


def test_a_result_of_exactly_the_limit_is_made():
    assert OP.explain(TEST, memory_limit=3 * 4 * 3 * 3 * 8)["share"].shape == (2, 4, 3, 3)


def test_working_memory_of_one_case_is_told_for_the_largest_pairs_too():
    with pytest.raises(OplensError, match="values") as caught:
        OP.explain(TEST, by=Pairs((Channels(), Windows(20)), top=3), memory_limit=4 * 3 * 41**2 * 8 - 1)
    assert "coarser parts" in str(caught.value)


# Frequency, decay, aliasing: from the recurrence's impulse response, not from the poles.


def impulse(a, length):
    """s(t) of s(t) = a s(t-1) + u(t) for u = (1, 0, 0, ...)."""
    values, s = [], 1.0 + 0j
    for _ in range(length):
        values.append(s)
        s = a * s
    return np.array(values)


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_mode_tables_match_the_impulse_response(method):
    rate, step = 50.0, 0.1
    model = make_model(discretisation=method)
    imag = torch.tensor([[0.0, 5.0, -11.0], [40.0, -70.0, 31.0], [62.0, 200.0, -31.9]])
    with torch.no_grad():
        layer = model.layer(0).kernel
        layer.log_dt.fill_(math.log(step))
        layer.log_A_real.fill_(math.log(0.2))
        layer.A_imag.copy_(imag)
    ds = expand(model, X).explain(TEST)
    length = 4096
    for h, n in np.ndindex(3, 3):
        pole = complex(-0.2, float(imag[h, n]))
        a = np.exp(pole * step) if method == "zoh" else (1 + pole * step / 2) / (1 - pole * step / 2)
        s = impulse(a, length)
        spectrum = np.abs(np.fft.rfft(s.real, 4 * length))
        peak = np.argmax(spectrum) / (4 * length) * rate
        assert abs(float(ds["frequency"][h, n]) - peak) <= 0.1
        fall = np.polyfit(np.arange(200) / rate, np.log(np.abs(s[:200])), 1)[0]
        assert float(ds["decay_time"][h, n]) == pytest.approx(-1 / fall, rel=1e-6)
        # Aliased: the continuous mode turns faster than Nyquist allows, so its discrete one turns at another frequency.
        expected = abs(float(imag[h, n])) * step / (2 * np.pi) > 0.5
        assert bool(ds["aliased"][h, n]) == (expected if method == "zoh" else False)
    assert float(ds["frequency"].max()) <= rate / 2
    assert ds["frequency"].attrs["units"] == "Hz"
    assert ds["decay_time"].attrs["units"] == "s"


def test_an_undamped_mode_never_decays_and_has_no_warning():
    model = make_model()
    with torch.no_grad():
        model.layer(0).kernel.log_A_real[0, 0] = -800.0  # exp underflows: a pole on the axis
    ds = expand(model, X).explain(TEST)
    assert float(ds["decay_time"][0, 0]) == math.inf
    assert float(abs(ds["completeness_residual"]).max()) < 1e-12 * float(ds["sum_abs_terms"].max())


def test_without_a_sampling_rate_frequencies_are_per_step():
    torch.manual_seed(0)
    fast = S4D(S4DConfig(2, 2, 3, 6, dt_min=0.05, dt_max=0.5))
    with_rate = make_model()
    with_rate.load_state_dict(fast.state_dict())
    a, b = expand(fast, X).explain(TEST), expand(with_rate, X).explain(TEST)
    assert np.allclose(a["frequency"] * 50, b["frequency"], rtol=1e-13)
    assert np.allclose(a["decay_time"] / 50, b["decay_time"], rtol=1e-13)
    assert (a["frequency"].attrs["units"], a["decay_time"].attrs["units"]) == ("cycles/step", "steps")
    assert expand(fast, X).explain(TEST, by=Bands())["band_high"].values[-1] == 0.5


# What a Dataset says of itself (docs/schema.md).

GROUPS = [
    ("waves", OP, Waves(), None),
    ("channels", OP, Channels(), CentredLogits()),
    ("channels_bands", OP, (Channels(("b",)), Bands()), None),
    ("windows", OP, Windows(3), None),
    ("waves_channels", OP, (Waves(), Channels()), None),
    ("channels_bands_windows", OP, (Windows(2), Bands([(5, 10)]), Channels()), None),
    ("layers", DEEP, LayerWaves(), CentredLogits()),
    ("channels", DEEP, Channels(), None),
    ("bands", DEEP, Bands([(2, 5)]), None),
    ("waves", expand(make_model(1, "reference"), X), Waves(), None),
]
PAIR_GROUPS = [
    ("pairs_waves", OP, Pairs(Waves()), None),
    ("pairs_channels", OP, Pairs(Channels()), CentredLogits()),
    ("pairs_channels_windows", OP, Pairs((Channels(), Windows(2)), top=3), None),
    ("pairs_waves", OP, Pairs(Waves(), mean="class"), None),
    ("pairs_waves_channels", OP, Pairs((Waves(), Channels())), None),
]


@pytest.mark.parametrize(("group", "op", "by", "target"), GROUPS + PAIR_GROUPS)
def test_datasets_keep_the_schema_and_survive_a_file(tmp_path, group, op, by, target):
    ds = op.explain(TEST, ["x", "y", "x", "y"], by=by, target=target)
    for name, variable in {**ds.data_vars, **{n: c for n, c in ds.coords.items() if n not in ds.dims}}.items():
        if name in ("label", "predicted", "n_steps", "n_cases"):
            continue  # names and counts along `case`
        for attribute in ("units", "long_name", "claim"):
            assert isinstance(variable.attrs.get(attribute), str), (name, attribute)
    for attribute in (
        "created_at",
        "oplens_version",
        "dtype",
        "source",
        "family",
        "order",
        "partition",
        "target",
        "architecture",
        "training_hash",
        "sampling_rate",
        "account",
    ):
        assert attribute in ds.attrs, attribute
    assert ds.attrs["family"] == op.family
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "A test"}), f"/{group}": ds})
    validate(tree)
    back = read_results(write_results(tree, tmp_path / "result.nc"))[group].to_dataset(inherit=False)
    for name, variable in ds.variables.items():
        got = back[name].values
        assert (
            (got == variable.values).all() if variable.dtype.kind in "OUb" else np.array_equal(got, variable.values)
        ), name
        assert back[name].attrs == variable.attrs
    if not isinstance(by, Pairs):
        assert recomputed_completeness(back) < 1e-12


def test_claims_are_exact_for_the_plain_and_conditional_for_the_reference_architecture():
    exact, conditional = OP.explain(TEST), GROUPS[-1][1].explain(TEST)
    for name in ("share", "source_share", "order_0", "remainder", "full_share"):
        assert exact[name].attrs["claim"] == "exact"
        assert conditional[name].attrs["claim"] == "conditional"
    assert exact["truncated_logits"].attrs["claim"] == "truncated"
    assert conditional.attrs["account"].startswith("conditional: gates and norm scales frozen")
    stack = DEEP.explain(TEST, by=Channels())
    assert stack.attrs["account"].startswith("conditional: GELU factors, gates and norm scales frozen")


def test_nothing_is_called_fitted_that_has_no_interval():
    taylor = expand(make_model(), X, LABELS, family="taylor").explain(TEST)
    for name in ("centre", "scale"):
        assert OP.explain(TEST)[name].attrs["claim"] == "measured"
        assert taylor[name].attrs["claim"] == "exact"
    summary = summarise(OP, OP.explain(X, LABELS), X, LABELS)
    assert {variable.attrs["claim"] for variable in summary.data_vars.values()} == {"measured"}


def test_coordinates_name_cases_parts_and_edges():
    ragged = [TEST[0][:, :30], TEST[1], TEST[2][:, :7], TEST[3]]
    ds = OP.explain(ragged, ["x", "y", "x", "y"], by=(Channels(("b", "a")), Bands([(5, 10), (10, 25)]), Windows(4)))
    assert ds["n_steps"].values.tolist() == [30, 40, 7, 40]
    assert ds["label"].values.tolist() == ["x", "y", "x", "y"]
    logits = OP.model(torch.from_numpy(TEST[1].T)[None])
    assert np.abs(ds["logits"].values[1] - logits.numpy()).max() < 1e-12
    assert ds["predicted"].values[1] == CLASSES[int(logits.argmax())]
    assert ds["channel"].values.tolist() == ["b", "a"]
    assert ds["band_low"].values.tolist() == [5, 10]
    assert ds["band_high"].values.tolist() == [10, 25]
    assert ds["window_start"].values.tolist() == [0, 0.25, 0.5, 0.75]
    assert ds["window_stop"].values.tolist() == [0.25, 0.5, 0.75, 1]


def test_labels_of_sequence_data_are_taken_unless_others_are_given():
    from oplens.data import noisy_sinusoids

    data = noisy_sinusoids(n_cases=4, n_timepoints=50)
    torch.manual_seed(0)
    op = expand(S4D(S4DConfig(1, 2, 3, 6, classes=data.classes)), data)
    assert op.training.y.tolist() == data.y.tolist()
    assert op.explain(data)["label"].values.tolist() == data.y.tolist()
    assert op.explain(data, data.y[::-1])["label"].values.tolist() == data.y[::-1].tolist()
    assert "label" not in op.explain(data.X).coords


def test_more_windows_than_steps_leaves_empty_windows():
    ds = OP.explain(TEST[:, :, :3], by=Windows(5))
    assert float(abs(ds["completeness_residual"]).max()) < 1e-13
    taylor = expand(make_model(), X, family="taylor").explain(TEST[:, :, :3], by=Windows(5))
    # step t of 3 lies in window floor(5 t / 3): 0, 1, 3
    assert ((taylor["share"].values[0] != 0) == [True, True, False, True, False]).all()


def test_a_single_step_and_constant_input():
    for cases in (TEST[:, :, :1], np.ones((2, 2, 12))):
        for by in (Waves(), (Channels(), Bands(), Windows(2))):
            op = expand(make_model(), cases, order=3)  # constant training data have variance, single steps too
            ds = op.explain(cases, by=by)
            assert recomputed_completeness(ds) < 1e-12


def test_a_target_of_exactly_zero_has_infinite_cancellation_and_no_warning():
    model = make_model()
    with torch.no_grad():
        model.decoder.weight[1] = model.decoder.weight[0]
        model.decoder.bias[1] = model.decoder.bias[0]
    ds = expand(model, X).explain(TEST)
    assert float(abs(ds["target"]).max()) == 0
    assert not np.isfinite(ds["cancellation_ratio"].values).any()


def test_the_kept_training_set_comes_back_with_the_models_names():
    ragged = [X[0][:, :17], *X[1:]]
    data = expand(make_model(), ragged, LABELS).training.sequences(OP.model.config)
    assert (data.channels, data.classes, data.sampling_rate, data.y.tolist()) == (CHANNELS, CLASSES, 50.0, LABELS)
    for case, expected in zip(data.cases(), ragged, strict=True):
        assert np.array_equal(case, expected.astype(np.float32))
    others = expand(make_model(), X, ["w", "v"] * 4).training.sequences(OP.model.config)
    assert others.classes == ("v", "w")
