"""The survey of a whole model: models with attention and predictions known beforehand, dense definitions, and no trace of batches or padding."""

import importlib.util
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import norm, t

from oplens.data.sequences import as_sequences
from oplens.data.tokens import Tokens, as_tokens
from oplens.errors import ArgumentError, DataError
from oplens.measurement import layers, survey, two_nn
from oplens.measurement.batches import Inputs
from oplens.measurement.maps import choose_case, choose_heads
from oplens.measurement.sentences import headline
from oplens.measurement.survey import measure
from oplens.models import S4D, S4DConfig, Transformer, TransformerConfig
from oplens.models.own_recorders import S4DRecorder, TransformerRecorder
from oplens.models.recording import Recording
from oplens.results import read_results, validate, write_results

VOCABULARY = 11


def uniform(n):
    return torch.tril(torch.ones(n, n, dtype=torch.float64)) / torch.arange(1, n + 1)[:, None]


def previous(n):
    A = torch.diag(torch.ones(n - 1, dtype=torch.float64), -1)
    A[0, 0] = 1
    return A


def first(n):
    A = torch.zeros(n, n, dtype=torch.float64)
    A[:, 0] = 1
    return A


def own(n):
    return torch.eye(n, dtype=torch.float64)


@dataclass(frozen=True)
class Fake:
    """Three layers: uniform, previous-token and first-token heads; none; two heads. NaN wherever there is padding."""

    noise: float = 0.0
    changes: dict[str, Any] = field(default_factory=dict)
    predicts_next: bool = True
    max_length: int | None = 200
    name: str = "fake"
    kind: str = "tokens"
    n_layers: int = 3
    causal: bool = True
    vocabulary: int = VOCABULARY
    d_input: None = None
    notes: tuple[str, ...] = ("A note of the model.",)

    @property
    def facts(self):
        return {"architecture": "fake", "dtype": "float64"}

    @property
    def tables(self):
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(VOCABULARY, d, generator=generator, dtype=torch.float64) for d in (6, 6, 4, VOCABULARY)]

    def states(self, ids):
        """Embedding, embedding and step, constant, sums of the past: (length, d) of one case."""
        embed, second, last, _ = self.tables
        steps = torch.arange(len(ids), dtype=torch.float64)[:, None]
        generator = torch.Generator().manual_seed(int(ids.sum()))
        rounding = self.noise * torch.randn(len(ids), 6, generator=generator, dtype=torch.float64)
        return [
            embed[ids],
            second[ids] + 0.1 * torch.sin(steps) + rounding,
            torch.full((len(ids), 5), 0.3, dtype=torch.float64),
            torch.tanh(last[ids].cumsum(0)),
        ]

    def logits(self, ids):
        return self.tables[3][ids]

    def record(self, x, mask=None):
        mask = torch.ones(x.shape, dtype=torch.bool) if mask is None else mask.bool()
        batch, length = x.shape
        heads = [(uniform, previous, first), None, (own, uniform)]
        attentions = [
            None if h is None else torch.full((batch, len(h), length, length), torch.nan, dtype=torch.float64)
            for h in heads
        ]
        hidden = [torch.full((batch, length, d), torch.nan, dtype=torch.float64) for d in (6, 6, 5, 4)]
        output = torch.full((batch, length, VOCABULARY), torch.nan, dtype=torch.float64)
        for case in range(batch):
            n = int(mask[case].sum())
            assert mask[case, :n].all(), "padding stands on the right"
            for weights, makers in zip(attentions, heads, strict=True):
                for head, make in enumerate(makers or ()):
                    weights[case, head, :n, :n] = make(n)
            for state, value in zip(hidden, self.states(x[case, :n]), strict=True):
                state[case, :n] = value
            output[case, :n] = self.logits(x[case, :n])
        recording = {"mask": mask, "attentions": tuple(attentions), "hidden": tuple(hidden), "output": output}
        return Recording(**recording | {name: change(recording[name]) for name, change in self.changes.items()})

    def visible(self, layer, length):
        return None


LENGTHS = (7, 12, 5, 12, 3, 9, 20)


def ragged(seed=0, vocabulary=VOCABULARY, lengths=LENGTHS):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocabulary, n).tolist() for n in lengths]


