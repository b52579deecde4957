"""Hugging Face directories as recorders: tiny random models of many kinds, a Llama and a GPT-2 written out, and every broken directory."""

import json
import logging
import pickle
import shutil
import socket
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from scipy.special import erf

from measurement.test_real_model import llama
from oplens.errors import ArgumentError, CheckpointError, DataError
from oplens.measurement import AttentionTotals
from oplens.models.recorders import load_recorder

V = 23
SIZES = {
    "vocab_size": V,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 1, "head_dim": 4}
GPT2 = {
    "vocab_size": V,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 20,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROBERTA = {**SIZES, "pad_token_id": 1, "bos_token_id": 0}
MIXED = {**SIZES, "num_key_value_heads": 1}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
}
T5 = {"vocab_size": V, "d_model": 8, "d_kv": 4, "num_layers": 2, "num_heads": 2, "d_ff": 12, "pad_token_id": 0}


class Kind(NamedTuple):
    """Configuration of a class of transformers, and what is to be found of it."""

    settings: dict
    causal: bool
    predicts_next: bool
    longest: int | None = 20
    widths: tuple = (None, None)  # widest row of each layer; None: all that `causal` allows
    attended: tuple = (0, 1)  # layers with attention
    alone: bool = False  # whether padding changes it


KINDS = {
    "GPT2LMHeadModel": Kind(GPT2, True, True),
    "LlamaForCausalLM": Kind(GROUPED, True, True),
    "MistralForCausalLM": Kind({**GROUPED, "sliding_window": 4}, True, True, widths=(4, 4)),
    "BertModel": Kind(SIZES, False, False),
    "RobertaForMaskedLM": Kind(ROBERTA, False, False, longest=18),
    "GPT2ForSequenceClassification": Kind(GPT2, True, False, alone=True),
    "MambaForCausalLM": Kind(
        {"vocab_size": V, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 4},
        True,
        True,
        longest=None,
        attended=(),
    ),
    "Qwen3NextForCausalLM": Kind(
        {**GROUPED, **EXPERTS, "layer_types": ["linear_attention", "full_attention"]}, True, True, attended=(1,)
    ),
}
MORE = {
    "LlamaModel": Kind(GROUPED, True, False),
    "LlamaForSequenceClassification": Kind({**GROUPED, "num_labels": 3}, True, False),
    "Gemma2ForCausalLM": Kind(
        {**GROUPED, "sliding_window": 4, "query_pre_attn_scalar": 4}, True, True, widths=(4, None)
    ),
    "GPTNeoXForCausalLM": Kind(SIZES, True, True),
    "GPTNeoForCausalLM": Kind(
        {
            "vocab_size": V,
            "hidden_size": 8,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 20,
        },
        True,
        True,
        widths=(None, 4),
    ),
    "OPTForCausalLM": Kind({**SIZES, "ffn_dim": 12, "word_embed_proj_dim": 8}, True, True),
    "XGLMForCausalLM": Kind(
        {"vocab_size": V, "d_model": 8, "num_layers": 2, "attention_heads": 2, "ffn_dim": 12}, True, True, longest=2048
    ),
    "MptForCausalLM": Kind({"vocab_size": V, "d_model": 8, "n_layers": 2, "n_heads": 2}, True, True, longest=None),
    "MixtralForCausalLM": Kind({**GROUPED, "num_local_experts": 2}, True, True),
    "BertForMaskedLM": Kind(SIZES, False, False),
    "BertForTokenClassification": Kind(SIZES, False, False),
    "BertForSequenceClassification": Kind(SIZES, False, False),
    "DistilBertModel": Kind(
        {"vocab_size": V, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": 20},
        False,
        False,
    ),
    "DebertaV2ForMaskedLM": Kind(
        {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4}, False, False
    ),
    "ModernBertForMaskedLM": Kind(
        {**SIZES, "local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
        False,
        False,
        widths=(None, 5),
    ),
    "BigBirdForMaskedLM": Kind(
        {**SIZES, "attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}, False, False
    ),
    "T5EncoderModel": Kind(T5, False, False, longest=None),
    "FNetForMaskedLM": Kind(
        {key: value for key, value in SIZES.items() if key != "num_attention_heads"},
        False,
        False,
        attended=(),
        alone=True,
    ),
    "RwkvForCausalLM": Kind(
        {"vocab_size": V, "hidden_size": 8, "num_hidden_layers": 2, "attention_hidden_size": 8},
        True,
        True,
        longest=1024,
        attended=(),
    ),
    "XLNetLMHeadModel": Kind(
        {"vocab_size": V, "d_model": 8, "n_layer": 2, "n_head": 2, "d_inner": 12}, False, False, longest=None
    ),
}
SPANS = ((3, 12), (0, 7), (0, 12))
FORWARD_MODE = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


def make(name, settings, folder, seed=0):
    """A random model with weights far from those it would be born with, saved."""
    torch.manual_seed(seed)
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One saved model of each kind, made when first asked for."""
    made = {}

    def find(name):
        if name not in made:
            made[name] = make(name, {**KINDS, **MORE}[name].settings, tmp_path_factory.mktemp(name))
        return made[name]

    return find


@pytest.fixture
def bert(folders, tmp_path):
    """A directory that a test may damage."""
    folder = tmp_path / "bert"
    shutil.copytree(folders("BertModel"), folder)
    return folder


def tokens(cases=3, length=12):
    return torch.randint(3, V, (cases, length), generator=torch.Generator().manual_seed(5))


def mask_of(spans, length=12):
    position = torch.arange(length)
    return torch.stack([(position >= start) & (position < stop) for start, stop in spans])


def check_kind(name, folder):
    _, causal, predicts, longest, widths, attended, alone = {**KINDS, **MORE}[name]
    recorder = load_recorder(folder)
    assert recorder.facts["architecture"] == name
    assert (recorder.causal, recorder.predicts_next, recorder.max_length) == (causal, predicts, longest)
    assert recorder.found.alone == alone
    x, mask = tokens(), mask_of(SPANS)
    whole = recorder.record(torch.where(mask, x, 10**6), mask)
    # Padded on either side, each case is what it is alone.
    for case, (start, stop) in enumerate(SPANS):
        single = recorder.record(x[case : case + 1, start:stop])
        pairs = list(zip(single.hidden, (state[:, start:stop] for state in whole.hidden), strict=True))
        for one, many in zip(single.attentions, whole.attentions, strict=True):
            assert (one is None) == (many is None)
            if one is not None:
                pairs.append((one, many[:, :, start:stop, start:stop]))
                assert float(many[case].sum()) == pytest.approx(many.shape[1] * (stop - start), abs=1e-9)
        pairs.append((single.output, whole.output if whole.output.ndim == 2 else whole.output[:, start:stop]))
        for one, many in pairs:
            torch.testing.assert_close(many[case], one[0], rtol=0, atol=1e-10)
    having = tuple(k for k in range(recorder.n_layers) if whole.attentions and whole.attentions[k] is not None)
    assert having == attended
    # The pattern is that of the weights, and the measures take it.
    for layer in range(recorder.n_layers):
        pattern = recorder.visible(layer, 12)
        assert (None if pattern is None else int(pattern.sum(-1).max())) == widths[layer], layer
        if layer in attended:
            seen = (whole.attentions[layer][2] > 0).any(0)
            allowed = torch.ones(12, 12, dtype=torch.bool).tril() if causal else torch.ones(12, 12, dtype=torch.bool)
            assert torch.equal(seen, allowed if pattern is None else pattern)
            AttentionTotals.of(whole.attentions[layer], mask, causal=causal, visible=pattern)
    torch.testing.assert_close(recorder.apply(None, x, mask), whole.output, rtol=0, atol=1e-12)
    return recorder


@pytest.mark.parametrize("name", KINDS)
def test_a_model_is_found_to_be_what_it_is_and_padding_changes_nothing(name, folders):
    check_kind(name, folders(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_so_are_many_others(name, folders):
    check_kind(name, folders(name))


def test_a_trained_llama_equals_its_definition_in_float64(shared_data):
    folder = shared_data / "models" / "stories260K"
    x = torch.from_numpy(np.load(folder / "sampled_tokens.npy").astype(np.int64))[:2, :50]
    logits, attentions, states = llama(folder, x)
    recorder = load_recorder(folder)
    recording = recorder.record(x)
    torch.testing.assert_close(recording.output, logits, rtol=0, atol=1e-10)
    for found, expected in zip(recording.attentions, attentions, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    for found, expected in zip(recording.hidden[1:-1], states[:-1], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert recorder.facts["parameters"] == 260_032  # the embedding and the tied head are one
    assert (recorder.name, recorder.n_layers, recorder.facts["n_heads"]) == ("stories260K", 5, 8)
    assert "after the final norm" in recorder.notes[-1]


def gpt2(folder, x):
    """A GPT-2 of these sizes in numpy: logits, attention and states of one text."""
    w = {
        key.removeprefix("transformer."): value.double().numpy()
        for key, value in load_file(folder / "model.safetensors").items()
    }

    def norm(h, at):
        centred = h - h.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{at}.weight"] + w[f"{at}.bias"]

    def map_(h, at):
        return h @ w[f"{at}.weight"] + w[f"{at}.bias"]

    h = w["wte.weight"][x] + w["wpe.weight"][: len(x)]
    states, attentions = [h], []
    for layer in range(2):
        q, k, v = np.split(map_(norm(h, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn"), 3, axis=-1)
        A, parts = np.zeros((2, len(x), len(x))), []
        for head in range(2):
            own = slice(4 * head, 4 * head + 4)
            for i in range(len(x)):
                scores = np.exp([q[i, own] @ k[j, own] / 2 for j in range(i + 1)])
                A[head, i, : i + 1] = scores / scores.sum()
            parts.append(A[head] @ v[:, own])
        attentions.append(A)
        h = h + map_(np.concatenate(parts, -1), f"h.{layer}.attn.c_proj")
        up = map_(norm(h, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
        gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        h = h + map_(gelu, f"h.{layer}.mlp.c_proj")
        states.append(h)
    states[-1] = norm(h, "ln_f")
    return states[-1] @ w["wte.weight"].T, attentions, states


def test_a_gpt2_equals_numpy(folders):
    folder, x = folders("GPT2LMHeadModel"), tokens()
    recording = load_recorder(folder).record(x)
    for case in range(len(x)):
        logits, attentions, states = gpt2(folder, x[case].numpy())
        np.testing.assert_allclose(recording.output[case], logits, atol=1e-10)
        for found, expected in zip(recording.attentions, attentions, strict=True):
            np.testing.assert_allclose(found[case], expected, atol=1e-10)
        for found, expected in zip(recording.hidden, states, strict=True):
            np.testing.assert_allclose(found[case], expected, atol=1e-10)


def test_a_bert_layer_equals_numpy(folders):
    """Embedding and first layer, post-norm with exact GELU."""
    folder, x = folders("BertModel"), tokens()
    w = {key: value.double().numpy() for key, value in load_file(folder / "model.safetensors").items()}

    def norm(h, at):
        centred = h - h.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * w[f"{at}.weight"] + w[f"{at}.bias"]

    def map_(h, at):
        return h @ w[f"{at}.weight"].T + w[f"{at}.bias"]

    recording = load_recorder(folder).record(x)
    for case in range(len(x)):
        kind = w["embeddings.token_type_embeddings.weight"][0]
        words, places = (w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position"))
        h = norm(words[x[case].numpy()] + places[:12] + kind, "embeddings.LayerNorm")
        np.testing.assert_allclose(recording.hidden[0][case], h, atol=1e-10)
        at = "encoder.layer.0"
        q, k, v = (map_(h, f"{at}.attention.self.{part}").reshape(12, 2, 4) for part in ("query", "key", "value"))
        scores = np.exp(np.einsum("ihd,jhd->hij", q, k) / 2)
        A = scores / scores.sum(-1, keepdims=True)
        np.testing.assert_allclose(recording.attentions[0][case], A, atol=1e-10)
        mixed = np.einsum("hij,jhd->ihd", A, v).reshape(12, 8)
        h = norm(h + map_(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        up = map_(h, f"{at}.intermediate.dense")
        up = up * (1 + erf(up / np.sqrt(2))) / 2
        h = norm(h + map_(up, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        np.testing.assert_allclose(recording.hidden[1][case], h, atol=1e-10)


@FORWARD_MODE
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_outputs_have_derivatives_in_the_parameters_also_under_vmap(name, folders):
    recorder, x, mask = load_recorder(folders(name)), tokens(), mask_of(SPANS)
    at = {key: value.detach() for key, value in recorder.module.named_parameters()}
    generator = torch.Generator().manual_seed(3)
    noise = {key: torch.randn(2, *value.shape, generator=generator, dtype=value.dtype) for key, value in at.items()}
    found = torch.func.vmap(lambda e: torch.func.jvp(lambda p: recorder.apply(p, x, mask), (at,), (e,))[1])(noise)
    for draw in range(2):
        step = 1e-6
        ends = [
            recorder.apply({key: at[key] + sign * step * noise[key][draw] for key in at}, x, mask) for sign in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / (2 * step)
        assert float(slope.abs().max()) > 0.1
        torch.testing.assert_close(found[draw], slope, rtol=0, atol=1e-6 * float(slope.abs().max()))
    weights = {key: value.clone().requires_grad_() for key, value in at.items()}
    direction = {key: value[0] for key, value in noise.items()}
    total = recorder.apply(weights, x, mask).sum()
    gradients = torch.autograd.grad(total, list(weights.values()))
    along = sum(float((g * direction[key]).sum()) for g, key in zip(gradients, weights, strict=True))
    assert along == pytest.approx(float(found[0].sum()), rel=1e-9)


@FORWARD_MODE
def test_an_operation_without_derivative_is_named(tmp_path):
    folder = make("BloomForCausalLM", {"vocab_size": V, "hidden_size": 8, "n_layer": 2, "n_head": 2}, tmp_path)
    recorder, x = load_recorder(folder), tokens()
    at = {key: value.detach() for key, value in recorder.module.named_parameters()}
    with pytest.raises(ArgumentError, match="BloomForCausalLM holds an operation"):
        torch.func.jvp(lambda p: recorder.apply(p, x), (at,), (at,))


def test_lower_precision_is_that_of_the_dtype(folders):
    x, mask = tokens(), mask_of(SPANS)
    exact = load_recorder(folders("LlamaForCausalLM")).record(x, mask)
    for dtype, worst, least in (("float32", 1e-5, 1e-9), ("bfloat16", 0.2, 1e-4), ("float16", 0.02, 1e-5)):
        recorder = load_recorder(folders("LlamaForCausalLM"), dtype)
        recording = recorder.record(x, mask)
        assert recording.output.dtype == getattr(torch, dtype)
        miss = float((recording.output.double() - exact.output).abs().max() / exact.output.abs().max())
        assert least < miss < worst
        assert recorder.facts["dtype"] == dtype
        assert not any("Float64" in note for note in recorder.notes)
        AttentionTotals.of(recording.attentions[0], mask, causal=True)


def test_overflow_in_half_precision_is_told_from_a_number(folders, tmp_path):
    folder = tmp_path / "wide"
    shutil.copytree(folders("GPT2LMHeadModel"), folder)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.1.mlp.c_proj.bias"] += 6e4
    weights["transformer.h.1.attn.c_proj.bias"] += 6e4
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_recorder(folder, "float32").record(tokens())
    with pytest.raises((CheckpointError, DataError), match="overflow"):
        load_recorder(folder, "float16").record(tokens())


def test_loading_and_running_is_silent_and_leaves_settings_as_they_were(folders, capfd):
    from transformers.utils import logging as hf

    folder = folders("MistralForCausalLM")
    capfd.readouterr()  # writing a model for the test is not silent
    before = hf.get_verbosity(), hf.is_progress_bar_enabled(), torch.get_default_dtype(), logging.root.level
    hf.set_verbosity_info()
    hf.enable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            recorder = load_recorder(folder)
            recorder.record(tokens(), mask_of(SPANS))
        assert (hf.get_verbosity(), hf.is_progress_bar_enabled()) == (logging.INFO, True)
    finally:
        hf.set_verbosity(before[0])
        if not before[1]:
            hf.disable_progress_bar()
    assert (torch.get_default_dtype(), logging.root.level) == before[2:]
    assert torch.zeros(1).float().dtype == torch.float32
    assert capfd.readouterr() == ("", "")


def test_nothing_is_fetched(folders, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load_recorder(folders("BertModel")).record(tokens())


def test_the_library_is_offline_while_it_loads_and_runs_and_no_longer(folders, monkeypatch):
    import huggingface_hub

    from oplens.models import huggingface, huggingface_run

    seen = {}
    for module, name in (
        (huggingface, "read_source"),
        (huggingface, "load_module"),
        (huggingface_run, "functional_call"),
    ):
        real = getattr(module, name)

        def told(*args, real=real, name=name):
            seen.setdefault(name, set()).add(huggingface_hub.is_offline_mode())
            return real(*args)

        monkeypatch.setattr(module, name, told)
    before = huggingface_hub.is_offline_mode()
    recorder = load_recorder(folders("BertModel"))
    after = huggingface_hub.is_offline_mode()
    seen.pop("functional_call")  # the trials of loading
    recorder.record(tokens())
    assert seen == {"read_source": {True}, "load_module": {True}, "functional_call": {True}}
    assert (after, huggingface_hub.is_offline_mode()) == (before, before)


def test_a_bigbird_runs_with_full_attention_and_says_so(folders):
    recorder = load_recorder(folders("BigBirdForMaskedLM"))
    assert any("original_full" in note for note in recorder.notes)
    for length in (3, 12, 5):
        weights = recorder.record(tokens(2, length)).attentions[0]
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, length, dtype=torch.float64), rtol=0, atol=1e-12)


def test_heads_that_do_not_predict_are_told_from_those_that_do(tmp_path):
    blind = make("BertLMHeadModel", {**SIZES, "is_decoder": False}, tmp_path / "blind")
    recorder = load_recorder(blind)
    assert not recorder.predicts_next
    assert any("no predictions" in note for note in recorder.notes)
    seeing = load_recorder(make("BertLMHeadModel", {**SIZES, "is_decoder": True}, tmp_path / "seeing"))
    assert seeing.predicts_next
    pretraining = load_recorder(make("BertForPreTraining", SIZES, tmp_path / "both"))
    assert not pretraining.predicts_next
    assert torch.equal(pretraining.record(tokens()).output, pretraining.record(tokens()).hidden[-1])
    assert any("BertForPreTraining is left out" in note for note in pretraining.notes)
    assert any("cls.predictions" in note for note in pretraining.notes)


def test_a_window_is_told_from_weights_that_are_too_small_for_a_number(folders, tmp_path):
    folder = tmp_path / "sharp"
    shutil.copytree(folders("MistralForCausalLM"), folder)
    weights = load_file(folder / "model.safetensors")
    for layer in range(2):
        weights[f"model.layers.{layer}.self_attn.q_proj.weight"] *= 1e5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    recorder = load_recorder(folder)
    position = torch.arange(12)
    window = (position[:, None] - position < 4) & (position[:, None] >= position)
    found = recorder.record(tokens())
    for layer in range(2):
        assert int((found.attentions[layer] > 0).any(0).any(0).sum()) < int(window.sum())
        assert torch.equal(recorder.visible(layer, 12), window)


def test_a_classifier_without_a_token_for_padding_takes_cases_of_one_length_too(folders):
    recorder, x = load_recorder(folders("GPT2ForSequenceClassification")), tokens()
    alone = torch.cat([recorder.record(x[case : case + 1]).output for case in range(len(x))])
    torch.testing.assert_close(recorder.record(x).output, alone, rtol=0, atol=1e-10)
    assert float((alone[0] - alone[1]).abs().max()) > 1e-3


def test_chunks_counted_from_the_first_token_refuse_padding_before_it(tmp_path):
    settings = {
        **GROUPED,
        "attention_chunk_size": 4,
        "num_local_experts": 2,
        "intermediate_size_mlp": 12,
        "no_rope_layers": [1, 0],
    }
    recorder = load_recorder(make("Llama4ForCausalLM", settings, tmp_path))
    position = torch.arange(12)
    same_chunk = (position[:, None] // 4 == position // 4).tril()
    assert torch.equal(recorder.visible(0, 12), same_chunk)
    assert recorder.visible(1, 12) is None
    recorder.record(tokens(), mask_of(((0, 5), (0, 12), (0, 9))))
    with pytest.raises(ArgumentError, match="pad after the real positions"):
        recorder.record(tokens(), mask_of(SPANS))


def test_weights_in_pickles_are_read_as_tensors_and_nothing_else(bert, tmp_path):
    weights = load_file(bert / "model.safetensors")
    exact = load_recorder(bert).record(tokens()).output
    (bert / "model.safetensors").unlink()
    torch.save(weights, bert / "pytorch_model.bin")
    recorder = load_recorder(bert)
    assert torch.equal(recorder.record(tokens()).output, exact)
    assert "restricted unpickler" in recorder.notes[0]
    victim = tmp_path / "victim"

    class Attack:
        def __reduce__(self):
            return Path.touch, (victim,)

    hostile = {"embeddings.word_embeddings.weight": Attack()}
    for write in (lambda f: f.write_bytes(pickle.dumps(hostile)), lambda f: torch.save(hostile, f)):
        write(bert / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match="save the weights alone"):
            load_recorder(bert)
    torch.save({"weights": {"a": torch.zeros(1)}}, bert / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="more than named tensors"):
        load_recorder(bert)
    (bert / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="empty"):
        load_recorder(bert)
    assert not victim.exists()


def change(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def change_weights(folder, **values):
    """Put tensors in (None: take out) under names whose dots are given as two underscores."""
    weights = load_file(folder / "model.safetensors")
    for name, value in values.items():
        weights.pop(name.replace("__", "."), None)
        if value is not None:
            weights[name.replace("__", ".")] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def shard(folder, weight_map, *files):
    (folder / "model.safetensors").unlink()
    for name in files:
        save_file({"a": torch.zeros(1)}, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def truncate(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


DAMAGES = {
    "no config": (lambda f: (f / "config.json").unlink(), "cannot be read"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    "no model_type": (lambda f: (f / "config.json").write_text("{}"), "names no model_type"),
    "model_type is no name": (lambda f: change(f, model_type=["bert"]), "names no model_type"),
    "unknown model_type": (lambda f: change(f, model_type="quux"), "knows no model_type 'quux'"),
    "code of its own": (
        lambda f: change(f, model_type="quux", auto_map={"AutoModel": "evil.Model"}),
        r"auto_map\) is never run",
    ),
    "impossible sizes": (lambda f: change(f, num_attention_heads=3), "cannot load|cannot read"),
    "sizes that are no numbers": (lambda f: change(f, hidden_size="big"), "cannot load|cannot read"),
    "endless layers": (lambda f: change(f, num_hidden_layers=10**9), "expected 1 to 4096"),
    "quantised": (lambda f: change(f, quantization_config={"quant_method": "gptq", "bits": 4}), "quantised"),
    "an adapter": (lambda f: (f / "adapter_config.json").write_text("{}"), "merge it into its base model"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "there are no weights"),
    "weights of another library": (
        lambda f: (f / "model.safetensors").rename(f / "tf_model.h5"),
        "there is tf_model.h5, which is not read",
    ),
    "a Git LFS pointer": (
        lambda f: (f / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "git lfs pull",
    ),
    "a folder of models": (
        lambda f: (f / "part").mkdir() or (f / "config.json").rename(f / "part" / "config.json"),
        "there is one in part; give such a folder",
    ),
    "a cut file": (truncate, "damaged safetensors"),
    "a missing part": (
        lambda f: shard(f, {"a": "one.safetensors", "b": "two.safetensors"}, "one.safetensors"),
        "part two.safetensors is missing",
    ),
    "a part elsewhere": (lambda f: shard(f, {"a": "../one.safetensors"}), "outside of its folder"),
    "an index of nothing": (lambda f: shard(f, {}), "has no weight_map"),
    "a missing weight": (
        lambda f: change_weights(f, encoder__layer__1__output__dense__weight=None),
        "random numbers, measured as if trained",
    ),
    "more layers than weights": (lambda f: change(f, num_hidden_layers=3), "random numbers"),
    "more weights than layers": (lambda f: change(f, num_hidden_layers=1), "layers would be left out"),
    "a weight of another shape": (
        lambda f: change_weights(f, encoder__layer__1__output__dense__weight=torch.zeros(3, 3)),
        "other shapes than config.json gives them",
    ),
    "a weight that is no number": (
        lambda f: change_weights(f, embeddings__LayerNorm__bias=torch.full((8,), torch.nan)),
        "NaN or infinite",
    ),
    "pixels": (lambda f: (f / "config.json").write_text('{"model_type": "vit"}'), "other things than tokens"),
    "an encoder-decoder": (
        lambda f: (f / "config.json").write_text('{"model_type": "bart", "architectures": ["BartModel"]}'),
        "encoder-decoder",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_directory_is_refused_with_a_sentence(damage, bert):
    spoil, message = DAMAGES[damage]
    spoil(bert)
    with pytest.raises(CheckpointError, match=message):
        load_recorder(bert)


def test_weights_of_an_unread_pooler_may_be_missing_or_left(bert, folders):
    exact = load_recorder(bert).record(tokens()).output
    change_weights(bert, pooler__dense__weight=None, pooler__dense__bias=None)
    assert torch.equal(load_recorder(bert).record(tokens()).output, exact)
    change_weights(bert, embeddings__position_ids=torch.arange(20)[None])  # as older versions wrote
    assert not any("Left out" in note for note in load_recorder(bert).notes)


REFUSED = {
    "ReformerModelWithLMHead": (
        {
            "vocab_size": V,
            "hidden_size": 8,
            "num_attention_heads": 2,
            "attention_head_size": 4,
            "attn_layers": ["local", "lsh"],
            "axial_pos_shape": [4, 4],
            "axial_pos_embds_dim": [4, 4],
            "max_position_embeddings": 16,
            "is_decoder": True,
            "num_buckets": 2,
            "local_attn_chunk_length": 4,
            "lsh_attn_chunk_length": 4,
        },
        "chunks or buckets",
    ),
    "LongformerModel": ({**ROBERTA, "attention_window": 4}, "chunks or buckets"),
    "MraForMaskedLM": (SIZES, "never forms the matrix"),
    "GptOssForCausalLM": ({**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1}, "attention sinks"),
    "FunnelModel": (
        {"vocab_size": V, "block_sizes": [1, 1], "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 12},
        "no hidden state",
    ),
    "T5ForConditionalGeneration": ({**T5, "decoder_start_token_id": 0}, "T5EncoderModel"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_models_whose_attention_is_no_matrix_of_distributions_are_refused(name, tmp_path):
    settings, message = REFUSED[name]
    make(name, settings, tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_recorder(tmp_path)


def test_attention_that_goes_wrong_later_is_refused_at_the_batch(folders, monkeypatch):
    """As from an implementation that switches by length, or a finite mask value below the scores."""
    from oplens.models import huggingface_run

    recorder, x, mask = load_recorder(folders("BertModel")), tokens(), mask_of(SPANS)
    run = huggingface_run.Runner.__call__

    def spoil(change):
        def call(self, *args, **kwargs):
            answer = run(self, *args, **kwargs)
            return huggingface_run.Answer(
                tuple(change(weight) for weight in answer.attentions), answer.hidden, answer.output
            )

        monkeypatch.setattr(huggingface_run.Runner, "__call__", call)

    spoil(lambda weight: weight * 0.9)
    with pytest.raises(DataError, match=r"sums to 1 only within 0\.1"):
        recorder.record(x, mask)
    spoil(lambda weight: torch.full_like(weight, 1 / weight.shape[-1]))
    with pytest.raises(DataError, match=r"weight 0\.0833 on padding"):
        recorder.record(x, mask)


@pytest.mark.parametrize(
    ("x", "mask", "error", "message"),
    [
        (torch.zeros(1, 4), None, ArgumentError, "tokens are integers"),
        (torch.zeros(4, dtype=torch.int64), None, ArgumentError, "expected"),
        (torch.full((1, 4), V), None, DataError, f"vocabulary is 0 to {V - 1}"),
        (torch.ones(1, 21, dtype=torch.int64), None, DataError, "at most 20"),
        (torch.ones(1, 4, dtype=torch.int64), torch.tensor([[1, 0, 0, 1]]), ArgumentError, "between its real"),
        (torch.ones(1, 4, dtype=torch.int64), torch.ones(1, 3), ArgumentError, "mask of shape"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_it_runs(x, mask, error, message, folders):
    recorder = load_recorder(folders("BertModel"))
    for run in (recorder.record, lambda *given: recorder.apply(None, *given)):
        with pytest.raises(error, match=message):
            run(x, mask)
    with pytest.raises(ArgumentError, match="layers are 0 to 1"):
        recorder.visible(2, 4)


def test_without_transformers_the_cure_is_named(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CheckpointError, match=r"pip install 'oplens\[hf\]'"):
        load_recorder(bert)
