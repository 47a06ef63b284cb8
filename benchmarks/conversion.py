"""The cost of conversion on one CPU thread: attention transfer against a forward of the teacher, LoRA against LoRA of the source.

    python benchmarks/conversion.py [--layers 30] [--lengths 512 2048] [--rounds 3] [--bfloat16] [--model FOLDER]

The source is a Llama of SmolLM2-135M's shapes with random weights, or the model of a folder. For each length of a row, these take
turns, each on the same ``--tokens`` tokens, with one document a row:

- *forward*: transformers' own model without its output layer and without gradients.
- *walk*: the teacher's part of a transfer by itself.
- *transfer*: a training step of stage 1 (``compose distill --stage transfer``), gradients and optimiser included; *evaluation*: the
  same losses on the same rows without gradients. A run evaluates at most a quarter as many rows as it learns from
  (``composer.training.rows``), so *with evaluations* a transfer takes a quarter of an evaluation more.
- *lora*: a training step of stage 2 with adapters of rank 8 on q, k, v and o, next-token loss, gradients and optimiser included: of
  a student, and of *softmax*, the source with its own attention on the same code. Fresh parameters learn on unless the spec's
  recipe sets ``fresh: false``, as ``lolcats`` does.

With fewer ``--layers``, random weights have a vocabulary that is smaller in proportion, so that the output layer keeps its share of
the time. Ratios are computed within each round; their medians and quartiles are reported. Goals are checked in processor time of
the thread, which a busy machine disturbs less than wall-clock time. Writes benchmarks/results/conversion_cpu.json.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import composer
from benchmarks.harness import Goal, describe_machine, find_worst, show_goals, summarise, write
from composer.data.packing import Batch, Document, PackedRows, pack
from composer.model.modeling import ComposedForCausalLM
from composer.spec.loading import load_spec
from composer.spec.recipe import Finetune, Lora, Transfer
from composer.system.devices import keep_freed_memory
from composer.training.finetune import FinetuneCourse, add_adapters, finetune_unit
from composer.training.rows import FIFTH
from composer.training.transfer import TransferCourse, run_teacher
from composer.training.unit import Course

SPECS = ("lolcats", "lawcat", "gated-deltanet")
LAYERS, VOCABULARY = 30, 49_152
RATE = 1e-6
"""The learning rate: so small that random weights hardly change in any number of rounds."""
MOST_TRANSFER, MOST_LORA = 2.0, 1.15
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.thread_time, "clock": time.perf_counter}
Runs = dict[str, Callable[[], object]]
Seconds = dict[str, dict[str, list[float]]]
"""Seconds of each round, by clock and contestant."""


def load_source(folder: str | None, layers: int) -> Any:
    """Return the model to convert, in float32."""
    if folder is not None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, num_hidden_layers=layers)
    else:
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=layers,
            num_attention_heads=9,
            num_key_value_heads=3,
            head_dim=64,
            vocab_size=max(64, VOCABULARY * layers // LAYERS),
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        )
        model = LlamaForCausalLM(config)
    return model.requires_grad_(False).eval()


def draw_rows(vocabulary: int, length: int, tokens: int) -> PackedRows:
    """Draw rows of random tokens, ``tokens`` in all."""
    generator = torch.Generator().manual_seed(length)
    count = max(1, tokens // length)
    tokens_of_rows = torch.randint(3, vocabulary, (count, length), generator=generator).int().numpy()
    return pack([Document(ids, ids >= 0) for ids in tokens_of_rows], length, how="packed")


class Contestants:
    """The models whose runs are timed. All share the source's weights."""

    def __init__(self, source: Any, specs: Iterable[str], autocast: bool) -> None:
        self.source, self.specs, self.autocast = source, tuple(specs), autocast
        self.teacher = self._build("softmax").requires_grad_(False)
        self.transfers = {spec: self._build_transfer(spec) for spec in self.specs}
        self.loras = {spec: self._build_lora(spec) for spec in ("softmax", *self.specs)}

    def build_runs(self, batch: Batch) -> Runs:
        """Return the runs on these rows, by name."""
        runs: Runs = {"forward": lambda: self._run_forward(batch), "walk": lambda: self._walk(batch)}
        for spec, course in self.transfers.items():
            runs[f"transfer {spec}"] = lambda course=course: _step(course, batch)
            runs[f"evaluation {spec}"] = lambda course=course: course.compute_losses(batch, course.count(batch))
        for spec, course in self.loras.items():
            runs[f"lora {spec}"] = lambda course=course: _step(course, batch)
        return {name: self._add_autocast(run) for name, run in runs.items()}

    def _add_autocast(self, run: Callable[[], object]) -> Callable[[], object]:
        def run_with_autocast() -> object:
            with torch.autocast(self.source.device.type, dtype=torch.bfloat16, enabled=self.autocast):
                return run()

        return run_with_autocast

    @torch.no_grad()
    def _run_forward(self, batch: Batch) -> object:
        return self.source.model(batch.ids, use_cache=False)

    def _walk(self, batch: Batch) -> None:
        run_teacher(self.teacher, batch, lambda index, attention, target: None)

    def _build_transfer(self, spec: str) -> TransferCourse:
        recipe = load_spec(spec).recipe
        assert recipe is not None
        assert recipe.transfer is not None
        stage = Transfer(lr=RATE, steps=1, mse=recipe.transfer.mse, at=recipe.transfer.at)
        return TransferCourse(self._build(spec), self.teacher, stage)

    def _build_lora(self, spec: str) -> FinetuneCourse:
        recipe = load_spec(spec).recipe
        fresh = recipe is None or recipe.finetune is None or recipe.finetune.fresh
        stage, model = Finetune(lr=RATE, steps=1, lora=Lora(), fresh=fresh), self._build(spec)
        assert stage.lora is not None
        add_adapters(model, stage.lora, 0)
        return FinetuneCourse(model, finetune_unit(model, stage), stage, None)

    def _build(self, spec: str) -> ComposedForCausalLM:
        return cast("ComposedForCausalLM", composer.build(spec, self.source, share=True)).eval()


