"""Heads of the shipped specs at 4,096 tokens on one CPU thread: against LoLCATs' quadratic form, softmax attention and each other.

    python benchmarks/heads.py [--rounds 7]

B 1, H 8, D 64, float32, from queries, keys and values to the heads' output: no projections. The contestants are measured in turn,
one after the other in each round, forward without gradients and forward with backward: medians, and the spread from the first to
the third quartile. On a busy machine read the ratios, which are medians of each round's own. Peak memory is the resident set's
high-water mark (VmHWM, what ru_maxrss reports, set back just before the run) over what was resident then, in a process of its
own. Writes benchmarks/results/heads_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
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
from blocks.flow import Tokens
from composer.model.attention import ComposedHeads

RESULTS = Path(__file__).parent / "results"
HEADS, WIDTH, WINDOW = 8, 64, 64
PLAIN = ("head.memory.0.shape=sliding",)
TERRACED = ("head.memory.0.shape=terraced",)
SPECS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lolcats": ("lolcats", ()),
    "lolcats, terraced": ("lolcats", TERRACED),
    "lola": ("lola", ()),
    "lola, sliding": ("lola", PLAIN),
    **{name: (name, ()) for name in ("latte", "latte-macchiato", "linear", "gla", "delta", "gated-delta")},
}
BY_TOKEN = "lola, sliding"
"""Thousands of falls, each its own node of the graph: forward only, and in fewer rounds."""
CONTESTANTS = ("softmax", "quadratic", *SPECS)
RATIOS = (
    ("quadratic", "lolcats"),
    ("lola", "lolcats, terraced"),
    (BY_TOKEN, "lola"),
    ("latte", "softmax"),
    ("latte-macchiato", "softmax"),
    ("delta", "linear"),
    ("delta", "gla"),
    ("gated-delta", "gla"),
    ("lolcats", "lolcats, terraced"),
)
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
        """``B T H D`` to the output ``B T H D``."""
        query, key, value = (states.transpose(1, 2) for states in (query, key, value))
        token = torch.arange(query.shape[2])
        angles = (token[:, None] * self.inverse).repeat(1, 2)
        query, key = (states * angles.cos() + turned(states) * angles.sin() for states in (query, key))
        query_features, key_features = (features(states @ weight) for states, weight in zip((query, key), self.maps, strict=True))

        back = token[:, None] - token
        logits = query @ key.mT / math.sqrt(WIDTH)
        logits = logits.masked_fill((back < 0) | (back >= WINDOW), -math.inf)
        largest = logits.amax(-1, keepdim=True).detach()
        exact = (logits - largest).exp() * self.factor.sigmoid()[:, None, None]
        linear = (query_features * (-largest).exp()) @ key_features.mT
        weights = exact + linear.masked_fill(back < WINDOW, 0.0)
        return (weights / weights.sum(-1, keepdim=True) @ value).transpose(1, 2)


def turned(states: Tensor) -> Tensor:
    """A quarter turn of each pair of coordinates, in Llama's layout."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def features(mapped: Tensor) -> Tensor:
    """Hedgehog's: softmax of both signs."""
    return torch.cat((mapped.softmax(-1), (-mapped).softmax(-1)), dim=-1).clamp(min=1e-12)


def composed(name: str) -> ComposedHeads:
    """The heads of one layer, built from the shipped spec onto a random Llama of 8 heads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=HEADS * WIDTH,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
    )
    spec, overrides = SPECS[name]
    model = composer.build(spec, LlamaForCausalLM(config), overrides=overrides)
    return cast("ComposedHeads", model.get_submodule("model.layers.0.self_attn.composed"))


def contestant(name: str) -> tuple[nn.Module, Run]:
    """What holds the parameters, and the run from hidden states ``B T C``, queries, keys and values ``B T H D`` to the output."""
    if name == "softmax":
        attention = torch.nn.functional.scaled_dot_product_attention
        return nn.Module(), lambda hidden, *rows: attention(*(states.transpose(1, 2) for states in rows), is_causal=True)
    if name == "quadratic":
        (head,) = composed("lolcats").children()
        quadratic = Quadratic({name: parameter.detach() for name, parameter in head.named_parameters()})
        return quadratic, lambda hidden, *rows: quadratic(*rows)
    heads = composed(name)

    def run(hidden: Tensor, *rows: Tensor) -> Tensor:
        tokens, state = Tokens(torch.arange(hidden.shape[1])[None]), heads.empty_state(1, hidden.dtype, hidden.device)
        heads.mix(hidden, tokens, state, "torch")
        return heads(hidden, *rows, tokens, state, "torch")[0]

    return heads, run


def inputs(length: int) -> list[Tensor]:
    """Hidden states, queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, length, HEADS * WIDTH, generator=generator)
    rows = (torch.randn(1, length, HEADS, WIDTH, generator=generator) for _ in range(3))
    return [states.requires_grad_() for states in (hidden, *rows)]


def pass_through(module: nn.Module, run: Run, given: list[Tensor], backward: bool) -> None:
    """Once forward, and back to inputs and parameters if asked for."""
    with torch.set_grad_enabled(backward):
        output = run(*given)
        if backward:
            output.square().sum().backward()
    for tensor in (*given, *module.parameters()):
        tensor.grad = None


