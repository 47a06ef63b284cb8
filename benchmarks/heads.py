"""Heads of the shipped specs at 4,096 tokens on one CPU thread: against LoLCATs' quadratic form, softmax attention and each other.

    python benchmarks/heads.py [--rounds 7]

B 1, H 8, D 64, float32, from queries, keys and values to the heads' output: no projections. The contestants run in turn in each
round, forward without gradients and forward with backward. Reported are medians, with first and third quartile. On a busy machine
compare the ratios, which are computed within each round. Peak memory is the growth of the resident set's high-water mark (VmHWM,
reset before the run) over the resident memory before the run. It is measured in a separate process, whose allocator returns freed
memory at once. Writes benchmarks/results/heads_cpu.json.
"""
# Tensors of a call are unpacked into its inputs.
# pyright: reportCallIssue=false

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
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
from blocks.flow import Tokens
from composer.benching.memory import resident
from composer.graph.program import HeadInputs
from composer.model.heads import ComposedHeads

RESULTS = Path(__file__).parent / "results"
HEADS, WIDTH, WINDOW = 8, 64, 64
STEPS = 200
"""Steps of decode. Their inputs are the first tokens of the text."""
SPECS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lolcats": ("lolcats", ()),
    "lolcats-terraced": ("lolcats", ("head.memory.0.shape=terraced",)),
    "lola": ("lola", ()),
    "lola-sliding": ("lola", ("head.memory.0.shape=sliding",)),
    **{name: (name, ()) for name in ("latte", "latte-macchiato", "linear")},
    "gla": ("gla", ("head.output=null", "head.memory.0.scale=null")),
    **{name: (name, ()) for name in ("delta", "gated-delta")},
}
BY_TOKEN = "lola-sliding"
"""Evicts thousands of pairs one after the other, so it runs forward only."""
CONTESTANTS = ("softmax", "quadratic", *SPECS)
VERSUS = "quadratic/lolcats, lola/lolcats-terraced, lola-sliding/lola, latte/softmax, latte-macchiato/softmax, delta/linear, \
delta/gla, gated-delta/gla, lolcats-terraced/lolcats"
WAYS = ("forward", "with backward")
RATIOS = [ratio.split("/") for ratio in VERSUS.split(", ")]
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Make glibc return freed tensors above 1 MiB at once: resident memory is then allocated memory, without holes in the heap."""
Run = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Quadratic(nn.Module):
    """LoLCATs' form for training: T × T weights, exp(q·k/√D) by σ(w) in the band and φ(q)·φ(k) before it, one sum for each row.

    Takes the weights of the head it is compared with. As in LoLCATs' code the row maximum leaves the band's logits; the linear
    term is divided by its exponential, too, so that the masses stay as they are.
    """

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.maps = nn.ParameterList([weights["feature_map.query_weight"], weights["feature_map.key_weight"]])
        self.factor = nn.Parameter(weights["window.weight"])
        self.inverse = 1.0 / 10000.0 ** (torch.arange(0, WIDTH, 2) / WIDTH)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the output ``B T H D`` of states ``B T H D``."""
        query, key, value = (states.transpose(1, 2) for states in (query, key, value))
        token = torch.arange(query.shape[2])
        angles = (token[:, None] * self.inverse).repeat(1, 2)
        halves = ((states, states.chunk(2, dim=-1)) for states in (query, key))
        query, key = (states * angles.cos() + torch.cat((-last, first), dim=-1) * angles.sin() for states, (first, last) in halves)
        mapped = query @ self.maps[0], key @ self.maps[1]
        query_features, key_features = (
            torch.cat((states.softmax(-1), (-states).softmax(-1)), dim=-1).clamp(min=1e-12) for states in mapped
        )
        back = token[:, None] - token
        logits = (query / math.sqrt(WIDTH) @ key.mT).masked_fill((back < 0) | (back >= WINDOW), -math.inf)
        largest = logits.amax(-1, keepdim=True).detach()
        exact = (logits - largest).exp() * self.factor.sigmoid()[:, None, None]
        linear = (query_features * (-largest).exp()) @ key_features.mT
        weights = exact + linear.masked_fill(back < WINDOW, 0.0)
        return (weights / weights.sum(-1, keepdim=True) @ value).transpose(1, 2)


