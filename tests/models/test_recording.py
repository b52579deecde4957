"""Our own models behind the recorder's protocol: against plain forward passes, case by case, whatever stands in the padding."""

import numpy as np
import pytest
import torch

from oplens.errors import ArgumentError, CheckpointError, DataError
from oplens.models import S4D, Preprocessing, S4DConfig, Transformer, TransformerConfig
from oplens.models.own_recorders import S4DRecorder, TransformerRecorder
from oplens.models.recorders import load_recorder
from oplens.models.recording import Packing
from oplens.operators.attention import BigBird, Linformer
from oplens.operators.diagonal import kernel
from transformer_oracle import Oracle

# torch itself compiles some formulas at the first forward-mode derivative of a process.
FORWARD_MODE = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

SMALL = {"d_model": 12, "n_heads": 2, "d_ffn": 7, "n_frequencies": 2}
TRANSFORMERS = {
    "encoder": TransformerConfig(3, vocabulary=5, **SMALL),
    "language model": TransformerConfig(
        6, vocabulary=6, causal=True, readout="position", positions="learned", max_length=9, tied=True, **SMALL
    ),
    "series, post-norm": TransformerConfig(2, d_input=3, norm="post", activation="relu", readout="mean", **SMALL),
    "a layer without attention": TransformerConfig(
        2, vocabulary=6, d_model=8, n_heads=(2, 0), d_ffn=5, n_frequencies=2
    ),
    "blocks": TransformerConfig(
        2, vocabulary=6, causal=True, attention=BigBird(window=1, n_global=1, n_random=1, block_size=2), **SMALL
    ),
}
S4DS = {
    "plain": S4DConfig(2, 3, d_model=4, d_state=6),
    "reference": S4DConfig(2, 3, d_model=4, d_state=6, n_layers=2, architecture="reference"),
    "reference, prenorm": S4DConfig(2, 3, d_model=4, d_state=6, n_layers=2, architecture="reference", prenorm=True),
    "polynomial at every step": S4DConfig(2, 3, d_model=4, d_state=6, readout="polynomial", degree=3, pooling="none"),
}
# Six positions; the first case at the end, the second at the front, the third whole.
SPANS = ((2, 6), (0, 3), (0, 6))


def mask_of(spans, length=6):
    position = torch.arange(length)
    return torch.stack([(position >= start) & (position < stop) for start, stop in spans])


def inputs(config, seed=0):
    """Three cases of six positions, padding filled with what would break anything that reads it."""
    generator = torch.Generator().manual_seed(seed)
    mask = mask_of(SPANS)
    if getattr(config, "vocabulary", None):
        return torch.where(mask, torch.randint(config.vocabulary, (3, 6), generator=generator), 10**9), mask
    x = torch.randn(3, 6, config.d_input, generator=generator, dtype=torch.float64)
    return torch.where(mask[..., None], x, torch.nan), mask


def transformer(name):
    torch.manual_seed(1)
    return Transformer(TRANSFORMERS[name]).double()


def s4d(name, **changes):
    import dataclasses

    torch.manual_seed(1)
    preprocessing = Preprocessing((0.5, -1.0), (2.0, 0.5), **changes)
    return S4D(dataclasses.replace(S4DS[name], preprocessing=preprocessing)).double()


def recorder_of(name):
    if name in TRANSFORMERS:
        return TransformerRecorder.of(transformer(name))
    return S4DRecorder.of(s4d(name))


