"""Transformers of every kind against a forward pass in numpy, against torch's own, and what must change nothing."""

import numpy as np
import pytest
import torch
from torch import nn

from oplens.errors import ArgumentError
from oplens.models import transformer_layers
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig
from oplens.operators.attention import BigBird, Linformer, Performer, Reformer, Softmax
from transformer_oracle import Oracle

SMALL = {"d_model": 12, "n_heads": 2, "d_ffn": 7, "n_frequencies": 2}
CONFIGS = {
    "encoder of tokens": TransformerConfig(3, vocabulary=5, **SMALL),
    "decoder, a language model": TransformerConfig(
        6, vocabulary=6, causal=True, readout="position", positions="learned", max_length=20, tied=True, **SMALL
    ),
    "real inputs, post-norm, mean": TransformerConfig(
        2, d_input=3, norm="post", activation="relu", readout="mean", positions="added", **SMALL
    ),
    "construction: no norm": TransformerConfig(
        2,
        vocabulary=4,
        d_model=15,
        n_layers=3,
        n_heads=(1, 2, 0),
        d_head=(4, 3, 1),
        d_value=(9, 5, 1),
        d_ffn=(6, 0, 11),
        activation="relu",
        norm="none",
        causal=True,
        n_frequencies=2,
        frequency_base=50.0,
    ),
    "no skip, no bias, no positions": TransformerConfig(
        4, vocabulary=4, skip=False, bias=False, positions="none", norm="none", readout="position", **SMALL
    ),
    "no attention at all": TransformerConfig(
        2, d_input=2, d_model=9, n_heads=0, d_ffn=5, n_frequencies=3, readout="mean"
    ),
    "performer decoder": TransformerConfig(
        3, d_input=2, causal=True, attention=Performer(6, seed=3), readout="position", **SMALL
    ),
    "bigbird": TransformerConfig(3, vocabulary=5, attention=BigBird(3, 1, 1, block_size=2), **SMALL),
    "bigbird decoder": TransformerConfig(
        3, vocabulary=5, causal=True, attention=BigBird(1, 1, 2, block_size=2), readout="position", **SMALL
    ),
    "linformer": TransformerConfig(3, vocabulary=5, attention=Linformer(3), readout="mean", **SMALL),
    "reformer": TransformerConfig(3, vocabulary=5, attention=Reformer(2, 4), readout="mean", **SMALL),
    "reformer decoder": TransformerConfig(3, d_input=1, causal=True, attention=Reformer(1, 3), norm="post", **SMALL),
    "sparse": TransformerConfig(3, d_input=2, weights="sparse", activation="relu", norm="none", **SMALL),
    "sparse, tied": TransformerConfig(
        5, vocabulary=5, weights="sparse", tied=True, positions="none", readout="position", **SMALL
    ),
}
CAUSAL = [name for name, config in CONFIGS.items() if config.causal]
LENGTHS = torch.tensor([4, 11, 1, 8])