def of_cases(rows, counts=None):
    """Ratio over cases with its standard error and Student interval, from the definition."""
    s, n = np.array(rows, float), np.ones(len(rows)) if counts is None else np.array(counts, float)
    r = s.sum() / n.sum()
    K = n.sum() ** 2 / (n**2).sum()
    error = np.sqrt(K / (K - 1) * ((s - r * n) ** 2).sum()) / n.sum()
    half = t.ppf(0.975, K - 1) * error
    return r, error, r - half, r + half


def test_heads_that_are_known_have_the_statistics_that_are_known():
    ds = measure(Fake(), ragged(), batch_size=3)["attention"].to_dataset()
    assert ds["layer"].values.tolist() == [1, 3]
    assert ds["head"].values.tolist() == [0, 1, 2]
    n = np.array(LENGTHS)
    harmonic = np.array([sum(1 / k for k in range(1, m + 1)) for m in LENGTHS])
    entropies = np.array([sum(np.log(k) for k in range(1, m + 1)) for m in LENGTHS])
    expected = {
        ("entropy", 1, 0): (entropies, n),
        ("entropy_sum", 1, 0): (entropies, None),
        ("normalised_entropy", 1, 0): (n - 1, n - 1),
        ("distance", 1, 0): (n * (n - 1) / 4, n),
        ("first_mass", 1, 0): (harmonic, n),
        ("distance", 1, 1): (n - 1, n),
        ("first_mass", 1, 1): (0 * n + 2, n),
        ("entropy", 1, 1): (0 * n, n),
        ("distance", 1, 2): (n * (n - 1) / 2, n),
        ("first_mass", 1, 2): (n, n),
        ("previous_mass", 1, 0): (harmonic - 1, n - 1),
        ("previous_mass", 1, 1): (n - 1, n - 1),
        ("previous_mass", 3, 0): (0 * n, n - 1),
        ("effective_rank", 1, 2): (0 * n + 1, None),
        ("numerical_rank", 1, 1): (n - 1, None),
        ("stable_rank", 1, 1): (n / 2, None),
        ("eigenvalue_effective_rank", 1, 1): (0 * n + 1, None),
        ("effective_rank", 3, 0): (n, None),
        ("relative_rank", 3, 0): (0 * n + 1, None),
        ("distance", 3, 1): (n * (n - 1) / 4, n),
    }
    for (name, layer, head), (sums, counts) in expected.items():
        found = ds.sel(layer=layer, head=head)
        values = [float(found[name + end]) for end in ("", "_error", "_low", "_high")]
        np.testing.assert_allclose(
            values, of_cases(sums, counts), rtol=1e-10, atol=1e-10, err_msg=f"{name} {layer} {head}"
        )
    root, ones = 2**0.5, n - 2  # singular values of a previous-token head: sqrt 2, n - 2 ones, 0
    p, q = root / (root + ones), 1 / (root + ones)
    rank = np.exp(-p * np.log(p) - ones * q * np.log(q))
    assert float(ds["effective_rank"].sel(layer=1, head=1)) == pytest.approx(rank.mean(), rel=1e-12)
    assert np.isnan(ds["distance"].sel(layer=3, head=2))
    assert int(ds["n_rows"].sel(layer=1, head=0)) == sum(LENGTHS)


def counted(rows):
    """Tokens whose bytes are known: as many as each token's number and one more."""
    tokens = as_tokens(rows)
    n_bytes = np.array([sum(k + 1 for k in row[1:]) for row in rows])
    return Tokens(tokens.ids, tokens.lengths, n_bytes)


def test_perplexity_and_bits_are_those_of_a_plain_loop():
    fake, rows = Fake(), ragged()
    ds = measure(fake, counted(rows), batch_size=4)["predictions"].to_dataset()
    nats, counts, sizes = [], [], []
    for row in rows:
        scores = fake.logits(torch.tensor(row)).numpy()
        losses = [np.log(np.exp(scores[k]).sum()) - scores[k, row[k + 1]] for k in range(len(row) - 1)]
        nats.append(sum(losses))
        counts.append(len(losses))
        sizes.append(sum(k + 1 for k in row[1:]))
    loss, error, low, high = of_cases(nats, counts)
    values = [float(ds[name]) for name in ("loss", "loss_error", "perplexity", "perplexity_low", "perplexity_high")]
    np.testing.assert_allclose(values, [loss, error, *np.exp([loss, low, high])], rtol=1e-12)
    bits, spread, *_ = of_cases(np.array(nats) / np.log(2), sizes)
    assert [float(ds["bits_per_byte"]), float(ds["bits_per_byte_error"])] == pytest.approx([bits, spread], rel=1e-12)
    assert (int(ds["n_predictions"]), int(ds["n_bytes"])) == (sum(counts), sum(sizes))