def build_heads(name: str) -> ComposedHeads:
    """Return the heads of one layer, built from the shipped spec onto a random Llama of 8 heads."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=9, hidden_size=512, intermediate_size=9, num_hidden_layers=1, num_attention_heads=HEADS)
    spec, overrides = SPECS[name]
    model = composer.build(spec, LlamaForCausalLM(config), overrides=overrides)
    return cast("ComposedHeads", model.get_submodule("model.layers.0.self_attn.composed"))


def build_contestant(name: str) -> tuple[nn.Module, Run]:
    """Return the module that holds the parameters, and a run. It computes the output from hidden states ``B T C`` and queries, keys
    and values ``B T H D``."""
    if name == "softmax":
        attention = torch.nn.functional.scaled_dot_product_attention
        return nn.Module(), lambda hidden, *rows: attention(*(states.transpose(1, 2) for states in rows), is_causal=True)
    if name == "quadratic":
        (head,) = build_heads("lolcats").children()
        quadratic = Quadratic({name: parameter.detach() for name, parameter in head.named_parameters()})
        return quadratic, lambda hidden, *rows: quadratic(*rows)
    heads = build_heads(name)

    def run(hidden: Tensor, *rows: Tensor) -> Tensor:
        tokens, state = Tokens(torch.arange(hidden.shape[1])[None]), heads.empty_state(1, hidden.dtype, hidden.device)
        heads.mix(hidden, tokens, state, "torch", in_place=False)
        return heads(HeadInputs(hidden, *rows, tokens), state, "torch", in_place=False)[0]

    return heads, run


def draw_inputs(length: int) -> list[Tensor]:
    """Draw hidden states, queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, length, HEADS * WIDTH, generator=generator)
    rows = (torch.randn(1, length, HEADS, WIDTH, generator=generator) for _ in range(3))
    return [states.requires_grad_() for states in (hidden, *rows)]


def run_once(module: nn.Module, run: Run, tensors: list[Tensor], way: str) -> None:
    """Run forward once, and backward to inputs and parameters if set."""
    with torch.set_grad_enabled(way == "with backward"):
        output = run(*tensors)
        if output.requires_grad:
            output.square().sum().backward()
    for tensor in (*tensors, *module.parameters()):
        tensor.grad = None


def time_in_turn(names: tuple[str, ...], length: int, rounds: int, way: str) -> dict[str, list[float]]:
    """Return the seconds of each contestant in each round, after one round to warm up."""
    contestants, tensors = {name: build_contestant(name) for name in names}, draw_inputs(length)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds + 1):
        for name, (module, run) in contestants.items():
            began = time.perf_counter()
            run_once(module, run, tensors, way)
            if round_:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def decode(names: list[str], length: int, steps: int = STEPS) -> dict[str, float]:
    """Return the median seconds of one token after ``length`` others, timed in turn. States are overwritten, as in a model."""
    tensors, heads_by_name = draw_inputs(length), {name: build_heads(name) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with torch.no_grad():
        tokens, kind = Tokens(torch.arange(length)[None]), (torch.float32, tensors[0].device)
        state = {
            name: heads(HeadInputs(*tensors, tokens), heads.empty_state(1, *kind), "torch", in_place=False)[1]
            for name, heads in heads_by_name.items()
        }
        for step in range(steps):
            token, place = [states[:, step, None] for states in tensors], Tokens(torch.tensor([[length + step]]))
            for name, heads in heads_by_name.items():
                began = time.perf_counter()
                _, state[name] = heads(HeadInputs(*token, place), state[name], "torch", in_place=True)
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(samples) for name, samples in seconds.items()}


