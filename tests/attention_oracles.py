"""Attention of every family by its formula, one query and one key at a time, in numpy."""

import math

import numpy as np

from oplens.operators.attention import BigBird, Linformer, Performer, Reformer
from oplens.operators.attention.bigbird import visible_blocks
from oplens.operators.attention.draws import directions, normals
from oplens.operators.attention.linformer import groups


def softmax_row(scores):
    """Weights of {position: score}; empty where nothing is seen."""
    if not scores:
        return {}
    top = max(scores.values())
    terms = {j: math.exp(s - top) for j, s in scores.items()}
    return {j: t / sum(terms.values()) for j, t in terms.items()}


def visible_positions(i, length, causal, keys):
    return [j for j in range(length) if keys[j] and (not causal or j <= i)]


def exact(q, k, scale, causal, keys):
    """Weights (n_q, n_k) of one head."""
    found = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        row = softmax_row({j: scale * float(q[i] @ k[j]) for j in visible_positions(i, len(k), causal, keys)})
        for j, weight in row.items():
            found[i, j] = weight
    return found


def performer(family, q, k, scale, causal, keys):
    w = directions(family.seed, family.n_features, q.shape[1], family.orthogonal).numpy()
    root = math.sqrt(scale)

    def phi(x):
        return [math.exp(float(f @ x) * root - scale * float(x @ x) / 2) / math.sqrt(len(w)) for f in w]

    features_q, features_k = [phi(x) for x in q], [phi(x) for x in k]
    found = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        seen = visible_positions(i, len(k), causal, keys)
        kernel = {j: sum(a * b for a, b in zip(features_q[i], features_k[j], strict=True)) for j in seen}
        for j in seen:
            found[i, j] = kernel[j] / sum(kernel.values())
    return found


def linformer(family, q, k, scale, causal, keys):
    assert not causal
    member = groups(family, len(k)).tolist()
    found = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        total = 0.0
        for g in range(family.rank):
            inside = [j for j in range(len(k)) if member[j] == g and keys[j]]
            if not inside:
                continue
            mean = sum(k[j] for j in inside) / len(inside)
            mass = len(inside) * math.exp(scale * float(q[i] @ mean))
            total += mass
            for j in inside:
                found[i, j] = mass / len(inside)
        if total:
            found[i] /= total
    return found


def own_length(keys):
    return max((j + 1 for j in range(len(keys)) if keys[j]), default=0)


def reformer(family, q, k, scale, causal, keys):
    """The paper's sum over rounds, every pair weighted by one over the number of rounds in which it meets."""
    assert np.array_equal(q, k)
    length, n = own_length(keys), len(q)
    n_buckets = 1 if length <= family.bucket_size else 2 * math.ceil(length / (2 * family.bucket_size))
    unit = [math.sqrt(q.shape[1]) * x / np.linalg.norm(x) if x.any() else x for x in q]
    rounds = []
    for r in range(family.n_hashes):
        rotation = normals(family.seed, max(1, n_buckets // 2), family.n_hashes, q.shape[1])[:, r].numpy()
        hashes = [0 if n_buckets == 1 else int(np.argmax(np.concatenate((rotation @ x, -rotation @ x)))) for x in q]
        rounds.append([{j for j in range(n) if hashes[j] == hashes[i]} for i in range(n)])
    found = np.zeros((n, n))
    for i in range(n):
        allowed = set(visible_positions(i, n, causal, keys))
        sets = [(r[i] & allowed) - {i} for r in rounds]
        if not any(sets):
            sets = [r[i] & allowed & {i} for r in rounds]
        met = {j: sum(j in s for s in sets) for j in set().union(*sets)}
        for s in sets:
            for j in s:
                found[i, j] += math.exp(scale * float(q[i] @ unit[j])) / met[j]
        if found[i].sum():
            found[i] /= found[i].sum()
    return found


def bigbird_sets(family, length, own, causal, random):
    """Positions that each position sees, window and globals by their definition; `random[b]` holds block b's random blocks."""
    size, half = family.block_size, family.window // 2
    n_blocks = math.ceil(length / size)
    sets = []
    for i in range(length):
        b = i // size
        blocks = {c for c in range(b - half, b + half + 1) if 0 <= c < n_blocks}
        blocks |= {c for c in range(family.n_global) if c < n_blocks} | set(random[b])
        if b < family.n_global and not causal:
            blocks = set(range(n_blocks))
        sets.append([j for j in range(length) if j // size in blocks and (not causal or j <= i)])
    return sets


def random_blocks(family, length, own, causal):
    """What the library drew, block by block."""
    import torch

    size = family.block_size
    n_blocks = math.ceil(length / size)
    found, there = visible_blocks(family, n_blocks, torch.tensor([math.ceil(own / size)]), causal)
    if not family.n_random:
        return [[] for _ in range(n_blocks)]
    return [found[0, b, -family.n_random :][there[0, b, -family.n_random :]].tolist() for b in range(n_blocks)]


def bigbird(family, q, k, scale, causal, keys):
    length = len(q)
    sets = bigbird_sets(
        family, length, own_length(keys), causal, random_blocks(family, length, own_length(keys), causal)
    )
    found = np.zeros((length, length))
    for i in range(length):
        row = softmax_row({j: scale * float(q[i] @ k[j]) for j in sets[i] if keys[j]})
        for j, weight in row.items():
            found[i, j] = weight
    return found


def weights_of(family, q, k, scale, causal, keys):
    """Weights (n_q, n_k) of one head of any family; `keys` says which keys are there."""
    for kind, oracle in (
        (Performer, performer),
        (Linformer, linformer),
        (Reformer, reformer),
        (BigBird, bigbird),
    ):
        if isinstance(family, kind):
            return oracle(family, q, k, scale, causal, keys)
    return exact(q, k, scale, causal, keys)