def test_special_tokens_cost_no_bits():
    """A token that ends a text, as the tokenizer puts it there: its cost is in perplexity alone, whatever the batch."""
    fake, rows = Fake(), ragged()
    tokens = counted(rows)
    text = (tokens.ids != 4) & tokens.mask
    n_bytes = np.array([sum(k + 1 for k in row[1:] if k != 4) for row in rows])
    assert (tokens.ids == 4).sum() > 3
    tokens = Tokens(tokens.ids, tokens.lengths, n_bytes, text_mask=text)
    nats = 0.0
    for row in rows:
        logs = torch.log_softmax(fake.logits(torch.tensor(row)), -1)
        nats -= sum(float(logs[k, following]) for k, following in enumerate(row[1:]) if following != 4)
    for size in (1, 3):
        ds = measure(fake, tokens, batch_size=size)["predictions"].to_dataset()
        assert float(ds["bits_per_byte"]) == pytest.approx(nats / np.log(2) / n_bytes.sum(), rel=1e-12)
        assert float(ds["loss"]) == pytest.approx(float(measure(fake, rows)["predictions"]["loss"]), rel=1e-12)


def test_scores_are_turned_into_probabilities_piece_by_piece(monkeypatch):
    whole = measure(Fake(), ragged())["predictions"].to_dataset()
    monkeypatch.setattr(survey, "_LOGITS", 3 * VOCABULARY)
    assert measure(Fake(), ragged())["predictions"].to_dataset().equals(whole)


def cloud(fake, rows, layer):
    return np.concatenate([fake.states(torch.tensor(row))[layer].numpy() for row in rows])


def hsic(K, L):
    """HSIC_1 of Song et al. from its definition, diagonals removed."""
    n = len(K)
    K, L = K - np.diag(np.diag(K)), L - np.diag(np.diag(L))
    one = np.ones(n)
    terms = np.trace(K @ L) + one @ K @ one * (one @ L @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ K @ L @ one)
    return terms / (n * (n - 3))


@pytest.mark.parametrize("whole", [True, False])
def test_similarity_is_that_of_the_dense_definition(monkeypatch, whole):
    """Also on the sample, where moments of all pairs would cost too much: here it holds all points."""
    monkeypatch.setattr(survey, "affordable", lambda *_: whole)
    fake, rows = Fake(), ragged()
    ds = measure(fake, rows, batch_size=2)["similarity"].to_dataset()
    assert ds.attrs["points"] == ("all points" if whole else "a uniform sample of 68 of 68 points")
    points = [cloud(fake, rows, layer) for layer in range(4)]
    for k, other in [(0, 1), (1, 3), (3, 0), (1, 1)]:
        x, y = (p - p.mean(0) for p in (points[k], points[other]))
        plain = ((x.T @ y) ** 2).sum() / np.sqrt(((x.T @ x) ** 2).sum() * ((y.T @ y) ** 2).sum())
        K, L = x @ x.T, y @ y.T
        at = {"layer": k, "layer_2": other}
        assert float(ds["cka"].sel(at)) == pytest.approx(plain, rel=1e-10)
        assert float(ds["cka_unbiased"].sel(at)) == pytest.approx(
            hsic(K, L) / np.sqrt(hsic(K, K) * hsic(L, L)), rel=1e-9
        )
    assert np.isnan(ds["cka"].sel(layer=2)).all()
    assert list(ds.attrs["undefined"]) == ["layer 2: the same at all points; nothing is similar to a constant."]
    assert int(ds["n_points"]) == sum(LENGTHS)


