"""The measures on a trained language model, run without the library that usually runs it."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from oplens.measurement import AttentionRanks, AttentionTotals, PointCloud, PredictionTotals, token_log_probabilities


@torch.no_grad()
def llama(folder, tokens):
    """A Llama written out from its definition: logits (batch, length, vocabulary), attention of each layer (batch, n_heads, length, length) and states, float64."""
    config = json.loads((folder / "config.json").read_text())
    w = {name: value.double() for name, value in load_file(folder / "model.safetensors").items()}
    heads, keys, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    eps = config["rms_norm_eps"]
    base = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    length = tokens.shape[1]
    angles = torch.arange(length)[:, None] * base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))

    def norm(x, name):
        return w[name] * x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps)

    def turn(x):
        a, b = x[..., : size // 2], x[..., size // 2 :]
        return x * cos + torch.cat([-b, a], -1) * sin

    hidden = ~torch.ones(length, length, dtype=torch.bool).tril()
    x, attentions, states = w["model.embed_tokens.weight"][tokens], [], []
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        y = norm(x, at + "input_layernorm.weight")
        q, k, v = ((y @ w[f"{at}self_attn.{p}_proj.weight"].T).unflatten(-1, (-1, size)).transpose(1, 2) for p in "qkv")
        k, v = (t.repeat_interleave(heads // keys, 1) for t in (turn(k), v))
        A = torch.softmax((turn(q) @ k.transpose(2, 3) / size**0.5).masked_fill(hidden, -torch.inf), -1)
        attentions.append(A)
        x = x + (A @ v).transpose(1, 2).flatten(2) @ w[at + "self_attn.o_proj.weight"].T
        y = norm(x, at + "post_attention_layernorm.weight")
        gate = torch.nn.functional.silu(y @ w[at + "mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ w[at + "mlp.up_proj.weight"].T)) @ w[at + "mlp.down_proj.weight"].T
        states.append(x)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, "model.norm.weight") @ head.T, attentions, states


@pytest.fixture(scope="module")
def story(shared_data):
    folder = shared_data / "models" / "stories260K"
    return folder, np.load(folder / "sampled_tokens.npy").astype(np.int64)


def hidden_rows(weights, mask):
    """NaN in padded rows, as masks that hide everything leave it."""
    return np.where(mask[:, None, :, None], weights, np.nan)


def test_every_measure_of_padded_batches_equals_that_of_single_texts(story):
    folder, tokens = story
    lengths = (40, 23, 31)
    logits, attentions, states = llama(
        folder, torch.from_numpy(tokens[:3, :40])
    )  # causal: what follows changes nothing before
    mask = np.arange(40) < np.array(lengths)[:, None]
    batch = [
        PredictionTotals.of(*token_log_probabilities(logits, tokens[:3, :40], mask)),
        AttentionTotals.of(hidden_rows(attentions[2], mask), mask, causal=True),
        AttentionRanks.of(hidden_rows(attentions[2], mask), mask, causal=True),
        PointCloud.of(states[2], mask),
    ]
    total = None
    for case, n in enumerate(lengths):
        scores, weights, points = llama(folder, torch.from_numpy(tokens[case : case + 1, :n]))
        part = [
            PredictionTotals.of(*token_log_probabilities(scores, tokens[case : case + 1, :n])),
            AttentionTotals.of(weights[2], causal=True),
            AttentionRanks.of(weights[2], causal=True),
            PointCloud.of(points[2]),
        ]
        total = part if total is None else [a + b for a, b in zip(total, part, strict=True)]
    for one, two in zip(batch[:3], total[:3], strict=True):
        for name, value in one.statistics().items():
            np.testing.assert_allclose(two.statistics()[name], value, rtol=1e-7, atol=1e-10, err_msg=str(name))
    for name, value in batch[3].dimensions().items():
        assert float(total[3].dimensions()[name]) == pytest.approx(float(value), rel=1e-8), name


def test_the_model_is_predictable_and_its_layers_look_to_different_distances(story):
    folder, tokens = story
    logits, attentions, _ = llama(folder, torch.from_numpy(tokens[:8]))
    ds = PredictionTotals.of(*token_log_probabilities(logits, tokens[:8])).statistics()
    assert float(ds.perplexity_low) < 3.6555 < float(ds.perplexity_high)  # of all 256 texts
    second, last = (AttentionTotals.of(attentions[k], causal=True).statistics() for k in (1, 4))
    assert float(second.distance.mean()) < float(last.distance.mean())
    assert float(second.distance_high[3]) < 1.5  # a head that looks one token back
    assert float(last.distance_low[0]) > 30


@pytest.mark.slow
def test_the_perplexity_of_all_sampled_texts(story):
    """3.6555 over 65,280 predictions in float64, as computed with another implementation of the model."""
    folder, tokens = story
    parts = []
    for start in range(0, len(tokens), 16):
        rows = tokens[start : start + 16]
        parts.append(PredictionTotals.of(*token_log_probabilities(llama(folder, torch.from_numpy(rows))[0], rows)))
    ds = sum(parts[1:], parts[0]).statistics()
    assert int(ds.n_predictions) == 65_280
    assert round(float(ds.perplexity), 4) == 3.6555