def test_packing_against_loops():
    mask = mask_of(((1, 3), (0, 4), (3, 5)), 5)
    x = torch.arange(15.0).reshape(3, 5)
    packing = Packing.of("record", x, mask.long())
    packed = packing.pack(x, -1)
    expected = [[1.0, 2, -1, -1], [5, 6, 7, 8], [13, 14, -1, -1]]
    assert packed.tolist() == expected
    pairs = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    states = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1))
    back, back_pairs = packing.unpack(states), packing.unpack_pairs(pairs)
    for case, (start, stop) in enumerate(((1, 3), (0, 4), (3, 5))):
        for i in range(5):
            inside = start <= i < stop
            assert torch.equal(back[case, i], states[case, i - start] if inside else torch.zeros(2))
            for j in range(5):
                seen = inside and start <= j < stop
                wanted = pairs[case, :, i - start, j - start] if seen else torch.zeros(2)
                assert torch.equal(back_pairs[case, :, i, j], wanted)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_is_recorded_as_it_computes(name):
    model, recorder = transformer(name), recorder_of(name)
    x, mask = inputs(model.config)
    recording = recorder.record(x, mask)
    oracle = Oracle(model)
    assert len(recording.hidden) == recorder.n_layers + 1 == len(recording.attentions) + 1
    for case, (start, stop) in enumerate(SPANS):
        output, embedded, layers = oracle.run(x[case, start:stop].numpy())
        found = recording.output[case]
        found = found[start:stop] if model.config.readout == "position" else found
        np.testing.assert_allclose(found, output, atol=1e-10)
        np.testing.assert_allclose(recording.hidden[0][case, start:stop], embedded, atol=1e-10)
        for layer, expected in enumerate(layers):
            np.testing.assert_allclose(recording.hidden[layer + 1][case, start:stop], expected["hidden"], atol=1e-10)
            if expected["weights"] is None:
                assert recording.attentions[layer] is None
            else:
                weights = recording.attentions[layer][case]
                np.testing.assert_allclose(weights[:, start:stop, start:stop], expected["weights"], atol=1e-10)
                assert float(weights.sum()) == pytest.approx(len(weights) * (stop - start))  # nothing on padding
        for state in recording.hidden:
            assert float(state[case].sum()) == pytest.approx(float(state[case, start:stop].sum()))


def s4d_oracle(model, x):
    """States and logits of one case by sums over lags."""
    config = model.config
    weight, bias = model.encoder.weight.detach().numpy(), model.encoder.bias.detach().numpy()
    x = (x - np.array(config.preprocessing.mean)) / np.array(config.preprocessing.scale)
    hidden = [x @ weight.T + bias]

    def norm(h, layer):
        part = model.norms[layer]
        spread = np.sqrt(h.var(-1, keepdims=True) + part.eps)
        return (h - h.mean(-1, keepdims=True)) / spread * part.weight.detach().numpy() + part.bias.detach().numpy()

    for index in range(config.n_layers):
        layer, h = model.layer(index), hidden[-1]
        u = norm(h, index) if config.architecture == "reference" and config.prenorm else h
        K = kernel(layer.system(), len(x), skip=True).detach().numpy()
        z = np.array([sum(K[:, lag] * u[t - lag] for lag in range(t + 1)) for t in range(len(x))])
        if config.readout == "polynomial":
            powers = model.polynomial.detach().numpy()
            g = sum(powers[:, k] * z**k for k in range(powers.shape[1]))
        else:
            g = torch.nn.functional.gelu(torch.from_numpy(z)).numpy()
        if config.architecture == "plain":
            hidden.append(g)
            continue
        W, b = layer.convolution.weight.detach().numpy()[..., 0], layer.convolution.bias.detach().numpy()
        value, gate = np.split(g @ W.T + b, 2, axis=-1)
        h = h + value / (1 + np.exp(-gate))
        hidden.append(h if config.prenorm else norm(h, index))
    read = hidden[-1] if config.pooling == "none" else hidden[-1].mean(0)
    return hidden, read @ model.decoder.weight.detach().numpy().T + model.decoder.bias.detach().numpy()


@pytest.mark.parametrize("name", S4DS)
def test_an_s4d_is_recorded_as_it_computes_on_raw_sequences(name):
    model, recorder = s4d(name), recorder_of(name)
    x, mask = inputs(model.config)
    recording = recorder.record(x, mask)
    assert recording.attentions == ()
    for case, (start, stop) in enumerate(SPANS):
        hidden, logits = s4d_oracle(model, x[case, start:stop].numpy())
        found = recording.output[case]
        found = found[start:stop] if model.config.pooling == "none" else found
        np.testing.assert_allclose(found, logits, atol=1e-10)
        assert len(hidden) == len(recording.hidden)
        for state, expected in zip(recording.hidden, hidden, strict=True):
            np.testing.assert_allclose(state[case, start:stop], expected, atol=1e-10)
            assert float(state[case].abs().sum()) == pytest.approx(np.abs(expected).sum())