def test_similarity_on_a_sample_is_that_of_its_points(monkeypatch):
    monkeypatch.setattr(survey, "affordable", lambda *_: False)
    fake, rows = Fake(), ragged()
    tree = measure(fake, rows, sample=30, seed=5)
    draws = np.random.Generator(np.random.PCG64(5)).random(sum(LENGTHS))
    kept = np.sort(np.argsort(draws)[:30])
    x, y = (cloud(fake, rows, layer)[kept] for layer in (0, 3))
    x, y = x - x.mean(0), y - y.mean(0)
    plain = ((x.T @ y) ** 2).sum() / np.sqrt(((x.T @ x) ** 2).sum() * ((y.T @ y) ** 2).sum())
    assert float(tree["similarity"]["cka"].sel(layer=0, layer_2=3)) == pytest.approx(plain, rel=1e-10)
    note = "Similarity of layers is measured on a uniform sample of 30 of 68 points."
    assert note in json.loads(tree.attrs["notes"])
    assert "similarity" not in measure(fake, rows, similarity=False).children


def test_dimensions_are_those_of_the_dense_points():
    fake, rows = Fake(), ragged()
    ds = measure(fake, rows, batch_size=2)["representations"].to_dataset()
    for layer in (0, 1, 3):
        x = cloud(fake, rows, layer)
        sigma, centred = (np.linalg.svd(p, compute_uv=False) for p in (x, x - x.mean(0)))
        values = {
            "d_int": sigma.sum() ** 2 / (sigma**2).sum(),
            "participation_ratio": (centred**2).sum() ** 2 / (centred**4).sum(),
            "stable_rank": (centred**2).sum() / centred[0] ** 2,
            "n_points": len(x),
            "n_sampled": len(np.unique(x.round(9), axis=0)),
            "n_repeated": len(x) - len(np.unique(x.round(9), axis=0)),
        }
        for name, value in values.items():
            assert float(ds[name].sel(layer=layer)) == pytest.approx(value, rel=1e-10), (name, layer)
        line = float(two_nn(x).dimension)
        assert float(ds["two_nn"].sel(layer=layer)) == pytest.approx(line, rel=1e-10)


def test_what_has_no_value_is_nan_with_the_reason():
    ds = measure(Fake(), ragged())["representations"].to_dataset()
    for name in ("d_int", "participation_ratio", "two_nn", "two_nn_low", "mle", "mle_error"):
        assert np.isnan(ds[name].sel(layer=2)), name
    reasons = list(ds.attrs["undefined"])
    assert any("layer 2" in line and "all 68 points are equal up to" in line for line in reasons)
    assert any(line.startswith("layer 2, TwoNN") and "1 different points" in line for line in reasons)
    assert np.isnan(ds["mle"].sel(layer=0))  # 11 different embeddings, 22 are needed
    assert int(ds["n_sampled"].sel(layer=0)) == VOCABULARY


def test_copies_that_differ_by_rounding_are_one_point():
    """Equal beginnings give equal states but for their last digits: neighbours at 1e-16 would bring the dimension to 0."""
    rows = [row * 2 for row in [*ragged(), *ragged(), *ragged(1), *ragged(1)]]
    exact, rounded = (
        measure(Fake(noise=noise), rows, batch_size=5)["representations"].to_dataset().sel(layer=1)
        for noise in (0.0, 1e-15)
    )
    assert int(exact["n_repeated"]) == int(rounded["n_repeated"]) > 100
    for name in ("two_nn", "two_nn_likelihood", "mle"):
        assert float(rounded[name]) == pytest.approx(float(exact[name]), rel=1e-9)
        assert float(exact[name]) > 0.3


def transformer():
    torch.manual_seed(3)
    config = TransformerConfig(
        d_output=9, vocabulary=9, causal=True, readout="position", d_model=16, n_heads=2, d_ffn=8
    )
    return TransformerRecorder.of(Transformer(config))


@pytest.fixture(scope="module")
def invariance():
    """Two recorders and what batches of 7 give."""
    found = {}
    for name, recorder, size in (("fake", Fake(noise=1e-16), VOCABULARY), ("transformer", transformer(), 9)):
        rows = [*ragged(2, size), *ragged(3, size)]
        found[name] = recorder, rows, measure(recorder, rows, batch_size=7, sample=40, maps=3)
    return found


@pytest.mark.parametrize("name", ["fake", "transformer"])
@pytest.mark.parametrize("size", [1, 3])
def test_no_number_depends_on_batches_or_padding(invariance, name, size):
    recorder, rows, reference = invariance[name]
    tree = measure(recorder, rows, batch_size=size, sample=40, maps=3)  # one at a time, nothing is padded
    assert set(tree.children) == set(reference.children)
    for group in tree.children:
        for variable, value in tree[group].data_vars.items():
            expected = reference[group][variable]
            np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-10, err_msg=f"{group} {variable}")
    assert tree.attrs["headline"] == reference.attrs["headline"]


