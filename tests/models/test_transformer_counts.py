"""Counts by formula against real models, on the meta device where they are too large to hold."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig
from oplens.models.transformer_counts import PRESETS, count_flops, count_memory, count_parameters
from oplens.operators.attention import BigBird, Linformer, Performer, Reformer

# The paper's Table 1: layers, width, heads.
TABLE = {
    "125M": (12, 768, 12),
    "350M": (24, 1024, 16),
    "1.3B": (24, 2048, 32),
    "6.7B": (32, 4096, 32),
    "175B": (96, 12288, 96),
}
SMALL = {"d_model": 12, "n_heads": 2, "d_ffn": 7, "n_frequencies": 2}
CONFIGS = {
    "plain": TransformerConfig(3, vocabulary=5, **SMALL),
    "language model": TransformerConfig(
        6, vocabulary=6, causal=True, readout="position", positions="learned", max_length=20, tied=True, **SMALL
    ),
    "mixed layers": TransformerConfig(
        2, d_input=3, d_model=12, n_layers=4, n_heads=(1, 0, 2, 0), d_head=(4, 1, 3, 1), d_value=(9, 1, 5, 1), d_ffn=(6, 4, 0, 11)
    ),
    "post-norm, mean": TransformerConfig(2, d_input=3, norm="post", readout="mean", **SMALL),
    "no bias, no norm": TransformerConfig(2, d_input=3, norm="none", bias=False, **SMALL),
    "bigbird": TransformerConfig(3, vocabulary=5, attention=BigBird(3, 1, 1, block_size=2), **SMALL),
    "reformer": TransformerConfig(3, vocabulary=5, attention=Reformer(2, 4), causal=True, **SMALL),
    "linformer": TransformerConfig(3, vocabulary=5, attention=Linformer(3), **SMALL),
}  # fmt: skip


def on_meta(config):
    with torch.device("meta"):
        return Transformer(config).eval()


def meta_input(config, batch, length):
    if config.vocabulary is not None:
        return torch.zeros(batch, length, dtype=torch.long, device="meta")
    return torch.zeros(batch, length, config.d_input, device="meta")


@pytest.mark.parametrize("name", [*CONFIGS, *PRESETS])
def test_parameters_are_those_of_the_model(name):
    config = CONFIGS.get(name) or PRESETS[name]
    model, found = on_meta(config), count_parameters(config)
    sizes = {key: parameter.numel() for key, parameter in model.named_parameters()}
    assert found.total == sum(sizes.values())
    groups = {
        "embedding": r"embedding\.(token|input)",
        "positions": r"embedding\.position",
        "attention": r"layers\.\d+\.attention",
        "feedforward": r"layers\.\d+\.feedforward",
        "norms": r"(layers\.\d+\.|final_)norm",
        "readout": r"readout",
    }
    for group, pattern in groups.items():
        assert getattr(found, group) == sum(n for key, n in sizes.items() if re.match(pattern, key)), group
    assert found.non_embedding == found.total - found.embedding - found.positions - found.readout


@pytest.mark.parametrize("name", PRESETS)
def test_the_table_of_the_paper_is_what_its_sizes_give(name):
    config = PRESETS[name]
    n_layers, d_model, n_heads = TABLE[name]
    assert (config.n_layers, config.d_model, config.layers[0].n_heads) == (n_layers, d_model, n_heads)
    formula = 12 * n_layers * d_model**2 + 50257 * d_model + 2048 * d_model
    total = count_parameters(config).total
    vectors = n_layers * 13 * d_model + 2 * d_model  # biases 4 + 5, norms 4, per layer; the last norm
    assert total == formula + vectors
    printed = float(name[:-1]) * {"M": 1e6, "B": 1e9}[name[-1]]
    assert abs(total / printed - 1) < 0.02


def test_gpt_2_has_its_published_number_of_parameters():
    small = dataclasses.replace(PRESETS["125M"], max_length=1024)
    assert count_parameters(small).total == 124_439_808


@pytest.mark.parametrize("length", [1, 9, 16])
@pytest.mark.parametrize("name", CONFIGS)
def test_operations_are_those_that_are_counted(name, length):
    config = CONFIGS[name]
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        on_meta(config)(meta_input(config, 3, length))
    found = count_flops(config, length, batch=3)
    assert found.total == counted.get_total_flops()
    assert found.per_position == found.total / (3 * length)
    assert found.training == 3 * found.total


@pytest.mark.parametrize("name", PRESETS)
def test_operations_of_the_presets(name):
    config = PRESETS[name]
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        output = on_meta(config)(meta_input(config, 1, 512))
    assert output.shape == (1, 512, 50257)
    assert count_flops(config, 512).total == counted.get_total_flops()


def test_the_page_shows_the_numbers_of_the_presets():
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    lines = page.split("## The sizes of the paper's Table 1")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| \d", line)]
    assert [row[0] for row in rows] == list(PRESETS)
    for row, config in zip(rows, PRESETS.values(), strict=True):
        memory = count_memory(config, 2048, dtype=torch.bfloat16)
        flops = count_flops(config, 2048)
        numbers = (
            memory.weights / 1e9,
            memory.training / 1e9,
            memory.cache / 1e9,
            flops.per_position / 1e9,
            flops.training / 1e15,
        )
        assert row[1] == " x ".join(str(n) for n in TABLE[row[0]])
        assert row[2] == f"{count_parameters(config).total:,}"
        assert row[3:] == [f"{n:.3g}" if n < 1000 else f"{n:,.0f}" for n in numbers]


def test_a_backward_pass_costs_two_forward_passes():
    config = CONFIGS["post-norm, mean"]
    model, x = Transformer(config), torch.randn(2, 6, 3, requires_grad=True)
    with FlopCounterMode(display=False) as counted:
        model(x).sum().backward()
    assert counted.get_total_flops() == count_flops(config, 6, 2).training


def test_a_performer_costs_in_proportion_to_length():
    config = TransformerConfig(3, vocabulary=5, attention=Performer(16), readout="position", **SMALL)
    one, two = (count_flops(config, n).total for n in (1000, 2000))
    assert two == 2 * one
    softmax = dataclasses.replace(config, attention=CONFIGS["plain"].attention)
    assert count_flops(softmax, 2000).total > 3 * count_flops(softmax, 1000).total


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["language model", "mixed layers"])
def test_bytes_are_those_of_the_tensors(name, dtype):
    config = CONFIGS[name]
    model = Transformer(config).to(dtype)
    x = meta_input(config, 3, 7)
    trace = model.trace(torch.zeros_like(x, device="cpu"))
    found = count_memory(config, length=7, batch=3, dtype=dtype)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert found.weights == weights
    optimiser = torch.optim.Adam(model.float().parameters())
    model.trace(torch.zeros_like(x, device="cpu")).output.sum().backward()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    moments = sum(
        s[key].numel() * s[key].element_size() for s in optimiser.state.values() for key in ("exp_avg", "exp_avg_sq")
    )
    assert found.training == 2 * weights + moments
    kept = [layer.weights for layer in trace.layers if layer.weights is not None]
    assert found.attention == sum(w.numel() * w.element_size() for w in kept)
    cache = sum(s.n_heads * (s.d_head + s.d_value) for s in config.layers) * 7 * 3 * dtype.itemsize
    assert found.cache == cache


def test_gpt_3_needs_350_gigabytes_in_half_precision():
    found = count_memory(PRESETS["175B"], length=2048, dtype=torch.float16)
    assert found.weights == 2 * 174_604_259_328
    assert found.cache == 2 * 2 * 96 * 12288 * 2048


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: count_flops(PRESETS["125M"], 2049), "max_length is 2048"),
        (lambda: count_flops(PRESETS["125M"], 0), "length=0"),
        (lambda: count_memory(PRESETS["125M"], 8, batch=1.5), "batch=1.5"),
        (lambda: count_memory(PRESETS["125M"], True), "length=True"),
    ],
)
def test_sizes_that_cannot_be_are_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
