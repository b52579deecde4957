"""The survey of the sentence encoder MiniLM: every layer and head against a BERT written out in NumPy, sentences padded and alone."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.special import erf

from language_models import minilm_folder
from oplens.data.responses import Responses
from oplens.data.texts import read_tokenizer
from oplens.data.tokens import as_tokens
from oplens.measurement import eigenvalue_effective_rank
from oplens.measurement.against import errors_against
from oplens.measurement.neural import layer_features, measure_neural, stimulus_tokens
from oplens.measurement.survey import measure
from oplens.models.recorders import load_recorder

SENTENCES = (
    "Water boils.",
    "A cat sat on the mat.",
    "She said she would call, but the telephone never rang that night.",
    "The committee postponed its decision until the following week, much to everyone's annoyance.",
)


class Bert:
    """BERT from its definition (Devlin et al. 2019), one sentence at a time, float64."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.w = {
            name: value.astype(np.float64)
            for name, value in load_file(folder / "model.safetensors").items()
            if "position_ids" not in name
        }

    def linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.config["layer_norm_eps"])
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def __call__(self, ids):
        """Attention of each layer (n_heads, length, length), and states (length, d_model) from the embedding on."""
        heads = self.config["num_attention_heads"]
        size = self.config["hidden_size"] // heads
        words, places, types = (
            self.w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
        )
        x = self.norm(words[ids] + places[: len(ids)] + types[0], "embeddings.LayerNorm")
        attentions, states = [], [x]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}."
            q, k, v = (self.linear(x, f"{at}attention.self.{name}") for name in ("query", "key", "value"))
            A, mixed = np.empty((heads, len(ids), len(ids))), np.empty_like(x)
            for head in range(heads):
                columns = slice(head * size, (head + 1) * size)
                scores = q[:, columns] @ k[:, columns].T / np.sqrt(size)
                e = np.exp(scores - scores.max(-1, keepdims=True))
                A[head] = e / e.sum(-1, keepdims=True)
                mixed[:, columns] = A[head] @ v[:, columns]
            x = self.norm(x + self.linear(mixed, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
            inner = self.linear(x, f"{at}intermediate.dense")
            inner = 0.5 * inner * (1 + erf(inner / np.sqrt(2)))
            x = self.norm(x + self.linear(inner, f"{at}output.dense"), f"{at}output.LayerNorm")
            attentions.append(A)
            states.append(x)
        return attentions, states


@pytest.fixture(scope="module")
def minilm():
    """Directory, recorder in float64, tokens of the sentences, and the oracle's answers for each."""
    folder = minilm_folder()
    tokenizer = read_tokenizer(folder)
    rows = [[*tokenizer.before, *tokenizer.encode(text)[0], *tokenizer.after] for text in SENTENCES]
    bert = Bert(folder)
    return folder, load_recorder(folder), as_tokens(rows, tokenizer), [bert(row) for row in rows]


def batch(tokens):
    return torch.from_numpy(tokens.ids), torch.from_numpy(tokens.mask)


def test_every_layer_is_the_written_out_one_with_padding_on_either_side(minilm):
    _, recorder, tokens, expected = minilm
    ids, mask = batch(tokens)
    left = [torch.stack([row.roll(int((~m).sum())) for row, m in zip(t, mask, strict=True)]) for t in (ids, mask)]
    assert (recorder.n_layers, recorder.causal, recorder.predicts_next) == (6, False, False)
    assert recorder.facts["parameters"] == 22_713_216
    for x, real in ((ids, mask), left):
        found = recorder.record(x, real)
        for case, (attentions, states) in enumerate(expected):
            where = real[case].numpy()
            for ours, theirs in zip(found.attentions, attentions, strict=True):
                np.testing.assert_allclose(ours[case].numpy()[:, where][:, :, where], theirs, rtol=0, atol=1e-10)
                assert (ours[case].numpy()[:, :, ~where] == 0).all()
            for ours, theirs in zip(found.hidden, states, strict=True):
                np.testing.assert_allclose(ours[case].numpy()[where], theirs, rtol=0, atol=1e-10)
            np.testing.assert_allclose(found.output[case].numpy()[where], states[-1], rtol=0, atol=1e-10)


@pytest.fixture(scope="module")
def surveyed(minilm):
    _, recorder, tokens, _ = minilm
    return measure(recorder, tokens, batch_size=4, maps=3, sample=60)


def test_the_survey_does_not_see_padding(minilm, surveyed):
    _, recorder, tokens, _ = minilm
    alone = measure(recorder, tokens, batch_size=1, maps=3, sample=60)
    assert (
        set(alone.children)
        == set(surveyed.children)
        == {"attention", "representations", "similarity", "attention_maps"}
    )
    for name in ("attention", "representations", "similarity"):
        for variable, values in surveyed[name].data_vars.items():
            np.testing.assert_allclose(
                alone[name][variable], values, rtol=1e-8, atol=1e-10, err_msg=f"{name}: {variable}"
            )


def test_every_head_against_loops(minilm, surveyed):
    _, _, tokens, expected = minilm
    sums = {name: np.zeros((6, 12)) for name in ("entropy", "normalised_entropy", "distance", "first_mass")}
    ranks, before = np.zeros((6, 12)), np.zeros((6, 12))
    for attentions, _ in expected:
        for layer, attention in enumerate(attentions):
            for head, A in enumerate(attention):
                n = len(A)
                H = -np.where(A > 0, A * np.log(np.where(A > 0, A, 1)), 0).sum(-1)
                sums["entropy"][layer, head] += H.sum()
                sums["normalised_entropy"][layer, head] += (H / np.log(n)).sum()
                sums["distance"][layer, head] += sum(A[i, j] * abs(i - j) for i in range(n) for j in range(n))
                sums["first_mass"][layer, head] += A[:, 0].sum()
                before[layer, head] += sum(A[i, i - 1] for i in range(1, n))
                p = np.linalg.svd(A, compute_uv=False)
                p = p[p > 0] / p.sum()
                ranks[layer, head] += np.exp(-(p * np.log(p)).sum())
    ds = surveyed["attention"]
    assert (ds.layer.values.tolist(), ds.head.values.tolist()) == ([*range(1, 7)], [*range(12)])
    for name, total in sums.items():
        np.testing.assert_allclose(ds[name], total / tokens.lengths.sum(), rtol=1e-8, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(ds.previous_mass, before / (tokens.lengths - 1).sum(), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(ds.effective_rank, ranks / len(SENTENCES), rtol=1e-7)


def test_a_real_previous_token_head_and_the_printed_rank_that_hangs_on_its_smallest_weights(minilm, surveyed):
    """Layer 1, head 2 looks one token back. Its singular values are nearly all 1, so its rank is nearly full, whatever is rounded away;
    the paper's formula, from eigenvalues, says 1 without the weights below .01 and many times that with them."""
    _, _, tokens, expected = minilm
    printed = []
    for attentions, _ in expected:
        A = attentions[0][2]
        assert A[0, 0] > 0.99
        assert np.diagonal(A, -1).min() > 0.99
        printed.append(eigenvalue_effective_rank(np.where(A < 0.01, 0, A)))
    np.testing.assert_allclose(printed, 1, rtol=1e-6)
    head = surveyed["attention"].sel(layer=1, head=2)
    assert float(head.entropy) < 0.01
    assert float(head.eigenvalue_effective_rank) > 5
    assert float(head.effective_rank) > 0.9 * float(tokens.lengths.mean())


def test_every_layer_against_its_points(minilm, surveyed):
    _, _, _, expected = minilm
    for layer in range(7):
        X = np.concatenate([states[layer] for _, states in expected])
        centred = X - X.mean(0)
        squares = np.linalg.svd(centred, compute_uv=False) ** 2
        ds = surveyed["representations"].isel(layer=layer)
        assert float(ds.participation_ratio) == pytest.approx(squares.sum() ** 2 / (squares**2).sum(), rel=1e-8)
        singular = np.linalg.svd(X, compute_uv=False)
        assert float(ds.d_int) == pytest.approx(singular.sum() ** 2 / (singular**2).sum(), rel=1e-6)
        assert int(ds.n_points) == len(X)
        first = np.concatenate([states[0] for _, states in expected])
        first -= first.mean(0)
        cka = np.linalg.norm(centred.T @ first) ** 2 / (
            np.linalg.norm(centred.T @ centred) * np.linalg.norm(first.T @ first)
        )
        assert float(surveyed["similarity"].cka[layer, 0]) == pytest.approx(cka, rel=1e-8)


@pytest.mark.slow
def test_a_copy_in_half_precision_is_near_and_a_pruned_one_is_farther(minilm):
    folder, recorder, tokens, _ = minilm
    half = errors_against(load_recorder(folder, "bfloat16"), tokens, recorder)
    pruned = load_recorder(folder)
    with torch.no_grad():
        for name, parameter in pruned.module.named_parameters():
            if name.endswith("dense.weight"):  # a half of the weights of each output map
                parameter[parameter.abs() < parameter.abs().median()] = 0
    far = errors_against(pruned, tokens, recorder)
    assert 1e-3 < float(half.eam / half.target_size) < 0.05 < float(far.eam / far.target_size) < 1
    assert (half.largest.claim, half.attrs["target"]) == ("bound", "model")


@pytest.mark.slow
def test_the_layer_that_recorded_responses_come_from_is_found(minilm):
    """60 sentences as texts of a recording; responses are directions of layer 4's mean with noise on each of 4 repeats."""
    _, recorder, tokens, _ = minilm
    who, does, what = (
        ["the old man", "my sister", "a tired nurse", "the king", "nobody"],
        ["sold", "forgot", "painted"],
        ["the house", "two horses", "his letter", "an idea"],
    )
    texts = tuple(f"{a} {b} {c}." for a in who for b in does for c in what)
    rng = np.random.default_rng(0)
    data = Responses(np.zeros((60, 1, 1)), ("x",), "Hz", "made up", np.arange(60), text=texts)
    inputs, data = stimulus_tokens(data, tokens.tokenizer, max_length=recorder.max_length)
    X = layer_features(recorder, inputs, data)[4]
    signal = (X - X.mean(0)) @ rng.standard_normal((384, 12))
    signal /= signal.std(0)
    values = signal[..., None] + rng.standard_normal((60, 12, 4))
    data = dataclasses.replace(data, values=values, neurons=tuple(map(str, range(12))))
    ds = measure_neural(recorder, inputs, data, permutations=19, folds=4, alphas=(10.0, 100.0, 1000.0), halves=20)
    assert ds.layer.size == 7
    assert int(ds.mean_predictivity.argmax("layer")) in (3, 4, 5)
    assert float(ds.p_value_corrected[4]) == 0.05
    assert float(ds.mean_predictivity[0]) < float(ds.mean_predictivity[4])