def test_a_sample_is_of_the_same_positions_in_all_layers():
    tree = measure(Fake(), ragged(), sample=30)
    ds = tree["representations"].to_dataset()
    assert (ds["n_sampled"] + ds["n_repeated"]).values.tolist() == [30] * 4
    other = measure(Fake(), ragged(), sample=30, seed=1)["representations"].to_dataset()
    assert float(other["two_nn"].sel(layer=3)) != float(ds["two_nn"].sel(layer=3))
    assert other.attrs["seed"] == 1


def test_the_first_cases_alone_have_their_ranks_measured(monkeypatch):
    rows = ragged()
    few = measure(Fake(), rows, ranks_cases=4, batch_size=3)
    alone, all_cases = (measure(Fake(), r)["attention"].to_dataset() for r in (rows[:4], rows))
    ds = few["attention"].to_dataset()
    for name in ("effective_rank", "effective_rank_error", "stable_rank_low", "undefined"):
        np.testing.assert_allclose(ds[name], alone[name], rtol=1e-12)
    np.testing.assert_allclose(ds["distance"], all_cases["distance"], rtol=1e-12)
    assert ds.attrs["ranked_cases"] == 4
    assert "Ranks of attention are of the first 4 of 7 cases." in json.loads(few.attrs["notes"])
    assert "effective_rank" not in measure(Fake(), rows, ranks_cases=0)["attention"]
    # 5 heads and 3 n^3 a matrix: 15 (7^3 + 12^3 + 5^3) fit.
    monkeypatch.setattr(survey, "_RANK_OPERATIONS", 15 * (7**3 + 12**3 + 5**3) + 1)
    assert measure(Fake(), rows)["attention"].attrs["ranked_cases"] == 3
    monkeypatch.setattr(survey, "_RANK_OPERATIONS", 1)
    assert measure(Fake(), rows)["attention"].attrs["ranked_cases"] == 2


def test_moments_of_pairs_are_kept_while_they_are_few():
    assert layers.affordable([64] * 6, 65_536)
    assert not layers.affordable([4096] * 33, 10)  # 70 GiB
    assert not layers.affordable([768] * 13, 10**9)  # too many products


def test_maps_show_heads_that_stand_out_in_one_case():
    lengths = (5, 15, 70, 90)
    tree = measure(Fake(), ragged(lengths=lengths), maps=4, batch_size=2)
    maps = tree["attention_maps"].to_dataset()
    assert maps["weight"].dims == ("rank", "token", "token_2")
    chosen = list(
        zip(maps["layer_of"].values.tolist(), maps["head_of"].values.tolist(), maps["why"].values.tolist(), strict=True)
    )
    assert chosen[:3] == [
        (3, 0, "shortest distance"),
        (1, 2, "most on first position"),
        (1, 1, "most on the previous token"),
    ]
    assert chosen[3][2] == "widest"
    for rank, make in enumerate((own, first, previous, uniform)):
        np.testing.assert_array_equal(maps["weight"][rank], make(64).float())
    assert maps.attrs["case"] == "case 2, its first 64 of 70 positions run alone"
    assert maps["text"].values.tolist() == [str(k) for k in ragged(lengths=lengths)[2][:64]]
    assert "attention_maps" not in measure(Fake(), ragged(), maps=0)
    assert choose_case(np.array([4, 9, 9, 2])) == 1


def test_a_rule_that_another_was_faster_by_gives_its_next_head():
    values = {"distance": [[3.0, 1.0, 2.0], [9.0, np.nan, 4.0]], "first_mass": [[0.2, 0.9, 0.8], [0.1, np.nan, 0.3]]}
    ds = xr.Dataset({k: (("layer", "head"), v) for k, v in values.items()}, coords={"layer": [2, 5], "head": [0, 1, 2]})
    assert choose_heads(ds, 4) == [
        (2, 1, "shortest distance"),
        (2, 2, "most on first position, number 2"),
        (5, 0, "longest distance"),
        (2, 0, "shortest distance, number 3"),
    ]
    assert len(choose_heads(ds, 99)) == 5


