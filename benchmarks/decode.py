"""Decode on one CPU thread: Python frames of this package in a layer's step, and the step's time over the source's.

    PYTHONPATH=. python benchmarks/decode.py [--specs softmax gla …] [--length 512] [--rounds 20] [--frames SPEC]

The source is the shipped teacher, batch 1, after ``--length`` tokens. Frames are calls of functions, or comprehensions, whose code
is in composer/, blocks/ or converters/, in one decode step over its layers; ``--frames`` lists those of one spec. The times are
medians of the thread's processor time, the students and the source in turn; ratios above 1 are slower than the source.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

import composer

ROOT = Path(__file__).resolve().parent.parent
OWN = tuple(f"{ROOT / package}/" for package in ("composer", "blocks", "converters"))
SPECS = ("softmax", "gla", "lawcat", "gated-delta", "lolcats", "latte-macchiato", "lola")
STEPS = 20
"""Decode steps of a round."""


class Decoding:
    """A model after a text of ``length`` tokens."""

    def __init__(self, model: Any, length: int) -> None:
        self.model = model.eval()
        ids = torch.randint(3, model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
        self.next = ids[:, -1:]
        self.cache = model(ids, use_cache=True).past_key_values

    def step(self) -> None:
        """Decode one more token."""
        self.model(self.next, past_key_values=self.cache, use_cache=True)

    def measure_seconds(self) -> float:
        """Return the processor seconds of a step."""
        start = time.thread_time()
        for _ in range(STEPS):
            self.step()
        return (time.thread_time() - start) / STEPS


def count_frames(decoding: Decoding) -> Counter[str]:
    """Count the calls of this package's functions in one step, by file and name."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OWN):
            calls[f"{Path(frame.f_code.co_filename).relative_to(ROOT)} {frame.f_code.co_qualname}"] += 1

    decoding.step()
    sys.setprofile(count)
    try:
        decoding.step()
    finally:
        sys.setprofile(None)
    return calls


@torch.no_grad()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--specs", nargs="+", default=SPECS)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--frames", metavar="SPEC", help="list the frames of one spec, and measure nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = AutoModelForCausalLM.from_pretrained(ROOT / "examples/teacher")
    layers = source.config.num_hidden_layers
    console = Console()
    if options.frames is not None:
        for name, calls in count_frames(Decoding(composer.build(options.frames, source), options.length)).most_common():
            console.print(f"{calls / layers:6.1f} {name}", highlight=False)
        return
    students = {spec: Decoding(composer.build(spec, source), options.length) for spec in options.specs}
    teacher = Decoding(source, options.length)
    ratios: dict[str, list[float]] = {spec: [] for spec in students}
    for _ in range(options.rounds):
        base = teacher.measure_seconds()
        for spec, student in students.items():
            ratios[spec].append(student.measure_seconds() / base)
    table = Table("spec", "frames a layer", "decode over the source's time")
    for spec, student in students.items():
        table.add_row(spec, f"{count_frames(student).total() / layers:.0f}", f"{statistics.median(ratios[spec]):.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