def measure_peak(name: str, way: str, length: int) -> int:
    """Return the peak memory of one run in this process, in bytes above what was resident. A short run loads libraries first."""
    (module, run), tensors = build_contestant(name), draw_inputs(length)
    run_once(module, run, draw_inputs(2 * WINDOW), way)
    return resident(lambda: run_once(module, run, tensors, way), 0)[1]


def measure_peak_apart(name: str, length: int, way: str) -> int:
    """Return ``measure_peak`` of a new process."""
    command = [sys.executable, __file__, "--length", str(length), "--peak", name, way]
    return int(subprocess.run(command, env=os.environ | AT_ONCE, check=True, capture_output=True, text=True).stdout)


def measure(length: int, rounds: int) -> dict[str, Any]:
    """Return all figures of the result."""
    quick = tuple(name for name in CONTESTANTS if name != BY_TOKEN)
    seconds = {way: time_in_turn(quick, length, rounds, way) for way in WAYS}
    seconds["token by token"] = time_in_turn((BY_TOKEN, "lola"), length, rounds, "forward")
    with torch.no_grad():
        quadratic, linear = (run(*draw_inputs(length)) for _, run in map(build_contestant, ("quadratic", "lolcats")))
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "machine": {"cpu": cpu and cpu[1], "torch": torch.__version__, "threads": torch.get_num_threads(), "dtype": "float32"},
        "tokens_and_rounds": [length, rounds],
        "largest_difference": float((quadratic - linear).abs().max()),
        "seconds": {way: {name: summarise(samples) for name, samples in by_name.items()} for way, by_name in seconds.items()},
        "ratios": {
            way: {
                f"{a} / {b}": summarise([x / y for x, y in zip(by_name[a], by_name[b], strict=True)])
                for a, b in RATIOS
                if {a, b} <= {*by_name}
            }
            for way, by_name in seconds.items()
        },
        "peak_bytes": {way: {name: measure_peak_apart(name, length, way) for name in quick} for way in WAYS},
        "decode_seconds": decode([name for name in SPECS if name != "latte-macchiato"], length),
    }


def show(result: dict[str, Any]) -> None:
    """Print what was measured."""

    def format_cells(figure: str, name: str, scale: float, places: int) -> list[str]:
        forward, both, by_token = (result[figure][way].get(name) for way in (*WAYS, "token by token"))
        spread = [[scale * value for value in quartiles] if quartiles else None for quartiles in (forward or by_token, both)]
        return [f"{row[0]:,.{places}f} ({row[1]:,.{places}f} to {row[2]:,.{places}f})" if row else "" for row in spread]

    console, table = Console(), Table("head", "forward, ms", "with backward, ms", "peak, MB", "with backward, MB", "decode, ms")
    for name in CONTESTANTS:
        peaks = [f"{peak_bytes[name] / 1e6:,.0f}" if name in peak_bytes else "" for peak_bytes in result["peak_bytes"].values()]
        step = result["decode_seconds"].get(name)
        table.add_row(name, *format_cells("seconds", name, 1e3, 0), *peaks, f"{step * 1e3:.2f}" if step else "")
    ratios = Table("ratio", "forward", "with backward")
    for numerator, denominator in RATIOS:
        ratios.add_row(f"{numerator} / {denominator}", *format_cells("ratios", f"{numerator} / {denominator}", 1, 2))
    console.print(table, ratios, result["machine"], f"quadratic and lolcats differ by {result['largest_difference']:.1e} at most")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="at least 2")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--peak", nargs=2, metavar=("NAME", "WAY"), help="print the peak memory of one contestant instead")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: quartiles need at least 2")
    if options.length < STEPS:
        parser.error(f"--length: the steps of decode need at least {STEPS} tokens")
    torch.set_num_threads(1)
    if options.peak:
        print(measure_peak(*options.peak, length=options.length))
        return
    result = measure(options.length, options.rounds)
    show(result)
    (RESULTS / "heads_cpu.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