def _step(course: Course, batch: Batch) -> None:
    losses = course.compute_gradients(batch, course.count(batch))
    for unit in course.units:
        unit.update(0, 1, float(losses[unit.name]))


def time_in_turn(runs: Runs, rounds: int) -> Seconds:
    """Return the seconds of each run in each round, by clock and name, after one round to warm up."""
    seconds: Seconds = {clock: {name: [] for name in runs} for clock in CLOCKS}
    for round_ in range(rounds + 1):
        for name, run in runs.items():
            gc.collect()
            began = {clock: read() for clock, read in CLOCKS.items()}
            run()
            for clock, read in CLOCKS.items():
                if round_:
                    seconds[clock][name].append(read() - began[clock])
    return seconds


def compute_ratios(seconds: Mapping[str, list[float]], specs: Iterable[str]) -> dict[str, list[float]]:
    """Return the ratios that have goals. They are computed within each round, on one clock."""
    figures = {"walk / forward": _divide(seconds["walk"], seconds["forward"])}
    for spec in specs:
        transfer, evaluation = seconds[f"transfer {spec}"], seconds[f"evaluation {spec}"]
        whole = [learning + FIFTH * evaluating for learning, evaluating in zip(transfer, evaluation, strict=True)]
        figures[f"transfer / forward: {spec}"] = _divide(transfer, seconds["forward"])
        figures[f"transfer with evaluations / forward: {spec}"] = _divide(whole, seconds["forward"])
        figures[f"lora / lora softmax: {spec}"] = _divide(seconds[f"lora {spec}"], seconds["lora softmax"])
    return {name: summarise(samples) for name, samples in figures.items()}


def _divide(numerators: list[float], denominators: list[float]) -> list[float]:
    return [numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=True)]


def check_goals(lengths: Mapping[str, Any]) -> list[Goal]:
    """Return the goals: the largest ratio of each kind over all specs, at each length."""
    goals = []
    for length, figures in lengths.items():
        medians_and_quartiles = figures["ratios"]["cpu"]
        for kind, most in (("transfer / forward", MOST_TRANSFER), ("lora / lora softmax", MOST_LORA)):
            largest = find_worst(
                [median for name, (median, *_) in medians_and_quartiles.items() if name.startswith(f"{kind}:")], "at most"
            )
            goals.append(Goal(f"{kind}, rows of {length}", largest, "at most", most))
    return goals


def show(figures: Mapping[str, Any], length: str, tokens: int, console: Console) -> None:
    """Print the figures of one length."""
    table = Table(f"rows of {length}", "tokens in a CPU second", "CPU s (quartiles)", "s on the clock (quartiles)")
    for name, cpu in figures["seconds"]["cpu"].items():
        cells = (f"{a:.2f} ({b:.2f} to {c:.2f})" for a, b, c in (cpu, figures["seconds"]["clock"][name]))
        table.add_row(name, f"{tokens / cpu[0]:,.0f}", *cells)
    console.print(table)
    table = Table(f"rows of {length}", "CPU time (quartiles)", "clock (quartiles)")
    for name in figures["ratios"]["cpu"]:
        by_clock = (figures["ratios"][clock][name] for clock in CLOCKS)
        table.add_row(name, *(f"{a:.2f} ({b:.2f} to {c:.2f})" for a, b, c in by_clock))
    console.print(table)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder with a Llama; left out: random weights")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the source; its first ones, where it is a folder's")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048], help="of rows, in tokens")
    parser.add_argument("--tokens", type=int, default=2048, help="of a step: at least one row")
    parser.add_argument("--specs", nargs="+", default=list(SPECS))
    parser.add_argument("--rounds", type=int, default=3, help="at least 2")
    parser.add_argument("--bfloat16", action="store_true", help="autocast, as of compose distill --bfloat16")
    parser.add_argument("--name", default="conversion_cpu", help="of the file under benchmarks/results")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: quartiles need at least 2")
    torch.set_num_threads(1)
    source = load_source(options.model, options.layers)
    contestants, console, lengths = Contestants(source, options.specs, options.bfloat16), Console(), dict[str, Any]()
    for length in options.lengths:
        batch = draw_rows(source.config.vocab_size, length, options.tokens).in_order(max(1, options.tokens // length))
        with keep_freed_memory():  # as in a run
            seconds = time_in_turn(contestants.build_runs(next(iter(batch))), options.rounds)
        lengths[str(length)] = figures = {
            "seconds": {
                clock: {name: summarise(samples) for name, samples in by_name.items()} for clock, by_name in seconds.items()
            },
            "ratios": {clock: compute_ratios(by_name, options.specs) for clock, by_name in seconds.items()},
        }
        show(figures, str(length), max(length, options.tokens), console)
    goals = check_goals(lengths)
    show_goals(goals, console)
    result = {
        "machine": describe_machine("cpu", dtype="bfloat16 by autocast" if options.bfloat16 else "float32"),
        "source": Path(options.model).name if options.model else "random weights",
        "layers_tokens_rounds": [options.layers, options.tokens, options.rounds],
        "lengths": lengths,
        "goals": [goal.to_json() for goal in goals],
    }
    console.print(f"Written: {write(options.name, result)}")


if __name__ == "__main__":
    main()
