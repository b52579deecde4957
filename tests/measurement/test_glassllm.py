"""The survey of glassllm's trained model, read as a Hugging Face directory, against glassllm's own forward pass in NumPy."""

import numpy as np
import pytest
import torch

from language_models import package_folder, write_llama
from oplens.data.cut_texts import text_tokens
from oplens.data.texts import read_tokenizer
from oplens.data.tokens import as_tokens
from oplens.measurement.against import errors_against
from oplens.measurement.survey import measure
from oplens.models.recorders import load_recorder

# The opening of Alice's Adventures in Wonderland (1865).
TEXT = """Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, “and what is the use of a book,” thought Alice “without pictures or conversations?”

So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her.

There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit say to itself, “Oh dear! Oh dear! I shall be late!”
"""


@pytest.fixture(scope="module")
def glass(tmp_path_factory):
    """Directory, recorder in float64, glassllm's own model in float64 and its tokenizer."""
    weights = package_folder("glassllm") / "weights"
    import glassllm

    folder = tmp_path_factory.mktemp("models") / "glassllm"
    write_llama(folder)
    model = glassllm.GlassLM.load(weights / "en.npz", dtype=np.float64)
    return folder, load_recorder(folder), model, glassllm.Tokenizer.load(weights / "en.tokenizer.json")


def own_pass(model, ids):
    """Logits (length, vocabulary), attention of each layer (n_heads, length, length) and states of one case, by glassllm."""
    import glassllm

    tracer = glassllm.Tracer()
    with glassllm.no_grad():
        logits = model(np.asarray(ids), trace=tracer).data[0]
    layers = range(model.cfg.n_layers)
    states = [tracer.get("embed").value, *(tracer.get("resid.ffn", layer).value for layer in layers)]
    states[-1] = tracer.get("norm.final").value
    return logits, [tracer.get("attn.softmax", layer).value for layer in layers], states


def windows(ids, size=64):
    return [ids[start : start + size] for start in range(0, len(ids), size)]


@pytest.mark.parametrize("language", ["en", "pt"])
def test_the_tokenizer_is_glassllms_own(tmp_path, language):
    weights = package_folder("glassllm") / "weights"
    import glassllm

    write_llama(tmp_path / language, language)
    theirs = glassllm.Tokenizer.load(weights / f"{language}.tokenizer.json")
    ours = read_tokenizer(tmp_path / language)
    for text in (TEXT, "a  b   c\n\n d ", "Cafe\u0301, caf\u00e9 — não ☃☃ x", " ", "\n"):
        assert ours.encode(text)[0] == theirs.encode(text)


def test_logits_attention_and_states_are_glassllms_own(glass):
    _, recorder, model, tokenizer = glass
    ids = tokenizer.encode(TEXT)[:128]
    logits, attentions, states = own_pass(model, ids)
    found = recorder.record(torch.tensor([ids]))
    np.testing.assert_allclose(found.output[0].numpy(), logits, rtol=0, atol=1e-10)
    assert (len(found.attentions), len(found.hidden)) == (4, 5)
    for ours, theirs in zip(found.attentions, attentions, strict=True):
        np.testing.assert_allclose(ours[0].numpy(), theirs, rtol=0, atol=1e-12)
    for ours, theirs in zip(found.hidden, states, strict=True):
        np.testing.assert_allclose(ours[0].numpy(), theirs, rtol=0, atol=1e-10)
    assert (recorder.facts["parameters"], recorder.causal, recorder.predicts_next) == (852_608, True, True)


def test_float32_agrees_to_its_rounding(glass):
    import glassllm

    folder, _, _, tokenizer = glass
    model, _ = glassllm.load_pretrained("en")
    ids = np.array(tokenizer.encode(TEXT)[:128])
    with glassllm.no_grad():
        theirs = model(ids).data[0]
    ours = load_recorder(folder, "float32").record(torch.from_numpy(ids[None])).output[0].numpy()
    assert ours.dtype == np.float32
    assert 0 < np.abs(ours - theirs).max() / np.abs(theirs).max() < 3e-6


@pytest.fixture(scope="module")
def surveyed(glass):
    folder, recorder, _, _ = glass
    tokens = text_tokens([TEXT], read_tokenizer(folder), window=64, max_length=recorder.max_length)
    return measure(recorder, tokens, batch_size=2, maps=2, sample=100)


