"""Forms on a GPU beside what they are measured by: fla's best function called by hand on the same tensors, and PyTorch's attention.

    python benchmarks/kernels.py [--lengths 2048,4096,8192,16384]

B 1, H 32, D 128, bfloat16, forward and with the way back. Each pair is timed in turn, minimum and median of many runs: read the
ratios. Nothing is timed before it agrees with what it is measured by. Writes benchmarks/results/kernels_<device>.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from blocks.recurrences import additive, delta

RESULTS = Path(__file__).parent / "results"
HEADS, WIDTH, RUNS = 32, 128, 20
CLOSE = 2e-2
Run = Callable[[], torch.Tensor]


def drawn(length: int) -> dict[str, torch.Tensor]:
    """Features, values, decays and rates that nothing overflows on, and an empty state."""
    shape, kind = (1, length, HEADS, WIDTH), {"device": "cuda", "dtype": torch.bfloat16}
    narrow = {name: torch.randn(shape, **kind) for name in ("query", "key", "value")}
    unit = {f"unit_{name}": torch.nn.functional.normalize(narrow[name].float(), dim=-1).bfloat16() for name in ("query", "key")}
    shares = {f"{name}_features": narrow[name].float().softmax(-1).bfloat16() for name in ("query", "key")}
    decays = {
        "head": torch.nn.functional.logsigmoid(torch.randn(shape[:3], device="cuda") + 4),
        "channel": torch.nn.functional.logsigmoid(torch.randn(shape, device="cuda") + 4),
    }
    return {**narrow, **unit, **shares, **decays, "rate": torch.rand(shape[:3], **kind)}


def pairs(of: dict[str, torch.Tensor]) -> dict[str, tuple[Run, Run]]:
    """By name, the form and fla's function by hand."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.gla import chunk_gla
    from fla.ops.simple_gla import chunk_simple_gla

    (fast,) = (form for form in additive.FORMS if form.backend == "fla" and not form.decode)
    (rule,) = (form for form in delta.FORMS if form.backend == "fla" and not form.decode)
    features, value = (of["query_features"], of["key_features"]), of["value"]
    units, empty = (of["unit_query"], of["unit_key"]), torch.zeros(1, HEADS, WIDTH, WIDTH, device="cuda")
    widened = torch.nn.functional.pad(value, (0, 1), value=1.0)
    wide = torch.nn.functional.pad(empty, (0, 1))

    def normalised(output: torch.Tensor) -> torch.Tensor:
        return output[..., :WIDTH] / output[..., WIDTH : WIDTH + 1]

    def by_hand(call: Any, *inputs: torch.Tensor) -> torch.Tensor:
        return call(*inputs, scale=1.0, output_final_state=True)[0]

    def with_mass(call: Any, *gates: torch.Tensor) -> torch.Tensor:
        filled = torch.nn.functional.pad(widened, (0, 7))
        return normalised(by_hand(call, *features, filled, *gates))

    return {
        "linear": (lambda: fast.run(*features, value, None, None, empty)[0], lambda: by_hand(chunk_simple_gla, *features, value)),
        "linear, normalised": (
            lambda: normalised(fast.run(*features, widened, None, None, wide)[0]),
            lambda: with_mass(chunk_simple_gla),
        ),
        "decay by head": (
            lambda: fast.run(*features, value, of["head"], None, empty)[0],
            lambda: by_hand(chunk_simple_gla, *features, value, of["head"]),
        ),
        "decay by channel, normalised": (
            lambda: normalised(fast.run(*features, widened, of["channel"], None, wide)[0]),
            lambda: with_mass(chunk_gla, of["channel"]),
        ),
        "gated delta": (
            lambda: rule.run(*units, value, of["rate"], of["head"], None, empty)[0],
            lambda: by_hand(chunk_gated_delta_rule, *units, value, of["head"], of["rate"]),
        ),
    }


def attention(of: dict[str, torch.Tensor]) -> Run:
    """PyTorch's causal attention on the same queries, keys and values."""
    states = [of[name].transpose(1, 2) for name in ("query", "key", "value")]
    return lambda: torch.nn.functional.scaled_dot_product_attention(states[0], states[1], states[2], is_causal=True)


def in_turn(runs: Sequence[Run], leaves: Sequence[torch.Tensor], *, backward: bool) -> list[dict[str, float]]:
    """Milliseconds of each, least and median."""
    taken: list[list[float]] = [[] for _ in runs]
    for turn in range(RUNS + 3):
        for run, times in zip(runs, taken, strict=True):
            begins, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begins.record()
            output = run()
            if backward:
                torch.autograd.grad(output.float().sum(), leaves, allow_unused=True)
            ends.record()
            torch.cuda.synchronize()
            if turn >= 3:
                times.append(begins.elapsed_time(ends))
    return [{"least": min(times), "median": statistics.median(times)} for times in taken]


def measured(length: int) -> list[dict[str, Any]]:
    """A row for each form, forward and with the way back."""
    rows = []
    for backward in (False, True):
        given = {name: tensor.requires_grad_(backward) for name, tensor in drawn(length).items()}
        leaves, soft = list(given.values()), attention(given)
        for name, (form, hand) in pairs(given).items():
            found, wanted = (run().float() for run in (form, hand))
            difference = ((found - wanted).abs().max() / wanted.abs().max()).item()
            if difference > CLOSE:
                sys.exit(f"{name} at {length} tokens is {difference:.1e} away from fla's own function: nothing is timed")
            torch.cuda.reset_peak_memory_stats()
            ours, theirs, exact = in_turn((form, hand, soft), leaves, backward=backward)
            peak = torch.cuda.max_memory_allocated()
            rows.append({"form": name, "tokens": length, "backward": backward, "difference": difference,
                         "form_ms": ours, "by_hand_ms": theirs, "attention_ms": exact, "peak_bytes": peak})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="2048,4096,8192,16384")
    lengths = [int(length) for length in parser.parse_args().lengths.split(",")]
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here: nothing was run")
    torch.manual_seed(0)
    rows = [row for length in lengths for row in measured(length)]
    table = Table("form", "tokens", "with backward", "ms", "over fla by hand", "attention over it")
    for row in rows:
        ours, theirs, exact = (row[name]["least"] for name in ("form_ms", "by_hand_ms", "attention_ms"))
        way = "yes" if row["backward"] else ""
        table.add_row(row["form"], str(row["tokens"]), way, f"{ours:.3f}", f"{ours / theirs:.2f}", f"{exact / ours:.2f}")
    Console().print(table)
    device = torch.cuda.get_device_name()
    versions = {name: metadata.version(name) for name in ("torch", "triton", "flash-linear-attention")}
    about = {
        "device": device,
        "python": platform.python_version(),
        **versions,
        "heads": HEADS,
        "head_dim": WIDTH,
        "dtype": "bfloat16",
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"kernels_{device.lower().replace(' ', '_')}.json"
    path.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