def test_the_result_is_a_valid_file(tmp_path):
    done = []
    tree = measure(
        Fake(), counted(ragged()), batch_size=3, title="Known heads", progress=lambda *args: done.append(args)
    )
    assert done == [(3, 7), (6, 7), (7, 7)]
    validate(tree)
    write_results(tree, tmp_path / "a.nc")
    back = read_results(tmp_path / "a.nc")
    assert back.attrs["title"] == "Known heads"
    assert json.loads(back.attrs["data"])["length"] == [3, 20]
    assert json.loads(back.attrs["model"])["causal"] is True
    assert json.loads(back.attrs["notes"])[0] == "A note of the model."
    ds = back["predictions"].to_dataset()
    assert (
        f"Perplexity {float(ds.perplexity):.5g} (95 % interval {float(ds.perplexity_low):.5g} to"
        in back.attrs["headline"]
    )
    assert f"over 61 predictions in 7 cases; {float(ds.bits_per_byte):.5g} bits per byte." in back.attrs["headline"]
    assert {"seed", "dtype", "source", "undefined"} <= set(back["representations"].attrs)


def test_memory_does_not_grow_with_the_cases():
    fake, sizes = Fake(), []
    for n_batches in (2, 12):
        data = Inputs.of("test", fake, ragged(lengths=(20,) * 4 * n_batches))
        totals = survey.Totals(50, 0, True)
        for batch in data.batches(4):
            totals = totals.add(fake, fake.record(batch.x), batch, 4, 20 * 4 * n_batches)
        sizes.append(len(pickle.dumps(totals)))
    assert sizes[1] < 1.02 * sizes[0]


def s4d(pooling="mean"):
    torch.manual_seed(0)
    more = {} if pooling == "mean" else {"readout": "polynomial", "degree": 2, "pooling": pooling}
    return S4DRecorder.of(S4D(S4DConfig(d_input=2, n_classes=3, d_model=4, d_state=8, classes=("a", "b", "c"), **more)))


def labelled(recorder, wrong):
    """Six sequences labelled as the model sees them, the first `wrong` otherwise."""
    rng = np.random.default_rng(1)
    data = as_sequences([rng.standard_normal((2, n)) for n in (12, 20, 9, 20, 7, 15)])
    found = [recorder.record(torch.from_numpy(x.T[None].copy())).output.argmax().item() for x in data.cases()]
    y = np.array(["abc"[(k + (i < wrong)) % 3] for i, k in enumerate(found)])
    return type(data)(data.X, data.lengths, y, data.channels, ("a", "b", "c"), None, "six", "test")


def test_classifiers_are_judged_by_labels_with_wilsons_interval():
    recorder = s4d()
    tree = measure(recorder, labelled(recorder, 2), batch_size=4)
    assert set(tree.children) == {"representations", "similarity", "predictions"}
    ds, z = tree["predictions"].to_dataset(), norm.ppf(0.975)
    n, p = 6, 4 / 6
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    values = [float(ds[name]) for name in ("accuracy", "accuracy_low", "accuracy_high", "n_cases")]
    assert values == pytest.approx([p, centre - half, centre + half, n], rel=1e-12)
    assert tree.attrs["headline"].startswith("Accuracy 0.667 on 6 labelled cases (95 % interval 0.300 to 0.903)")
    assert json.loads(tree.attrs["data"])["steps"] == 83
    validate(tree)
    cases = labelled(recorder, 2).cases()
    points = np.concatenate([recorder.record(torch.from_numpy(x.T[None].copy())).hidden[1][0].numpy() for x in cases])
    sigma = np.linalg.svd(points, compute_uv=False)
    d_int = sigma.sum() ** 2 / (sigma**2).sum()
    assert float(tree["representations"]["d_int"].sel(layer=1)) == pytest.approx(d_int, rel=1e-9)


def test_labels_that_are_not_the_models_are_said():
    recorder = s4d()
    data = labelled(recorder, 0)
    other = type(data)(data.X, data.lengths, np.array(["x"] * 6), data.channels, ("x",), None, "six", "test")
    tree = measure(recorder, other)
    assert "predictions" not in tree.children
    assert "labels are not the model's classes" in tree.attrs["notes"]
    assert tree.attrs["headline"].startswith("Participation ratio of the points: ")