def test_perplexity_and_bits_per_byte_are_those_of_a_plain_loop(glass, surveyed):
    _, _, model, tokenizer = glass
    nats, count, size = 0.0, 0, 0
    for window in windows(tokenizer.encode(TEXT)):
        logits = own_pass(model, window)[0]
        for t, following in enumerate(window[1:]):
            nats += np.log(np.exp(logits[t] - logits[t].max()).sum()) + logits[t].max() - logits[t][following]
            size += len(tokenizer.vocab[following].replace("▁", " ").encode())
            count += 1
    ds = surveyed["predictions"]
    assert (int(ds.n_predictions), int(ds.n_bytes)) == (count, size)
    assert float(ds.perplexity) == pytest.approx(np.exp(nats / count), rel=1e-10)
    assert float(ds.bits_per_byte) == pytest.approx(nats / np.log(2) / size, rel=1e-10)
    assert 20 < float(ds.perplexity) < 1024 / 2  # trained on such text: far below the vocabulary


def test_every_head_against_loops_over_glassllms_attention(glass, surveyed):
    _, _, model, tokenizer = glass
    entropy, distance, first, before = (np.zeros((4, 4)) for _ in range(4))
    rows = followers = 0
    for window in windows(tokenizer.encode(TEXT)):
        rows += len(window)
        followers += len(window) - 1
        for layer, attention in enumerate(own_pass(model, window)[1]):
            for head, A in enumerate(attention):
                for i, row in enumerate(A):
                    real = row[: i + 1]
                    entropy[layer, head] -= (real[real > 0] * np.log(real[real > 0])).sum()
                    distance[layer, head] += (real * (i - np.arange(i + 1))).sum()
                    first[layer, head] += real[0]
                    before[layer, head] += real[-2] if i else 0.0
    ds = surveyed["attention"]
    assert (ds.layer.values.tolist(), ds.head.values.tolist()) == ([1, 2, 3, 4], [0, 1, 2, 3])
    means = {"entropy": entropy / rows, "distance": distance / rows, "first_mass": first / rows}
    for name, mean in {**means, "previous_mass": before / followers}.items():
        np.testing.assert_allclose(ds[name], mean, rtol=1e-9, err_msg=name)
        assert (ds[f"{name}_low"] < ds[name]).all()
        assert (ds[name] < ds[f"{name}_high"]).all()


def test_every_layer_against_its_covariance(glass, surveyed):
    _, _, model, tokenizer = glass
    states = [own_pass(model, window)[2] for window in windows(tokenizer.encode(TEXT))]
    ds = surveyed["representations"]
    for layer in range(5):
        X = np.concatenate([one[layer] for one in states])
        spectrum = np.linalg.eigvalsh(np.cov(X.T))
        expected = spectrum.sum() ** 2 / (spectrum**2).sum()
        assert float(ds.participation_ratio[layer]) == pytest.approx(expected, rel=1e-8), layer
        assert int(ds.n_points[layer]) == len(X)


def test_glassllms_logits_as_values_and_a_copy_in_bfloat16_as_target(glass):
    """Against its own outputs from elsewhere the model errs by rounding alone; against its copy in bfloat16 by about 1 %."""
    folder, recorder, model, tokenizer = glass
    cases = [window[:40] for window in windows(tokenizer.encode(TEXT))[:3]]
    cases[1] = cases[1][:17]
    values = np.full((3, 40, 1024), np.nan)
    for i, case in enumerate(cases):
        values[i, : len(case)] = own_pass(model, case)[0]
    ds = errors_against(recorder, as_tokens(cases), values)
    assert 0 < float(ds.largest) < 1e-10 < float(ds.target_size)
    copy = errors_against(recorder, as_tokens(cases), load_recorder(folder, "bfloat16"))
    assert 1e-3 < float(copy.eam / copy.target_size) < 0.05
    assert 0.85 < float(copy.agreement) < 1
    chances = errors_against(recorder, as_tokens(cases), load_recorder(folder, "bfloat16"), outputs="probabilities")
    assert 0 < float(chances.eam) < 0.1
