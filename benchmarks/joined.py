"""Texts that were read apart, and their states joined, against the whole text read at once.

    python benchmarks/joined.py TEACHER BOOK.txt [--samples 6] [--tokens 512] [--out FOLDER]

Two students of the teacher, without training: `softmax`, where every key head keeps all pairs, and *kept-18*, where 18 key heads of
SmolLM2-135M keep them and the others are windows with sinks (`evidence/smollm2/gates/all.json`). A and B are halves of a text. Each
is read by itself, and their states are joined, as `compose join` does.

Reported for each way of joining: KL(whole ‖ joined) of the next tokens and the loss, over the 128 tokens after the text, in nats,
and the share of needles found in A and in B: half as many passkeys as texts, and as many numbers in stories. A needle is found if
each token of its answer is the model's first choice. *B alone* leaves A out. Writes benchmarks/results/joined.json.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import composer
from benchmarks.harness import describe_machine, write
from composer.model.cache import ComposedCache, new_cache
from composer.model.generation import continuation, read_in_pieces
from composer.model.state_file import join_caches
from composer.tasks.base import rng_of
from composer.tasks.catalogue import TASKS
from composer.tasks.writer import Writer
from composer.training.rows import tokenizer_of
from composer.weights.load import load_model
from evidence.smollm2.choices import build_rules, choose_heads, read_gates
from evidence.smollm2.plan import HERE, Keep

OVERLAP, NEXT = 64, 128
NEEDLES = ("passkey", "niah-single-2")
DEPTHS = {"A": 0.25, "B": 0.75}
QUESTION = "What is the"
WAYS = {
    "B alone": "A is left out",
    "joined": "both are read by themselves",
    "after a heading": "B is read after the heading `Text:`, whose pairs are dropped",
    "after the end of A": f"B is read after the last {OVERLAP} tokens of A, whose pairs are dropped",
    "begun after A": f"the first {OVERLAP} tokens of B are read after A",
    "ended after A": f"the last {OVERLAP} tokens of B are read after the joint",
}
Ids = list[int]


def read(model: Any, ids: Ids, cache: ComposedCache | None = None) -> ComposedCache:
    """Return the cache after these tokens. cache: before them, which stays as it is."""
    cache = new_cache(model.config) if cache is None else deepcopy(cache)
    if ids:
        read_in_pieces(model, torch.tensor([ids]), cache)
    return cache


def caches(model: Any, first: Ids, second: Ids, heading: Ids) -> dict[str, ComposedCache]:
    """Return the cache after both texts, by the way in which they were read; `whole`: at once."""
    before, apart = read(model, first), read(model, second)
    begun, end = second[:OVERLAP], second[-OVERLAP:]
    return {
        "whole": read(model, second, before),
        "B alone": apart,
        "joined": join_caches(model, before, apart, 0),
        "after a heading": join_caches(model, before, read(model, heading + second), len(heading)),
        "after the end of A": join_caches(model, before, read(model, first[-OVERLAP:] + second), OVERLAP),
        "begun after A": join_caches(model, read(model, begun, before), apart, OVERLAP),
        "ended after A": read(model, end, join_caches(model, before, read(model, second[:-OVERLAP]), 0)),
    }


@torch.no_grad()
def predict(model: Any, ids: Ids, cache: ComposedCache) -> Tensor:
    """Return the logarithms of the probabilities of each next token, T V. The cache is used up."""
    arguments = continuation(len(ids), cache)
    del arguments["attention_mask"]
    logits = model(input_ids=torch.tensor([ids]), use_cache=True, **arguments).logits[0]
    return logits.double().log_softmax(-1)


def score_text(model: Any, ids: Ids, tokens: int, heading: Ids) -> dict[str, dict[str, float]]:
    """Return the KL to the whole text, and the loss, by the way of reading."""
    first, second, after = ids[: tokens // 2], ids[tokens // 2 : tokens], ids[tokens:]
    by_way = {way: predict(model, after, cache) for way, cache in caches(model, first, second, heading).items()}
    wanted, targets = by_way["whole"][:-1], torch.tensor(after[1:])
    return {
        way: {
            "kl": float((wanted.exp() * (wanted - found[:-1])).sum(-1).mean()),
            "loss": float(-found[:-1].gather(1, targets[:, None]).mean()),
        }
        for way, found in by_way.items()
    }


def score_needle(model: Any, sample: Any, tokenizer: Any, heading: Ids) -> dict[str, float]:
    """Return 1 by the way of reading if every token of the answer is the model's first choice."""
    context = sample.prompt[: sample.prompt.rindex(QUESTION)].rstrip()
    end, middle = len(tokenizer(context)["input_ids"]), len(tokenizer(context)["input_ids"]) // 2
    ids, after = list(sample.ids), list(sample.ids[end:])
    answers = torch.tensor(sample.answer[end + 1 :])
    result = {}
    for way, cache in caches(model, ids[:middle], ids[middle:end], heading).items():
        chosen = predict(model, after, cache)[:-1].argmax(-1)
        result[way] = float((chosen == torch.tensor(after[1:]))[answers].all())
    return result


def build_students(teacher: str, out: Path) -> dict[str, Path]:
    kept = choose_heads(Keep(by="gates", heads=18), read_gates(HERE / "gates" / "all.json"), 0)
    rules = build_rules("streaming", (), teacher, kept)
    students = {"softmax": ("softmax", []), "kept-18": ("streaming", [f"layers={rules}"])}
    for name, (spec, overrides) in students.items():
        composer.build_folder(spec, teacher, out / name, overrides=overrides, dtype="float32", force=True)
    return {name: out / name for name in students}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("book", type=Path)
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--tokens", default="512")
    parser.add_argument("--out", type=Path, default=Path("build-output/joined"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for student, folder in build_students(options.teacher, options.out).items():
        model, tokenizer = load_model(folder, "float32", "cpu").eval(), tokenizer_of(folder)
        book, heading = tokenizer(options.book.read_text("utf-8"))["input_ids"], tokenizer("Text:\n")["input_ids"]
        for tokens in map(int, options.tokens.split(",")):
            rows = [book[start : start + tokens + NEXT] for start in range(20000, 20000 + options.samples * 9000, 9000)]
            texts = [score_text(model, row, tokens, heading) for row in rows]
            figures = {
                way: {figure: statistics.fmean(text[way][figure] for text in texts) for figure in ("kl", "loss")}
                for way in texts[0]
            }
            for half, depth in DEPTHS.items():
                needles = []
                for name in NEEDLES:
                    task = TASKS[name].model_validate({"kind": name, "depth": depth})
                    for index in range(options.samples // 2):
                        sample = task.sample(rng_of(0, "evaluation", index), Writer(tokenizer), tokens, "evaluation")
                        needles.append(score_needle(model, sample, tokenizer, heading))
                for way, of_way in figures.items():
                    of_way[f"needles in {half}"] = statistics.fmean(needle[way] for needle in needles)
            results[f"{student}, {tokens} tokens"] = figures
            show(f"{student}, {tokens} tokens", figures)
            write("joined", {"samples": options.samples, "machine": describe_machine("cpu"), "results": results})


def show(title: str, figures: Mapping[str, Mapping[str, float]]) -> None:
    columns = list(figures["whole"])
    table = Table("", *columns, title=title)
    for way, row in figures.items():
        table.add_row(f"{way}: {WAYS[way]}" if way in WAYS else way, *(f"{row[column]:.3f}" for column in columns))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
