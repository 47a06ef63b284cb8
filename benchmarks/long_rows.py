"""Memory of a process that trains on rows of one length, and of two processes that share rows twice as long.

    python benchmarks/long_rows.py [--tokens 2048] [--specs lolcats lawcat gated-delta gdn-hybrid]

The model is a random Llama of 8 layers of width 256 in float32, all of which learns, one row a step, on the CPU. Memory is the
growth of a process's peak (VmHWM) in a step, after one step on a row of 64 tokens. Of two processes the larger figure counts.
Writes benchmarks/results/long_rows.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

import composer
from benchmarks.harness import describe_machine, write
from composer.benching.memory import bytes_of
from composer.data.packing import Batch
from composer.spec.recipe import Finetune
from composer.training.finetune import FinetuneCourse, finetune_unit
from composer.training.processes import by_all, is_first, process_group, shard, shares, sharing_rows

SPECS = ("lolcats", "lawcat", "gated-delta", "gdn-hybrid")
VOCABULARY = 512


def build_batch(tokens: int) -> Batch:
    ids = torch.randint(0, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(0))
    return Batch(ids, ids.clone(), torch.arange(tokens)[None], torch.ones(1, tokens, dtype=torch.bool))


def measure(spec: str, tokens: int, processes: int) -> None:
    """Print the memory and the seconds of a step on a row of ``tokens`` tokens: the largest of all processes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=768, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=65_536, tie_word_embeddings=True,
    )  # fmt: skip
    with process_group(), sharing_rows(processes):
        student: Any = composer.build(spec, LlamaForCausalLM(config))
        stage = Finetune(lr=1e-4, steps=1, batch=1, trunk=True)
        shard(student, student.base.layers, "cpu")
        course = FinetuneCourse(student, finetune_unit(student, stage), stage, None)

        def step(length: int) -> float:
            began = time.monotonic()
            for part, divisor in shares(build_batch(length), 1, length):
                course.compute_gradients(part, divisor)
            return time.monotonic() - began

        step(64)
        before, seconds = bytes_of("VmHWM"), step(tokens)
        results = by_all(lambda: (bytes_of("VmHWM") - before, seconds))
        if is_first():
            print(json.dumps({"bytes": max(peak for peak, _ in results), "seconds": max(seconds for _, seconds in results)}))


def measure_apart(spec: str, tokens: int, processes: int) -> dict[str, float]:
    """Return the figures of ``measure`` in separate processes."""
    words = [
        sys.executable,
        *(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []),
    ]
    words += [__file__, "--worker", spec, str(tokens), str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
    answer = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    return json.loads(answer.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--specs", nargs="+", default=SPECS)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        spec, tokens, processes = options.worker
        measure(spec, int(tokens), int(processes))
        return
    table = Table(
        "", f"1 process, {options.tokens:,}", f"1 process, {2 * options.tokens:,}", f"2 processes, {2 * options.tokens:,}", "ratio"
    )
    rows: dict[str, Any] = {}
    for spec in options.specs:
        single, double, shared = (
            measure_apart(spec, *case) for case in ((options.tokens, 1), (2 * options.tokens, 1), (2 * options.tokens, 2))
        )
        rows[spec] = {"single": single, "double": double, "shared": shared, "ratio": shared["bytes"] / single["bytes"]}
        cells = (f"{figures['bytes'] / 2**20:,.0f} MiB, {figures['seconds']:.1f} s" for figures in (single, double, shared))
        table.add_row(spec, *cells, f"{rows[spec]['ratio']:.2f}")
    Console(width=120).print(table)
    write("long_rows", {"about": describe_machine("cpu"), "tokens": options.tokens, "specs": rows})


if __name__ == "__main__":
    main()
