"""How many operations of PyTorch a step of decode takes: the teacher that ships with this project, and students of it.

OMP_NUM_THREADS=1 python benchmarks/operations.py

PyTorch's profiler counts every call of an operation, also by another operation, while one token after a prompt passes through both
layers and the output layer. Counts are the same on every machine, and change with PyTorch's version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

import composer
from benchmarks.harness import describe_machine, write
from composer.reporting.progress import silent_transformers

TEACHER = Path(__file__).parents[1] / "examples" / "teacher"
SPECS = ("softmax", "gla", "gated-delta", "lawcat", "lolcats", "lola", "latte-macchiato")
PROMPT = 138
"""Tokens before the step, more than the windows of these specs hold."""


def count_operations(model: Any) -> int:
    """Count the operations of one step of decode after a prompt, after two other steps."""
    tokens = torch.arange(PROMPT)[None] % model.config.vocab_size
    with torch.inference_mode():
        cache = model(tokens, use_cache=True).past_key_values
        for _ in range(2):
            model(tokens[:, :1], past_key_values=cache, use_cache=True)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            model(tokens[:, :1], past_key_values=cache, use_cache=True)
    return sum(event.count for event in profiled.key_averages() if event.key.startswith("aten::"))


def main() -> None:
    """Print the counts, and write ``benchmarks/results/operations.json``."""
    with silent_transformers():
        counts = {"teacher": count_operations(AutoModelForCausalLM.from_pretrained(TEACHER).eval())}
        counts |= {spec: count_operations(composer.build(spec, TEACHER, dtype="float32").eval()) for spec in SPECS}
    write("operations", {"about": describe_machine("cpu"), "prompt": PROMPT, "operations": counts})
    table = Table("model", "operations")
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    Console().print(table)


if __name__ == "__main__":
    main()
