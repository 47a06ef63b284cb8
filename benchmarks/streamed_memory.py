"""Memory of streamed attention transfer at the size of Llama-3.2-1B, against a bound that is computed beforehand.

    python benchmarks/streamed_memory.py

makes a random checkpoint with that model's exact config (bfloat16, 2.47 GB), builds `specs/lolcats.yaml` on it, and transfers
attention with `--stream` for a few steps on rows of 128 tokens, in a separate process. The folder that takes about 3 GB, in
$TMPDIR, is removed at the end. Exit code 1 above the bound.

Measured are VmHWM, the largest resident memory of the process, and its growth over the resident memory after all imports and one
small matrix product (torch, transformers, tokenizers, TensorBoard and matplotlib alone are several hundred MB). The bound is for
the growth. Weights are converted to float32 for computation. With C channels, M of the MLP, H query heads and K key heads of D, F
features, a window of W, and P own parameters of a layer's heads, the bound is, in numbers of 4 bytes,

    two layers        2 · (2 C·H·D + 2 C·K·D + 3 C·M + 2 C + P)
    activations       the larger of
      the walk        t · (4 M + 8 C), for t tokens that go through a layer of the teacher at once: the MLP's gate, its activation,
                      its other half and their product; hidden states, norms, queries, keys, values, outputs
      a step          s · H · 2 · (6 F + 3 W + 5 D), for s tokens of a micro-batch: features of queries and keys before and after
                      the softmax, the logits and weights of the window, queries, keys, values and outputs, each with its gradient
    own parameters    layers · P, since the result is written at the end, and 4 P: the best so far, a gradient, two moments

The embeddings (1.05 GB in float32) are not part of the bound: only the rows of a batch's tokens are read.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.build_1b import CONFIG, make_checkpoint

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

RESULTS = ROOT / "benchmarks" / "results" / "streamed_memory.json"
SEQUENCE, STEPS, BATCH, ROWS, WORDS = 128, 4, 2, 40, 400
FEATURES, WINDOW = 128, 64


def make_inputs(folder: Path) -> None:
    """Make the checkpoint, a tokenizer of a few words, and texts of these words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    source = folder / "source"
    make_checkpoint(source)
    words = ["<unk>", *(f"w{number}" for number in range(WORDS))]
    # Ids are spread over the vocabulary, so that rows are read from the whole embedding.
    step = CONFIG["vocab_size"] // len(words)
    tokenizer = Tokenizer(models.WordLevel({word: step * index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(source / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    lines = (" ".join(random.choice(words[1:], SEQUENCE)) for _ in range(ROWS))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))


def transfer(folder: Path) -> dict[str, Any]:
    """Run in this process, for the parent process."""
    import matplotlib.pyplot  # noqa: F401 - the run imports it; its memory is not the run's
    import torch
    import torch.utils.tensorboard
    from transformers import AutoTokenizer

    from composer.benching.memory import bytes_of
    from composer.training.distill import distill
    from composer.training.run import TrainingOptions
    from composer.training.spill import TOKENS
    from composer.training.student import read_student

    torch.set_num_threads(1)
    AutoTokenizer.from_pretrained(folder / "source", trust_remote_code=False)
    small = torch.ones(256, 256, requires_grad=True)
    (small @ small).sum().backward()
    imported, began = bytes_of("VmRSS"), time.perf_counter()
    overrides = ["sequence=128", "transfer.epochs=null", f"transfer.steps={STEPS}", f"transfer.batch={BATCH}"]
    report = distill(
        read_student(folder / "model", [f"recipe.{setting}" for setting in overrides]),
        folder / "out",
        TrainingOptions(data=[str(folder / "texts.jsonl")], stream=True, tell=lambda message: print(message, file=sys.stderr)),
        which="transfer",
    )
    return {
        "seconds": time.perf_counter() - began,
        "resident_after_imports": imported,
        "peak": bytes_of("VmHWM"),
        "walked_at_once": TOKENS,
        "after": report.stages[0].after,
    }


def compute_bound(walked: int) -> dict[str, int]:
    """Return the bytes of each term of the bound, by the equations above."""
    width, inner, head, layers = (CONFIG[name] for name in ("hidden_size", "intermediate_size", "head_dim", "num_hidden_layers"))
    heads, key_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    own_parameters = heads * (2 * head * FEATURES // 2 + 1)
    layer = 2 * width * heads * head + 2 * width * key_heads * head + 3 * width * inner + 2 * width + own_parameters
    walk = walked * (4 * inner + 8 * width)
    step = BATCH * SEQUENCE * heads * 2 * (6 * FEATURES + 3 * WINDOW + 5 * head)
    return {"two layers": 4 * 2 * layer, "activations": 4 * max(walk, step), "own parameters": 4 * (layers + 4) * own_parameters}


def main() -> None:
    """Make, run in a child, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    child = parser.parse_args().child
    if child is not None:
        print(json.dumps(transfer(child)))
        return
    from composer import build_folder

    folder = Path(tempfile.mkdtemp(prefix="streamed-memory-"))
    try:
        make_inputs(folder)
        build_folder("lolcats", folder / "source", folder / "model")
        command = [sys.executable, __file__, "--child", str(folder)]
        completed = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True
        )
    finally:
        shutil.rmtree(folder)
    figures = json.loads(completed.stdout.splitlines()[-1])
    parts = compute_bound(figures["walked_at_once"])
    peak, most = figures["peak"] - figures["resident_after_imports"], sum(parts.values())
    result = {"tokens_steps_and_rows": [SEQUENCE, STEPS, BATCH], **figures, "taken": peak, "bound": {**parts, "all": most}}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(f"peak {figures['peak'] / 1e6:,.0f} MB, {figures['resident_after_imports'] / 1e6:,.0f} MB of it after the imports alone")
    print(f"taken by the run: {peak / 1e6:,.0f} MB, in {figures['seconds']:.0f} s")
    print("bound: " + ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in parts.items()) + f", all {most / 1e6:,.0f} MB")
    if peak > most:
        sys.exit("above the bound")


if __name__ == "__main__":
    main()
