"""Softmax over blocks that queries choose, beside a window, without training: divergence from a source.

    python -m benchmarks.selected_blocks SOURCE BOOK.txt [--only NAMES] [--out FOLDER]

KL(source to student) in nats a token: a mean over two rows of 2,048 tokens of BOOK, and over the second half of each. Blocks have
64 pairs. *product* is MoBA, *share* the choice of NSA. Writes benchmarks/results/selected_blocks.json; a new run adds only missing
results.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

import composer
from benchmarks.harness import RESULTS, describe_machine, read_book, write
from composer.training.teacher import open_language_model
from composer.weights.load import load_model

TOKENS, ROWS = 2048, 2
FIRST = "{kind: first, size: 4}"
CASES = {
    f"{scores} {count}": ("moba", f"[{{kind: selected_blocks, size: 64, count: {count}, scores: {scores}}}]")
    for scores in ("product", "share")
    for count in (3, 7)
}
CASES |= {
    f"first, product {count}": ("moba", f"[{FIRST}, {{kind: selected_blocks, size: 64, count: {count}}}]") for count in (3, 7)
}
CASES |= {f"window {size}": ("streaming", f"[{FIRST}, {{kind: window, size: {size - 4}, evict: drop}}]") for size in (256, 512)}
"""The spec of each student, and its memories."""


@torch.no_grad()
def measure(model: Any, text: Tensor, wanted: list[Tensor]) -> dict[str, float]:
    """Return the mean KL a token, and that of the second half of each row. text: n T. wanted: the source's log-probabilities."""
    divergences = []
    for row, target in zip(text, wanted, strict=True):
        own = model(input_ids=row[None], use_cache=False).logits.log_softmax(-1)
        divergences.append(functional.kl_div(own, target, reduction="none", log_target=True).sum(-1)[0])
    divergence = torch.stack(divergences)
    return {"divergence": divergence.mean().item(), "second half": divergence[:, TOKENS // 2 :].mean().item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("book", type=Path)
    parser.add_argument("--only", default=";".join(CASES), help="Names of students, separated by semicolons.")
    parser.add_argument("--out", type=Path, default=Path("build-output/selected-blocks"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = RESULTS / "selected_blocks.json"
    text = read_book(options.source, options.book, ROWS, TOKENS)
    source: Any = open_language_model(options.source).load("cpu").eval()
    with torch.no_grad():
        wanted = [source(input_ids=row[None], use_cache=False).logits.log_softmax(-1) for row in text]
    results: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8"))["results"] if file.is_file() else {}
    for name in options.only.split(";"):
        if name in results:
            continue
        spec, memories = CASES[name]
        overrides = [f"head.memory={memories}"]
        composer.build_folder(spec, options.source, options.out, overrides=overrides, dtype="float32", force=True)
        results[name] = measure(load_model(options.out, "float32", "cpu").eval(), text, wanted)
        write("selected_blocks", {"about": describe_machine("cpu"), "results": results})
    table = Table("", "KL", "of the second half")
    for name, result in results.items():
        table.add_row(name, f"{result['divergence']:.3f}", f"{result['second half']:.3f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
