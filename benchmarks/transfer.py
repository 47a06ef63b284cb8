"""Stage 1 on one CPU thread: the project's step against the same loss through T × T attention, as LoLCATs' own code trains.

    python benchmarks/transfer.py [--rounds 9]

The teacher has the architecture of examples/teacher at width 512: 2 layers, 8 heads of 64, random weights. It reads one row of
1,024 tokens. The heads of `specs/lolcats.yaml` read the same hidden states, and the loss of each layer is differentiated by their
parameters. *ours* is the course that `compose distill` runs. *quadratic* is plain PyTorch: the teacher's softmax with its weights
as matrices, the student's T × T form of window and features on the queries, keys and values of the teacher, and the same loss.
*teacher* is the teacher's part of ours. Losses and gradients are compared first; the script stops if they differ. Then all run in
turn. Ratios are computed within each round; their medians and quartiles are reported. The thread's CPU time is reported beside
wall-clock time, because a busy machine disturbs it less. Writes benchmarks/results/transfer_cpu.json; exit code 1 below 3×.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import composer
from benchmarks.harness import summarise
from benchmarks.heads import Quadratic
from composer.data.packing import Batch, Document, pack
from composer.model.modeling import ComposedForCausalLM
from composer.spec.loading import load_spec
from composer.training.transfer import TransferCourse, run_teacher

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "transfer_cpu.json"
WIDTH, HEAD, LENGTH = 512, 64, 1024
LEAST = 3.0
"""The smallest accepted ratio of quadratic's time to ours."""
CLOCKS: dict[str, Callable[[], float]] = {"clock": time.perf_counter, "cpu": time.thread_time}


def build_config() -> LlamaConfig:
    """Return the config of the shipped teacher at another width."""
    own = json.loads((ROOT / "examples" / "teacher" / "config.json").read_text(encoding="utf-8"))
    scale, heads = WIDTH // own["hidden_size"], WIDTH // HEAD
    groups = own["num_attention_heads"] // own["num_key_value_heads"]
    return LlamaConfig(
        **own
        | {
            "hidden_size": WIDTH,
            "intermediate_size": scale * own["intermediate_size"],
            "num_attention_heads": heads,
            "num_key_value_heads": heads // groups,
            "head_dim": HEAD,
            "max_position_embeddings": LENGTH,
        }
    )


class QuadraticStep:
    """The same step with T × T matrices: softmax of the teacher, the student's form, loss and backward, layer by layer."""

    def __init__(self, source: LlamaForCausalLM, student: ComposedForCausalLM, factor: float) -> None:
        self.source, self.factor = source, factor
        heads = (
            student.get_submodule(f"model.layers.{index}.self_attn.composed.head") for index in range(len(source.model.layers))
        )
        own = ({name: parameter.detach().clone() for name, parameter in head.named_parameters()} for head in heads)
        self.students = [Quadratic(weights) for weights in own]

    def learn(self, ids: Tensor) -> list[Tensor]:
        """Return the losses of the layers, and add their gradients to the parameters'."""
        losses, trunk, length = [], self.source.model, ids.shape[1]
        with torch.no_grad():
            hidden = trunk.embed_tokens(ids)
            turn = trunk.rotary_emb(hidden, torch.arange(length)[None])
            causal = torch.full((length, length), -math.inf).triu(1)
        for index, (layer, student) in enumerate(zip(trunk.layers, self.students, strict=True)):
            attention = cast("Any", layer).self_attn
            with torch.no_grad():
                normed = cast("Any", layer).input_layernorm(hidden)
                query, key, value = (
                    projection(normed).unflatten(2, (-1, HEAD))
                    for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
                )
                key, value = (states.repeat_interleave(attention.num_key_value_groups, dim=2) for states in (key, value))
                converted, facing = (_rotate(states.transpose(1, 2), *turn) for states in (query, key))
                weights = (converted @ facing.mT / math.sqrt(HEAD) + causal).softmax(-1, dtype=torch.float32)
                target = (weights @ value.transpose(1, 2)).transpose(1, 2).flatten(2)
            output = student(query, key, value).flatten(2)
            loss = self.factor * (output - target).square().mean(-1).mean()
            loss.backward()
            losses.append(loss.detach())
            if index + 1 == len(trunk.layers):  # the output of the last layer is not needed
                break
            with torch.no_grad():
                hidden = hidden + attention.o_proj(target)
                hidden = hidden + cast("Any", layer).mlp(cast("Any", layer).post_attention_layernorm(hidden))
        return losses

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for student in self.students for parameter in student.parameters()]


def _rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return states * cosine[:, None] + torch.cat((-second, first), dim=-1) * sine[:, None]


