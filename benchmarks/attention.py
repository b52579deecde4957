"""Claim: Performer and BigBird cost in proportion to length: at 8192 steps at least 3x faster than torch's own exact attention.

    python benchmarks/attention.py            # one head of 64, 1024 to 16384 steps, two minutes on one core
    python benchmarks/attention.py --smallest # seconds

The reference is torch's fused `scaled_dot_product_attention`, which forms no matrix of weights either. What is paid for the speed is
printed below: error against exact attention, by the norm of queries and keys.
"""

from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from harness import Comparison, compare, smallest
from oplens.operators.attention import (
    BigBird,
    Family,
    Linformer,
    Performer,
    Reformer,
    attend,
    attention_cost,
    sweep_errors,
)

D_HEAD = 64
FAMILIES: tuple[Family, ...] = (Performer(n_features=64), BigBird(block_size=32))
CLAIMED_AT, CLAIM = 8192, 3.0


def time_family(family: Family, length: int, causal: bool, repeats: int) -> Comparison:
    """Both sides on one head, float32."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, D_HEAD, generator=generator) / 2 for _ in range(3))
    kind = "causal" if causal else "two-sided"
    return compare(
        f"{family.name}, {kind}, {length} steps, against exact attention",
        lambda: scaled_dot_product_attention(q, k, v, is_causal=causal),
        lambda: attend(q, k, v, family, causal=causal),
        repeats=repeats,
        target=CLAIM if length >= CLAIMED_AT else None,
    )


def show_growth(found: dict[tuple[str, bool], dict[int, Comparison]]) -> None:
    """How time grows when the length doubles: 2 is linear, 4 quadratic."""
    print("\ntime after a doubling of the length over time before (the fused exact attention in brackets)")
    for (name, causal), by_length in found.items():
        lengths = sorted(by_length)
        steps = [
            f"{b}: {by_length[b].ours / by_length[a].ours:.1f} ({by_length[b].reference / by_length[a].reference:.1f})"
            for a, b in pairwise(lengths)
        ]
        print(f"  {name}, {'causal' if causal else 'two-sided'}: {', '.join(steps)}")


def show_errors(length: int) -> None:
    """Relative error of the output at three norms of queries and keys, and operations beside exact attention's."""
    families = (
        Performer(64),
        Performer(1024),
        Linformer(64),
        Reformer(n_hashes=4, bucket_size=64),
        BigBird(block_size=32),
    )
    exact = 4 * length**2 * D_HEAD
    rows = sweep_errors(families, lengths=(length,), norms=(1.0, 4.0, 16.0), d_head=D_HEAD, n_heads=1)
    print(f"\nrelative error of the output at {length} steps, d_head {D_HEAD}, by the norm of queries and keys")
    for family in families:
        errors = ", ".join(f"norm {r.norm:g}: {r.error.output:.3f}" for r in rows if r.family == family)
        share = attention_cost(family, length, D_HEAD).flops / exact
        print(f"  {family}: {errors}; {share:.2f} of the operations")


def main() -> None:
    """Time every family at every length, then print growth and errors."""
    small = smallest()
    lengths = (64, 128) if small else (1024, 2048, 4096, 8192, 16384)
    found: dict[tuple[str, bool], dict[int, Comparison]] = {}
    for family in FAMILIES:
        for causal in (False, True):
            for length in lengths:
                timed = time_family(family, length, causal, repeats=3 if small else 9)
                found.setdefault((family.name, causal), {})[length] = timed
    show_growth(found)
    show_errors(64 if small else 1024)


if __name__ == "__main__":
    with torch.no_grad():
        main()