@pytest.mark.parametrize(
    ("far", "told"),
    [
        ([[0.0, 0.0], [0.0, 0.0]], "Attention stays on the token that looks, in every layer."),
        ([[1.5, 2.5], [3.0, 1.0]], "Attention looks 2 positions away on average in every layer."),
        (
            [[1.0, 2.0], [4.0, 3.0]],
            "Attention looks 1.5 positions away on average in layer 1, the nearest, and 3.5 in layer 2, the farthest.",
        ),
    ],
)
def test_layers_that_look_equally_far_are_not_told_apart(far, told):
    attention = xr.Dataset({"distance": (("layer", "head"), np.array(far))}, {"layer": [1, 2]})
    assert headline({"attention": attention}, 3) == told


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        ([1.0, 1.0 + 1e-12], "Participation ratio of the points: 1 in every layer."),
        ([np.nan, np.nan], "The points of a layer are too few or too equal to have a dimension."),
        ([2.0, 1.0], "Participation ratio of the points: 1 in layer 1, the smallest, 2 in layer 0, the largest."),
    ],
)
def test_layers_that_spread_equally_are_not_told_apart(ratio, told):
    layers = xr.Dataset({"participation_ratio_corrected": ("layer", ratio)}, {"layer": [0, 1]})
    assert headline({"representations": layers}, 3) == told


def test_models_that_predict_nothing_have_their_attention_in_the_headline():
    tree = measure(Fake(predicts_next=False), ragged())
    ds = tree["attention"]["distance"].mean("head")
    assert "predictions" not in tree.children
    near, far = float(ds.sel(layer=3)), float(ds.sel(layer=1))
    assert tree.attrs["headline"] == (
        f"Attention looks {near:.5g} positions away on average in layer 3, the nearest, and {far:.5g} in layer 1, the farthest."
    )


def test_an_interval_without_ends_is_none():
    names = ("perplexity", "perplexity_low", "perplexity_high", "n_predictions")
    told = xr.Dataset(dict(zip(names, (3.5, 0.0, np.inf, 9), strict=True)))
    said = headline({"predictions": told}, 2)
    assert said == "Perplexity 3.5 (too few cases of like length for an interval) over 9 predictions in 2 cases."


def test_a_single_case_has_no_interval():
    tree = measure(Fake(), [[1, 2, 3, 4, 5]])
    assert np.isnan(tree["predictions"]["loss_error"])
    assert tree.attrs["headline"].endswith(" over 4 predictions in 1 case.")
    assert "A single case has no spread" in tree.attrs["notes"]
    silent = measure(Fake(), [[1], [2], [3], [4]])
    assert "predictions" not in silent.children
    assert "nothing is predicted" in silent.attrs["notes"]


def broken(name, change):
    return Fake(changes={name: change})


def second(values, change):
    return (values[0], change(values[1]), *values[2:])


BAD_MODELS = {
    "layer 1: ": broken("hidden", lambda h: second(h, lambda v: v * torch.nan)),
    "attention of layer 1: .*sums to 1 only": broken("attentions", lambda a: (a[0] * 0.5, *a[1:])),
    "attention of layer 3: .*shape": broken("attentions", lambda a: (*a[:2], a[2][..., :2])),
    "gave 3 hidden states for 3 layers": broken("hidden", lambda h: h[:3]),
    "gave attention of 2 of 3 layers": broken("attentions", lambda a: a[:2]),
    "predictions: .*NaN": broken("output", lambda o: o * torch.nan),
}


@pytest.mark.parametrize("words", BAD_MODELS)
def test_models_that_break_are_refused_where_they_break(words):
    with pytest.raises((DataError, ArgumentError), match=words):
        measure(BAD_MODELS[words], ragged())


@pytest.mark.parametrize(
    ("make", "inputs", "words"),
    [
        (Fake, [[1, VOCABULARY]], "case 0 holds 11, the vocabulary of fake is 0 to 10"),
        (Fake, as_tokens([[1] * 201]), "fake takes at most 200"),
        (Fake, np.zeros((2, 2, 5)), "whole numbers"),
        (Fake, as_sequences(np.zeros((2, 2, 5))), "fake takes tokens"),
        (s4d, as_tokens([[1, 2]]), "takes sequences of real numbers"),
        (s4d, np.zeros((2, 3, 5)), "3 channels, but S4D takes 2"),
    ],
)
def test_inputs_that_the_model_cannot_take_are_refused_before_it_runs(monkeypatch, make, inputs, words):
    recorder = make()
    monkeypatch.setattr(type(recorder), "record", lambda *_: pytest.fail("the model ran"))
    with pytest.raises((ArgumentError, DataError), match=words):
        measure(recorder, inputs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("maps", -1),
        ("sample", 0),
        ("seed", -1),
        ("level", 1.0),
        ("similarity", 1),
        ("ranks_cases", -1),
    ],
)
def test_options_that_cannot_be(name, value):
    with pytest.raises(ArgumentError, match=name):
        measure(Fake(), ragged(), **{name: value})