def build_contestants() -> tuple[TransferCourse, QuadraticStep, ComposedForCausalLM, Batch]:
    """Return ours and quadratic on the same weights, the teacher, and a row of random tokens."""
    torch.manual_seed(0)
    source = LlamaForCausalLM(build_config()).requires_grad_(False).eval()
    student, teacher = (cast("ComposedForCausalLM", composer.build(spec, source)).eval() for spec in ("lolcats", "softmax"))
    for name, parameter in student.named_parameters():
        if name.endswith("_weight"):  # feature maps as in the middle of training, not the initial identity
            parameter.data += 0.1 * torch.randn_like(parameter)
    recipe = load_spec("lolcats").recipe
    assert recipe is not None
    assert recipe.transfer is not None
    quadratic = QuadraticStep(source, student, recipe.transfer.mse)
    ids = torch.randint(3, source.config.vocab_size, (LENGTH,)).int().numpy()
    rows = pack([Document(ids, ids >= 0)], LENGTH, how="packed")
    course = TransferCourse(student, teacher.requires_grad_(False), recipe.transfer)
    return course, quadratic, teacher, rows.batch([0])


def compute_differences(course: TransferCourse, quadratic: QuadraticStep, batch: Batch) -> dict[str, float]:
    """Return the differences of losses and gradients, each relative to the largest value of its kind."""
    ours, theirs = course.compute_gradients(batch, course.count(batch)), quadratic.learn(batch.ids)
    gaps = {
        "loss": max(float(abs(parameter - expected) / expected) for parameter, expected in zip(ours.values(), theirs, strict=True))
    }
    by_name = {name: parameter for unit in course.units for name, parameter in unit.parameters.items()}
    for index, student in enumerate(quadratic.students):
        names = ("feature_map.query_weight", "feature_map.key_weight", "window.weight")
        for name, expected in zip(names, (*student.maps, student.factor), strict=True):
            parameter = by_name[f"model.layers.{index}.self_attn.composed.head.{name}"]
            assert parameter.grad is not None
            assert expected.grad is not None
            gaps[f"layer {index} {name}"] = float((parameter.grad - expected.grad).abs().max() / expected.grad.abs().max())
    return gaps


def time_in_turn(course: TransferCourse, quadratic: QuadraticStep, teacher: ComposedForCausalLM, batch: Batch, rounds: int) -> Any:
    """Return the seconds of each run in each round, by clock and name, after one round to warm up."""
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: course.compute_gradients(batch, course.count(batch)),
        "quadratic": lambda: quadratic.learn(batch.ids),
        "teacher": lambda: run_teacher(teacher, batch, lambda index, attention, target: None),
    }
    parameters = [*quadratic.parameters(), *(parameter for unit in course.units for parameter in unit.parameters.values())]
    seconds: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in contestants} for clock in CLOCKS}
    for round_ in range(rounds + 1):
        for name, run in contestants.items():
            began = {clock: read() for clock, read in CLOCKS.items()}
            run()
            for clock, read in CLOCKS.items():
                if round_:
                    seconds[clock][name].append(read() - began[clock])
            for parameter in parameters:
                parameter.grad = None
    return seconds


def main() -> None:
    """Compare, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="at least 2")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: quartiles need at least 2")
    torch.set_num_threads(1)
    course, quadratic, teacher, batch = build_contestants()
    gaps = compute_differences(course, quadratic, batch)
    if max(gaps.values()) > 1e-3:
        sys.exit(f"They do not compute the same: {gaps}")
    seconds = time_in_turn(course, quadratic, teacher, batch, options.rounds)
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    ratios = {
        clock: summarise(
            [
                quadratic_seconds / own_seconds
                for quadratic_seconds, own_seconds in zip(by_name["quadratic"], by_name["ours"], strict=True)
            ]
        )
        for clock, by_name in seconds.items()
    }
    result = {
        "machine": {"cpu": cpu and cpu[1], "torch": torch.__version__, "threads": 1, "dtype": "float32"},
        "tokens_and_rounds": [LENGTH, options.rounds],
        "relative_differences": gaps,
        "seconds": {clock: {name: summarise(samples) for name, samples in by_name.items()} for clock, by_name in seconds.items()},
        "quadratic / ours": ratios,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    console, table = Console(), Table("", "tokens/s", "tokens in a CPU second", "ms", "CPU ms")
    for name in seconds["clock"]:
        wall, cpu_time = (result["seconds"][clock][name] for clock in CLOCKS)
        cells = [f"{LENGTH / wall[0]:,.0f}", f"{LENGTH / cpu_time[0]:,.0f}"]
        table.add_row(name, *cells, *(f"{1e3 * a:,.0f} ({1e3 * b:,.0f} to {1e3 * c:,.0f})" for a, b, c in (wall, cpu_time)))
    console.print(table, f"largest relative difference: {max(gaps.values()):.1e}")
    for clock, (median, first, third) in ratios.items():
        console.print(f"quadratic / ours, {clock}: {median:.2f} ({first:.2f} to {third:.2f})")
    if ratios["cpu"][0] < LEAST:
        sys.exit(f"below {LEAST}")


if __name__ == "__main__":
    main()
