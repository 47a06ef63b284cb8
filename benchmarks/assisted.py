"""The milliseconds of calls of 1 to 16 tokens, from which follows what assisted generation can gain on one CPU thread.

    python benchmarks/assisted.py TEACHER BOOK.txt [--lengths 512,2048,8192] [--dtype float32] [--out FOLDER]

The student is *kept-18*, which is not trained: 18 of 90 key heads of SmolLM2-135M keep all pairs, as in
`evidence/smollm2/gates/all.json`, and others are windows with sinks. A round of assisted generation is a call of 2 tokens of the
draft, one of 1 token for each further draft, and a call of the target with all of them. Times are the thread's processor time after
a text of ``--lengths`` tokens, medians of 5 calls, of 8 for one token.

``--accepted TEXTS`` generates 64 tokens greedily after as many texts of each length instead. It prints the tokens of a round, with
the target's own, and the processor time of a token relative to generation without drafts, reading the text left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

import composer
from composer.model.generation import PIECE
from composer.training.rows import tokenizer_of
from composer.weights.load import load_model
from evidence.smollm2.choices import build_rules, choose_heads, read_gates
from evidence.smollm2.plan import HERE, Keep

TOKENS = (1, 2, 4, 8, 16)
NEW, DRAFTS = 64, 5


def build_student(teacher: str, out: Path) -> Path:
    """Build *kept-18* in float32, and return its folder."""
    kept = choose_heads(Keep(by="gates", heads=18), read_gates(HERE / "gates" / "all.json"), 0)
    overrides = [f"layers={build_rules('streaming', (), teacher, kept)}"]
    return composer.build_folder("streaming", teacher, out / "kept-18", overrides=overrides, dtype="float32", force=True).out


@torch.no_grad()
def measure(model: Any, book: list[int], length: int) -> list[float]:
    """Return the milliseconds of a call of each number of tokens after a text of this length."""
    cache = None
    for piece in torch.tensor([book[20000 : 20000 + length]]).split(PIECE, dim=1):
        cache = model(piece, past_key_values=cache, use_cache=True, logits_to_keep=1).past_key_values
    result = []
    for count in TOKENS:
        copied, times = deepcopy(cache), []
        for _ in range(8 if count == 1 else 5):
            start = time.thread_time()
            model(torch.tensor([book[30000 : 30000 + count]]), past_key_values=copied, use_cache=True)
            times.append(1000 * (time.thread_time() - start))
        result.append(statistics.median(times))
    return result


@torch.no_grad()
def accept(model: Any, texts: list[list[int]], **drafts: Any) -> tuple[float, float]:
    """Return the new tokens of a round, and the seconds of processor time of a token after the first call."""
    calls: list[float] = []
    hook = model.register_forward_hook(lambda *_: calls.append(time.process_time()))
    tokens = rounds = seconds = 0.0
    for text in texts:
        calls.clear()
        ids = torch.tensor([text])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, **drafts
        )
        tokens += out.shape[1] - len(text)
        rounds += len(calls)
        seconds += time.process_time() - calls[0]
    hook.remove()
    return tokens / rounds, seconds / tokens


def print_accepted(models: dict[str, Any], book: list[int], lengths: list[int], count: int) -> None:
    """Print one line for each length and each way of drafting."""
    source, student = models.values()
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "source, drafts of kept-18": (source, {"assistant_model": student}),
        "source, prompt lookup": (source, {"prompt_lookup_num_tokens": 10}),
        "kept-18, prompt lookup": (student, {"prompt_lookup_num_tokens": 10}),
    }
    student.generation_config.num_assistant_tokens = DRAFTS
    student.generation_config.num_assistant_tokens_schedule = "constant"
    student.generation_config.assistant_confidence_threshold = 0.0
    for length in lengths:
        texts = [book[start : start + length] for start in range(20000, 20000 + 8000 * count, 8000)]
        plain = {id(model): accept(model, texts)[1] for model in models.values()}
        for name, (model, drafts) in ways.items():
            tokens, seconds = accept(model, texts, **drafts)
            print(f"{length:>6,}  {name:26}  {tokens:.2f} tokens a round, {seconds / plain[id(model)]:.2f} of the time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("book", type=Path)
    parser.add_argument("--lengths", default="512,2048,8192")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, default=Path("build-output/assisted"))
    parser.add_argument("--accepted", type=int, metavar="TEXTS")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = build_student(options.teacher, options.out)
    source = AutoModelForCausalLM.from_pretrained(options.teacher, dtype=getattr(torch, options.dtype)).eval()
    models = {"source": source, "kept-18": load_model(folder, options.dtype, "cpu").eval()}
    book = tokenizer_of(folder)(options.book.read_text("utf-8"))["input_ids"]
    lengths = [int(length) for length in options.lengths.split(",")]
    if options.accepted:
        return print_accepted(models, book, lengths, options.accepted)
    table = Table(options.dtype, *(f"{count} tokens" for count in TOKENS))
    for length in lengths:
        for name, model in models.items():
            table.add_row(f"{name}, after {length:,}", *(f"{cost:.0f}" for cost in measure(model, book, length)))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