def test_tensors_and_series_of_unlabelled_numbers_are_taken():
    rows = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])
    assert json.loads(measure(Fake(), rows).attrs["data"])["cases"] == 2
    tree = measure(s4d("none"), np.random.default_rng(0).standard_normal((3, 2, 8)))
    assert set(tree.children) == {"representations", "similarity"}


def llama_oracle():
    path = Path(__file__).with_name("test_real_model.py")
    spec = importlib.util.spec_from_file_location("real_model_oracle", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.llama


@pytest.fixture(scope="module")
def stories(shared_data):
    pytest.importorskip("transformers")
    from oplens.data.texts import read_tokenizer
    from oplens.data.token_files import read_tokens
    from oplens.models.recorders import load_recorder

    folder = shared_data / "models" / "stories260K"
    recorder = load_recorder(folder)
    tokens = read_tokens(
        folder / "sampled_tokens.npy",
        read_tokenizer(folder),
        vocabulary=recorder.vocabulary,
        max_length=recorder.max_length,
    )
    return folder, recorder, tokens


def test_a_real_model_is_measured_as_its_definition_says(stories):
    folder, recorder, tokens = stories
    rows = tokens.ids[:3, :48]
    tree = measure(recorder, rows, batch_size=2, maps=2)
    logits, attentions, states = llama_oracle()(folder, torch.from_numpy(rows))
    logs = torch.log_softmax(logits, -1)[:, :-1].gather(-1, torch.from_numpy(rows)[:, 1:, None])
    assert float(tree["predictions"]["loss"]) == pytest.approx(-logs.mean().item(), rel=1e-10)
    ds = tree["attention"].to_dataset()
    for layer, weights in enumerate(attentions, 1):
        A = weights.numpy()
        positions = np.arange(48)
        distance = (A * abs(positions[:, None] - positions)).sum(-1).mean((0, 2))
        entropy = -(A * np.log(np.where(A > 0, A, 1))).sum(-1).mean((0, 2))
        sigma = np.linalg.svd(A, compute_uv=False)
        p = sigma / sigma.sum(-1, keepdims=True)
        rank = np.exp(-(p * np.log(np.maximum(p, 1e-300))).sum(-1)).mean(0)
        values = {
            "distance": distance,
            "entropy": entropy,
            "first_mass": A[..., 0].mean((0, 2)),
            "previous_mass": np.mean([A[..., i, i - 1] for i in range(1, 48)], (0, 1)),
            "effective_rank": rank,
        }
        for name, value in values.items():
            np.testing.assert_allclose(ds[name].sel(layer=layer), value, rtol=1e-8, err_msg=name)
    x = states[1].numpy().reshape(-1, 64)
    sigma = np.linalg.svd(x, compute_uv=False)
    d_int = float(tree["representations"]["d_int"].sel(layer=2))
    assert d_int == pytest.approx(sigma.sum() ** 2 / (sigma**2).sum(), rel=1e-8)
    maps = tree["attention_maps"].to_dataset()
    drawn = attentions[int(maps["layer_of"][0]) - 1][0, int(maps["head_of"][0])]
    np.testing.assert_allclose(maps["weight"][0], drawn, atol=1e-6)


@pytest.mark.slow
def test_the_sampled_texts_of_a_real_model_as_a_whole(stories):
    _, recorder, tokens = stories
    tree = measure(recorder, tokens)
    ds = tree["predictions"].to_dataset()
    assert int(ds.n_predictions) == 65_280
    assert round(float(ds.perplexity), 4) == 3.6555
    assert tree["attention"].attrs["ranked_cases"] == 256
    assert not np.isnan(tree["attention"]["effective_rank"]).any()
    assert "Perplexity 3.6555 (95 % interval " in tree.attrs["headline"]