@FORWARD_MODE
@pytest.mark.parametrize(
    "name", ["language model", "series, post-norm", "plain", "reference", "polynomial at every step"]
)
def test_outputs_have_derivatives_in_the_parameters_also_under_vmap(name):
    recorder = recorder_of(name)
    x, mask = inputs(recorder.module.config)
    at = {key: value.detach() for key, value in recorder.module.named_parameters()}
    generator = torch.Generator().manual_seed(3)
    noise = {key: torch.randn(2, *value.shape, generator=generator, dtype=value.dtype) for key, value in at.items()}

    def output(parameters):
        return recorder.apply(parameters, x, mask)

    torch.testing.assert_close(recorder.apply(None, x, mask), recorder.record(x, mask).output, rtol=0, atol=1e-12)
    found = torch.func.vmap(lambda e: torch.func.jvp(output, (at,), (e,))[1])(noise)
    for draw in range(2):
        step = 1e-6
        ends = [output({key: at[key] + sign * step * noise[key][draw] for key in at}) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        assert float(slope.abs().max()) > 1e-3
        torch.testing.assert_close(found[draw], slope, rtol=0, atol=1e-6 * float(slope.abs().max()))


@FORWARD_MODE
def test_sparse_weights_have_the_derivatives_of_dense_ones():
    model = transformer("encoder")
    sparse = TransformerRecorder.of(model.to_sparse())
    x, mask = inputs(model.config)
    at = {key: value.detach() for key, value in sparse.module.named_parameters()}
    noise = {key: torch.ones_like(value) for key, value in at.items()}
    found = torch.func.jvp(lambda p: sparse.apply(p, x, mask), (at,), (noise,))
    dense = TransformerRecorder.of(model)
    everywhere = {key: torch.ones_like(value) for key, value in dense.module.named_parameters()}
    wanted = torch.func.jvp(
        lambda p: dense.apply(p, x, mask),
        ({k: v.detach() for k, v in dense.module.named_parameters()},),
        (everywhere,),
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    assert sparse.facts["weights"] == "sparse"
    ways = []
    for recorder, end in ((sparse, "values"), (dense, "weight")):
        values = {key: value.detach().requires_grad_() for key, value in recorder.module.named_parameters()}
        recorder.apply(values, x, mask).sum().backward()
        ways.append(values[f"layers.0.attention.query.{end}"].grad.flatten())
    assert float(ways[0].abs().max()) > 1e-3
    torch.testing.assert_close(ways[0], ways[1], rtol=0, atol=1e-10)


def test_a_model_keeps_what_it_was_given_and_the_recorder_is_frozen():
    model = transformer("encoder").float().train()
    recorder = TransformerRecorder.of(model)
    assert model.training
    assert next(model.parameters()).requires_grad
    assert next(model.parameters()).dtype == torch.float32
    assert not recorder.module.training
    assert not any(parameter.requires_grad for parameter in recorder.module.parameters())


def test_half_precision_is_said_and_float32_differs_from_float64_by_its_rounding():
    model = transformer("encoder")
    x, mask = inputs(model.config)
    exact = TransformerRecorder.of(model).record(x, mask).output
    for dtype, worst, least in (("float32", 1e-5, 1e-9), ("bfloat16", 0.1, 1e-5)):
        recorder = TransformerRecorder.of(model, dtype=dtype)
        miss = float((recorder.record(x, mask).output.double() - exact).abs().max())
        assert least < miss < worst
        assert recorder.facts["dtype"] == dtype


def test_facts_count_tied_weights_once_and_say_what_the_outputs_are():
    recorder = recorder_of("language model")
    module = recorder.module
    assert recorder.facts["parameters"] == sum(p.numel() for p in {id(p): p for p in module.parameters()}.values())
    assert (recorder.predicts_next, recorder.causal, recorder.max_length, recorder.vocabulary) == (True, True, 9, 6)
    assert "next token" in recorder.notes[0]
    assert not recorder_of("encoder").predicts_next
    assert (recorder_of("series, post-norm").kind, recorder_of("series, post-norm").d_input) == ("series", 3)
    assert recorder_of("plain").causal
    assert not S4DRecorder.of(s4d("plain", remove_offset=True)).causal


def test_what_blocks_hide_is_told_layer_by_layer():
    recorder = recorder_of("blocks")
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(6, (4, 9), generator=generator)
    weights = recorder.record(x).attentions
    for layer in range(recorder.n_layers):
        pattern = recorder.visible(layer, 9)
        assert torch.equal(pattern, (weights[layer] > 0).any(0).any(0))
        assert 9 < int(pattern.sum()) < 45
    assert recorder_of("encoder").visible(0, 9) is None
    drawn = TransformerRecorder.of(Transformer(TransformerConfig(2, vocabulary=6, attention=BigBird(), **SMALL)))
    assert drawn.visible(0, 9) is None
    assert "depends on the case" in drawn.notes[0]


def test_patterns_that_count_blocks_refuse_padding_before_the_tokens_only():
    recorder = recorder_of("blocks")
    x = torch.ones(1, 12, dtype=torch.int64)
    assert recorder.record(x, torch.arange(12)[None] < 11).mask.sum() == 11
    with pytest.raises(ArgumentError, match="pad after the real positions"):
        recorder.record(x, torch.arange(12)[None] > 0)


def test_a_saved_model_is_read_back_and_told_apart(tmp_path):
    transformer("encoder").save_pretrained(tmp_path / "ours")
    s4d("reference").save_pretrained(tmp_path / "waves")
    one, two = load_recorder(tmp_path / "ours"), load_recorder(tmp_path / "waves", "float32")
    assert (one.name, one.kind, two.name, two.kind) == ("ours", "tokens", "waves", "series")
    x, mask = inputs(TRANSFORMERS["encoder"])
    assert torch.equal(one.record(x, mask).output, recorder_of("encoder").record(x, mask).output)
    assert two.record(torch.zeros(1, 4, 2)).hidden[0].dtype == torch.float32
    with pytest.raises(ArgumentError, match="dtype='float16'"):
        load_recorder(tmp_path / "waves", "float16")
    with pytest.raises(ArgumentError, match="choose one of float64"):
        load_recorder(tmp_path / "ours", "double")
    with pytest.raises(CheckpointError, match="no such folder"):
        load_recorder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_recorder(tmp_path / "empty")


@pytest.mark.parametrize(
    ("name", "x", "mask", "error", "message"),
    [
        ("encoder", torch.zeros(2, 3), None, ArgumentError, "tokens are integers"),
        ("encoder", torch.zeros(3, dtype=torch.int64), None, ArgumentError, r"expected \(batch >= 1"),
        ("encoder", torch.full((2, 3), 5), None, DataError, "vocabulary is 0 to 4"),
        ("encoder", torch.full((2, 3), -1), None, DataError, "tokens from -1"),
        ("encoder", torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 2), ArgumentError, "mask of shape"),
        ("encoder", torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[0.0, -1e9]]), ArgumentError, "additive mask"),
        ("encoder", torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2), ArgumentError, "case 0 has no real"),
        ("encoder", torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[1, 0, 1]]), ArgumentError, "between its real"),
        ("language model", torch.zeros(1, 10, dtype=torch.int64), None, DataError, "at most 9; cut"),
        ("series, post-norm", torch.zeros(1, 4, 2), None, ArgumentError, "d_input=3"),
        ("series, post-norm", torch.full((1, 4, 3), torch.nan), None, DataError, "case 0, position 0, input 0"),
        ("series, post-norm", torch.zeros(1, 4, 3, dtype=torch.cfloat), None, ArgumentError, "real numbers"),
        ("plain", torch.full((1, 4, 2), torch.inf), None, DataError, "outside the padding"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_it_runs(name, x, mask, error, message):
    recorder = recorder_of(name)
    for run in (recorder.record, lambda *given: recorder.apply(None, *given)):
        with pytest.raises(error, match=message):
            run(x, mask)


def test_other_misuse_has_a_sentence_too():
    recorder = recorder_of("encoder")
    with pytest.raises(ArgumentError, match="none of module"):
        recorder.apply({"weight": torch.zeros(1)}, torch.zeros(1, 2, dtype=torch.int64))
    for layer, length in ((-1, 4), (2, 4), (0, 0)):
        with pytest.raises(ArgumentError, match="layers are 0 to 1"):
            recorder.visible(layer, length)
    with pytest.raises(ArgumentError, match="layers are 0 to 0"):
        recorder_of("plain").visible(1, 4)


def test_linformer_may_not_be_causal_and_is_recorded_with_its_note():
    model = Transformer(TransformerConfig(2, vocabulary=6, attention=Linformer(rank=2), **SMALL))
    recorder = TransformerRecorder.of(model)
    assert "relative to all positions" in recorder.notes[0]
    weights = recorder.record(torch.ones(1, 5, dtype=torch.int64)).attentions[0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 5, dtype=torch.float64))
