"""Decode on one CPU thread: Python frames of this package in a layer's step, and the step's time over the source's; with --exports,
the time of each student's exported file over the student's, too.

    PYTHONPATH=. python benchmarks/decode.py [--specs softmax gla …] [--length 512] [--rounds 20] [--exports] [--frames SPEC]

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
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

import composer

ROOT = Path(__file__).resolve().parent.parent
OWN = tuple(f"{ROOT / package}/" for package in ("composer", "blocks", "converters"))
SPECS = ("softmax", "gla", "lawcat", "gated-delta", "gated-deltanet", "lolcats", "latte-macchiato", "lola")
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


def export(model: Any, folder: Path) -> Any:
    """Return the model that the exported file of a student builds."""
    model.save_pretrained(folder / "model")
    composer.export(folder / "model", folder / "export", copy=True)
    return AutoModelForCausalLM.from_pretrained(folder / "export", trust_remote_code=True, dtype=torch.float32)


@torch.no_grad()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--specs", nargs="+", default=SPECS)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--exports", action="store_true", help="measure exported files, too")
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
    files: dict[str, Decoding] = {}
    with TemporaryDirectory() as folder:
        for spec, student in students.items() if options.exports else ():
            files[spec] = Decoding(export(student.model, Path(folder) / spec), options.length)
    teacher = Decoding(source, options.length)
    ratios: dict[str, list[float]] = {spec: [] for spec in students}
    of_files: dict[str, list[float]] = {spec: [] for spec in files}
    for _ in range(options.rounds):
        base = teacher.measure_seconds()
        for spec, student in students.items():
            ratios[spec].append(student.measure_seconds() / base)
            if spec in files:
                of_files[spec].append(files[spec].measure_seconds() / base)
    table = Table(
        "spec", "frames a layer", "decode over the source's time", *(["of the export", "over the model's"] if files else [])
    )
    for spec, student in students.items():
        ratio = statistics.median(ratios[spec])
        exported = []
        if spec in files:
            both = zip(of_files[spec], ratios[spec], strict=True)
            exported = [statistics.median(of_files[spec]), statistics.median(file / model for file, model in both)]
        table.add_row(spec, f"{count_frames(student).total() / layers:.0f}", *(f"{number:.2f}" for number in (ratio, *exported)))
    console.print(table)


if __name__ == "__main__":
    main()