def in_turn(names: tuple[str, ...], length: int, rounds: int, backward: bool) -> dict[str, list[float]]:
    """Seconds of each in each round, after one round to warm up."""
    made, given = {name: contestant(name) for name in names}, inputs(length)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds + 1):
        for name, (module, run) in made.items():
            began = time.perf_counter()
            pass_through(module, run, given, backward)
            if round_:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def decode(name: str, length: int, steps: int) -> float:
    """Median seconds of one token after ``length`` others."""
    heads, given = composed(name), inputs(length)
    state = heads.empty_state(1, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        _, state = heads(*given, Tokens(torch.arange(length)[None]), state, "torch")
        seconds = []
        for position in range(length, length + steps):
            token = [states[:, position % length, None] for states in given]
            began = time.perf_counter()
            _, state = heads(*token, Tokens(torch.tensor([[position]])), state, "torch")
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def resident(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at its highest."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def peak(name: str, length: int, backward: bool) -> int:
    """Bytes above what is resident before one run, in this process; a short run before it loads what has to be loaded."""
    (module, run), given = contestant(name), inputs(length)
    pass_through(module, run, inputs(2 * WINDOW), backward)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from here
    before = resident("VmRSS")
    pass_through(module, run, given, backward)
    return resident("VmHWM") - before


def agreement(length: int) -> float:
    """The largest difference between the quadratic form's output and the head's: they compute the same function."""
    with torch.no_grad():
        one, other = (run(*inputs(length)) for _, run in map(contestant, ("quadratic", "lolcats")))
        return float((one - other).abs().max())


def summary(samples: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    first, median, third = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
    return {"median": median, "first_quartile": first, "third_quartile": third}


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    facts = {"cpu": model[1] if model else platform.processor(), "torch": torch.__version__, "python": platform.python_version()}
    return {**facts, "threads": torch.get_num_threads(), "dtype": "float32"}


def in_its_own_process(name: str, length: int, backward: bool) -> int:
    """``peak``, freshly started."""
    command = [sys.executable, __file__, "--peak", name, "--length", str(length), *["--backward"] * backward]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--peak", metavar="NAME", help="print the peak memory of one contestant instead")
    parser.add_argument("--backward", action="store_true", help="of a pass with gradients")
    options = parser.parse_args()
    torch.set_num_threads(1)
    length: int = options.length
    if options.peak:
        print(peak(options.peak, length, options.backward))
        return

    quick = tuple(name for name in CONTESTANTS if name != BY_TOKEN)
    seconds = {
        "forward": in_turn(quick, length, options.rounds, backward=False),
        "both": in_turn(quick, length, options.rounds, backward=True),
        "by token": in_turn((BY_TOKEN, "lola"), length, max(options.rounds // 3, 1), backward=False),
    }
    bytes_ = {
        "forward": {name: in_its_own_process(name, length, backward=False) for name in CONTESTANTS},
        "both": {name: in_its_own_process(name, length, backward=True) for name in quick},
    }
    steps = {name: decode(name, length, steps=200) for name in SPECS if "latte-" not in name}
    result = {"machine": machine(), "length": length, "rounds": options.rounds, "largest_difference": agreement(length)}
    result["seconds"] = {way: {name: summary(taken) for name, taken in of.items()} for way, of in seconds.items()}
    result |= {"peak_bytes": bytes_, "decode_seconds": steps}
    result["ratios"] = {
        way: {
            f"{one} / {other}": summary([a / b for a, b in zip(of[one], of[other], strict=True)])
            for one, other in RATIOS
            if one in of and other in of
        }
        for way, of in seconds.items()
    }
    show(result)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "heads_cpu.json").write_text(json.dumps(result, indent=1) + "\n")


def show(result: dict[str, Any]) -> None:
    """Two tables."""
    console, table = Console(), Table("head", "forward, ms", "with backward, ms", "peak, MB", "with backward, MB", "decode, ms")
    seconds, bytes_ = result["seconds"], result["peak_bytes"]

    def cell(of: dict[str, Any], name: str, scale: float) -> str:
        if name not in of:
            return ""
        if not isinstance(of[name], dict):
            return f"{of[name] * scale:,.3g}"
        median, first, third = (of[name][key] * scale for key in ("median", "first_quartile", "third_quartile"))
        return f"{median:,.2f} ({first:,.2f} to {third:,.2f})" if scale == 1 else f"{median:,.0f} ({first:,.0f} to {third:,.0f})"

    for name in CONTESTANTS:
        forward = seconds["by token" if name == BY_TOKEN else "forward"]
        times = cell(forward, name, 1e3), cell(seconds["both"], name, 1e3)
        peaks = cell(bytes_["forward"], name, 1e-6), cell(bytes_["both"], name, 1e-6)
        table.add_row(name, *times, *peaks, cell(result["decode_seconds"], name, 1e3))
    console.print(table)
    ratios = Table("ratio", "forward", "with backward")
    for one, other in RATIOS:
        name = f"{one} / {other}"
        forward = result["ratios"]["by token" if one == BY_TOKEN else "forward"]
        ratios.add_row(name, cell(forward, name, 1), cell(result["ratios"]["both"], name, 1))
    console.print(ratios)
    console.print(f"{result['machine']}; quadratic and lolcats differ by at most {result['largest_difference']:.1e}")


if __name__ == "__main__":
    main()