def build(name, seed=0, dtype=torch.float64):
    """A model whose every parameter is random, norms and biases too."""
    torch.manual_seed(seed)
    config = CONFIGS[name]
    model = Transformer(config)
    for module in model.modules():
        if isinstance(module, transformer_layers.SparseLinear):
            mask = torch.rand(module.d_output, module.d_input) < 0.4
            rows, columns = mask.nonzero(as_tuple=True)
            module.set_entries(rows, columns, torch.randn(len(rows)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model.to(dtype).eval()


def inputs(config, batch=4, length=11, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if config.vocabulary is not None:
        return torch.randint(0, config.vocabulary, (batch, length), generator=generator)
    return torch.randn(batch, length, config.d_input, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("ragged", [False, True], ids=["", "ragged"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_value_is_that_of_the_formulas(name, ragged):
    model = build(name)
    x = inputs(model.config)
    lengths = LENGTHS if ragged else None
    with torch.no_grad():
        output, trace = model(x, lengths), model.trace(x, lengths)
    oracle = Oracle(model)
    for case in range(4):
        n = int(LENGTHS[case]) if ragged else 11
        expected, embedded, layers = oracle.run(x[case, :n].numpy())
        each = model.config.readout == "position"
        for found in (output, trace.output):
            np.testing.assert_allclose((found[case, :n] if each else found[case]).numpy(), expected, atol=1e-11)
        np.testing.assert_allclose(trace.embedded[case, :n].numpy(), embedded, atol=1e-13)
        assert trace.mask[case].tolist() == [True] * n + [False] * (11 - n)
        for layer, values in zip(trace.layers, layers, strict=True):
            for key, value in values.items():
                kept = getattr(layer, key)
                assert (kept is None) == (value is None), key
                if value is None:
                    continue
                kept = kept[case].numpy()
                there = kept[:, :n, :n] if key == "weights" else kept[:n]
                np.testing.assert_allclose(there, value, atol=1e-11, err_msg=key)
                padding = [kept[:, n:], kept[:, :, n:]] if key == "weights" else [kept[n:]]
                assert not any(part.any() for part in padding), key
        assert not trace.embedded[case, n:].any()


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_changes_nothing_whatever_it_holds(name):
    model = build(name, seed=1)
    x = inputs(model.config)
    alone = [model(x[i : i + 1, :n])[0] for i, n in enumerate(LENGTHS.tolist())]
    width = (0, 6) if x.ndim == 2 else (0, 0, 0, 6)
    padded = torch.nn.functional.pad(x, width)
    valid = torch.arange(17) < LENGTHS[:, None]
    padded = torch.where(valid, padded, -7) if x.ndim == 2 else torch.where(valid[..., None], padded, float("nan"))
    found = model(padded, LENGTHS)
    for case, n in enumerate(LENGTHS.tolist()):
        got = found[case, :n] if model.config.readout == "position" else found[case]
        np.testing.assert_allclose(got.detach().numpy(), alone[case].detach().numpy(), atol=1e-12)
    found.sum().backward() if model.config.readout != "position" else found[0, 0].sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_decoder_does_not_see_the_future(name):
    """To the last bit in every layer; through the gradient too."""
    model = build(name, seed=2)
    x = inputs(model.config, batch=2)
    before = model.trace(x)
    for t in (1, 6, 10):
        later = x.clone()
        later[:, t:] = inputs(model.config, batch=2, seed=9)[:, t:]
        after = model.trace(later)
        for old, new in zip(before.layers, after.layers, strict=True):
            assert torch.equal(old.hidden[:, :t], new.hidden[:, :t])
        assert not torch.equal(before.layers[-1].hidden[:, t:], after.layers[-1].hidden[:, t:])
    if x.is_floating_point():
        x.requires_grad_()
        model.trace(x).layers[-1].hidden[:, 5].sum().backward()
        assert not x.grad[:, 6:].any()
        assert x.grad[:, :6].abs().sum() > 0


def test_an_encoder_sees_the_future():
    model = build("encoder of tokens")
    x = torch.zeros(1, 6, dtype=torch.long)
    later = x.clone()
    later[0, 5] = 1
    assert not torch.allclose(model.trace(x).layers[-1].hidden[:, 0], model.trace(later).layers[-1].hidden[:, 0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_layer_equals_torchs_own(norm, activation, causal):
    torch.manual_seed(3)
    config = TransformerConfig(
        2, d_input=5, d_model=12, n_layers=2, n_heads=3, d_ffn=20, norm=norm, activation=activation, causal=causal,
        positions="none",
    )  # fmt: skip
    model = Transformer(config).double().eval()
    theirs = [
        nn.TransformerEncoderLayer(12, 3, 20, 0.0, activation, batch_first=True, norm_first=norm == "pre").double()
        for _ in range(2)
    ]
    with torch.no_grad():
        for layer, block in zip(theirs, model.layers, strict=True):
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape) / 3)
            a = block.attention
            for part, weight, bias in zip(
                (a.query, a.key, a.value),
                layer.self_attn.in_proj_weight.chunk(3),
                layer.self_attn.in_proj_bias.chunk(3),
                strict=True,
            ):
                part.weight.copy_(weight)
                part.bias.copy_(bias)
            a.output.load_state_dict(layer.self_attn.out_proj.state_dict())
            block.feedforward.up.load_state_dict(layer.linear1.state_dict())
            block.feedforward.down.load_state_dict(layer.linear2.state_dict())
            block.norm_attention.load_state_dict(layer.norm1.state_dict())
            block.norm_feedforward.load_state_dict(layer.norm2.state_dict())
    x, lengths = torch.randn(3, 9, 5, dtype=torch.float64), torch.tensor([9, 4, 6])
    trace = model.trace(x, lengths)
    padding = torch.arange(9) >= lengths[:, None]
    mask = torch.ones(9, 9, dtype=torch.bool).triu(1) if causal else None
    hidden = model.embedding(x, ~padding)
    for index, layer in enumerate(theirs):
        hidden = layer(hidden, src_mask=mask, src_key_padding_mask=padding)
        found = trace.layers[index].hidden
        np.testing.assert_allclose(
            found[~padding].detach().numpy(), hidden[~padding].detach().numpy(), rtol=1e-10, atol=1e-11
        )
    u = model.embedding(x, ~padding)
    u = theirs[0].norm1(u) if norm == "pre" else u
    weights = theirs[0].self_attn(u, u, u, padding, attn_mask=mask, average_attn_weights=False)[1]
    rows = ~padding[:, None].expand(-1, 3, -1)
    np.testing.assert_allclose(
        trace.layers[0].weights[rows].detach().numpy(), weights[rows].detach().numpy(), atol=1e-13
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_lower_precision_is_near_float64(name):
    model = build(name)
    x = inputs(model.config)
    exact = model.as_float64()(x, LENGTHS)
    keep = torch.arange(11) < LENGTHS[:, None]
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float16, 0.1), (torch.bfloat16, 0.8)):
        if dtype != torch.float32 and ("reformer" in name or "performer" in name):
            continue  # a rounded vector may change its bucket; random features amplify it
        found = build(name, dtype=dtype)(x, LENGTHS)
        assert found.dtype == dtype
        gap = (found.double() - exact).abs()
        gap = gap[keep] if model.config.readout == "position" else gap
        assert gap.max() < tolerance * exact.abs().max()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_has_a_finite_gradient(name):
    model = build(name, dtype=torch.float32)
    model(inputs(model.config), LENGTHS).square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        # A constant added to all keys moves no softmax.
        if not key.endswith("key.bias"):
            assert parameter.grad.abs().sum() > 0, key


# What torch says of its own forward mode.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.weights == "dense"])
def test_derivatives_along_weights_forward_equal_those_backward(name):
    """Jacobian-vector products, by which robustness to noise in weights is computed."""
    model = build(name)
    x = inputs(model.config)
    weights = {key: parameter.detach() for key, parameter in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    change = {key: torch.randn(p.shape, generator=generator, dtype=p.dtype) for key, p in weights.items()}
    output, forward = torch.func.jvp(
        lambda w: torch.func.functional_call(model, w, (x, LENGTHS)), (weights,), (change,)
    )
    direction = torch.randn(output.shape, generator=generator, dtype=output.dtype)
    (model(x, LENGTHS) * direction).sum().backward()
    backward = sum(float((p.grad * change[key]).sum()) for key, p in model.named_parameters())
    assert float((forward * direction).sum()) == pytest.approx(backward, rel=1e-10)


@pytest.mark.parametrize("name", ["encoder of tokens", "construction: no norm", "no attention at all"])
def test_only_the_last_position_is_fed_where_only_it_is_read(name, monkeypatch):
    model = build(name)
    x = inputs(model.config)
    rows = []
    feed = transformer_layers.FeedForward.forward

    def counted(self, hidden):
        rows.append(hidden.shape[1])
        return feed(self, hidden)

    monkeypatch.setattr(transformer_layers.FeedForward, "forward", counted)
    model(x)
    layers = model.config.layers
    expected = [
        1 if model.config.readout == "last" and index >= model.config.last_attention else 11
        for index, layer in enumerate(layers)
        if layer.d_ffn
    ]
    assert rows == expected


def test_a_wide_network_takes_some_positions_at_a_time(monkeypatch):
    model = build("decoder, a language model")
    x = inputs(model.config)
    with torch.no_grad():
        whole = model(x)
        monkeypatch.setattr(transformer_layers, "HIDDEN_AT_ONCE", 3 * 7)
        rows = []
        activations = transformer_layers.FeedForward.activations
        monkeypatch.setattr(
            transformer_layers.FeedForward,
            "activations",
            lambda self, hidden: (rows.append(len(hidden)), activations(self, hidden))[1],
        )
        np.testing.assert_allclose(model(x).numpy(), whole.numpy(), atol=1e-13)
    assert max(rows) == 3
    assert sum(rows) == 2 * 44


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    config = TransformerConfig(2, d_input=2, dropout=0.3, positions="none", **SMALL)
    model = Transformer(config).double()
    x = torch.randn(8, 50, 2, dtype=torch.float64)
    trace = model.trace(x)
    n = trace.embedded.numel()
    dropped = [(trace.embedded == 0), (trace.layers[0].attended == trace.embedded)]
    for part in dropped:
        assert abs(float(part.double().mean()) - 0.3) < 4 * (0.21 / n) ** 0.5
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("readout", ["last", "mean", "position"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_lengths_may_be_integers_of_any_kind(dtype, readout):
    """Bytes that index are masks to torch."""
    model = Transformer(TransformerConfig(2, d_input=3, readout=readout, **SMALL)).eval()
    x = torch.randn(4, 11, 3)
    assert torch.equal(model(x, LENGTHS.to(dtype)), model(x, LENGTHS))
    assert torch.equal(model.trace(x, LENGTHS.to(dtype)).output, model.trace(x, LENGTHS).output)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_without_values_runs_with_lengths_of_another_device(name):
    """What would fail on a GPU as well: tensors made where the inputs are not."""
    config = CONFIGS[name]
    with torch.device("meta"):
        model = Transformer(config).eval()
    x = inputs(config).to("meta")
    expected = (4, 11, config.d_output) if config.readout == "position" else (4, config.d_output)
    for lengths in (None, LENGTHS, LENGTHS.to("meta")):
        found = model(x, lengths)
        assert found.is_meta
        assert found.shape == expected
        assert model.trace(x, lengths).output.shape == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ragged", [False, True], ids=["", "ragged"])
def test_the_mean_of_a_long_sequence_fits_half_precision(dtype, ragged):
    """Sums of 70,000 values, and the number itself, are infinite in float16; 257 is no number of bfloat16."""
    config = TransformerConfig(
        1, d_input=1, d_model=2, n_layers=1, n_heads=0, d_ffn=1, norm="none", positions="none", readout="mean"
    )
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.input.weight[0] = 1.0
        model.readout.weight[0, 0] = 1.0
    model = model.to(dtype).eval()
    for n in (257, 70_000):
        x = torch.full((1, n + 3, 1), 3.0, dtype=dtype)
        x[0, n:] = 1000.0
        found = model(x, torch.tensor([n])) if ragged else model(x[:, :n])
        assert found.item() == 3.0
        assert model.trace(x[:, :n], weights=False).output.item() == 3.0


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.d_input])
def test_a_value_that_is_none_stays_in_its_case_and_is_not_hidden(name):
    model = build(name)
    x = inputs(model.config)
    before = model(x)
    x[1, 2, 0] = float("nan")
    after = model(x)
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])
    seen = after[1, 2] if model.config.readout == "position" else after[1]
    assert torch.isnan(seen).all()


def test_layers_draw_different_features():
    config = TransformerConfig(2, d_input=2, attention=Performer(4, seed=7), **SMALL)
    seeds = [block.attention.family.seed for block in Transformer(config).layers]
    assert seeds == [7, 8]


def test_a_new_model_learns_to_copy_the_token_before():
    """All of it in use: a decoder, trained a little, knows the previous token at every position."""
    torch.manual_seed(0)
    config = TransformerConfig(
        4, vocabulary=4, d_model=32, n_layers=1, n_heads=2, d_ffn=32, causal=True, readout="position"
    )
    model = Transformer(config)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        tokens = torch.randint(0, 4, (32, 8))
        loss = nn.functional.cross_entropy(model(tokens)[:, 1:].flatten(0, 1), tokens[:, :-1].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize(
    "family",
    [Softmax(), Performer(16), Linformer(3), Reformer(2, 2), BigBird(3, 1, 1, block_size=1)],
    ids=lambda family: family.name,
)
def test_every_family_learns_the_majority_of_padded_sequences(family):
    torch.manual_seed(0)
    x = torch.tensor([[i >> j & 1 for j in range(5)] for i in range(32)] * 2)
    lengths = torch.tensor([3] * 32 + [5] * 32)
    ones = (x * (torch.arange(5) < lengths[:, None])).sum(1)
    labels = (2 * ones > lengths).long()
    config = TransformerConfig(
        2, vocabulary=2, d_model=24, n_layers=1, n_heads=1, d_head=20, d_ffn=32, n_frequencies=2, attention=family
    )
    model = Transformer(config)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(100):
        loss = nn.functional.cross_entropy(model(x, lengths), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (model(x, lengths).argmax(-1) == labels).double().mean() > 0.9


MODEL = Transformer(TransformerConfig(2, vocabulary=4, max_length=6, **SMALL))
REAL = Transformer(TransformerConfig(2, d_input=3, **SMALL))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: MODEL(torch.zeros(2, 3, 1, dtype=torch.long)), r"length >= 1\), got \(2, 3, 1\)"),
        (lambda: MODEL(torch.zeros(2, 0, dtype=torch.long)), r"got \(2, 0\)"),
        (lambda: MODEL(torch.zeros(2, 3)), "tokens are integers, got torch.float32"),
        (lambda: MODEL(torch.zeros(2, 3, dtype=torch.bool)), "tokens are integers"),
        (lambda: MODEL(torch.full((2, 3), 4)), "tokens from 4 to 4; the vocabulary is 0 to 4"),
        (lambda: MODEL(torch.full((2, 3), -1)), "tokens from -1"),
        (lambda: MODEL(torch.zeros(2, 7, dtype=torch.long)), "7 positions.*max_length=6"),
        (lambda: MODEL(torch.zeros(2, 3, dtype=torch.long), torch.tensor([3])), "2 integers, one per case"),
        (lambda: MODEL(torch.zeros(2, 3, dtype=torch.long), torch.tensor([3.0, 2.0])), "2 integers"),
        (lambda: MODEL(torch.zeros(2, 3, dtype=torch.long), torch.tensor([3, 2]) * 1j), "2 integers"),
        (lambda: MODEL(torch.zeros(2, 3, dtype=torch.long), [3, 2]), "a tensor of 2 integers; got list"),
        (lambda: MODEL(torch.zeros(2, 3, dtype=torch.long), torch.tensor([0, 3])), "between 1 and 3; got 0 to 3"),
        (lambda: MODEL(torch.zeros(2, 3, dtype=torch.long), torch.tensor([1, 4])), "between 1 and 3"),
        (lambda: REAL(torch.zeros(2, 3, 2)), "d_input=3"),
        (lambda: REAL(torch.zeros(2, 3, 3, dtype=torch.complex64)), "x is complex"),
    ],
)
def test_what_cannot_be_read_is_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
