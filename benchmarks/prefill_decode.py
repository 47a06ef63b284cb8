"""Prefill of states and of whole layers against softmax attention, by length, and decode of LAWCAT far into a sequence.

    python benchmarks/prefill_decode.py [--device cuda]

One thread on a CPU. Each row's times are medians of runs taken in turn, so that a busy machine slows both sides alike: compare the
ratios. Writes benchmarks/results/prefill_decode_<device>.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

import composer
from blocks.flow import Tokens
from blocks.operation import TORCH
from blocks.recurrences import additive
from composer.model.attention import ComposedAttention, ModelCall
from composer.model.cache import ComposedCache

RESULTS = Path(__file__).parent / "results"
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
HEADS, WIDTH = 8, 64
NEAR, FAR = 512, 131_072


def time_in_turn(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each run, timed in turn after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(repeats + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if round_:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(samples) for name, samples in seconds.items()}


def prefill(length: int, device: str) -> dict[str, float]:
    """Time a normalised state without decay and with decay by feature, and softmax attention, at B 1, H 8, D 64."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.rand(1, length, HEADS, WIDTH, generator=generator) for _ in range(2))
    value = torch.randn(1, length, HEADS, WIDTH + 1, generator=generator)
    decay = -torch.rand(1, length, HEADS, WIDTH, generator=generator) / 16
    empty = torch.zeros(1, HEADS, WIDTH, WIDTH + 1)
    query, key, value, decay, empty = (states.to(device) for states in (query, key, value, decay, empty))
    rows = [states.transpose(1, 2).contiguous() for states in (query, key, value[..., :WIDTH])]
    return time_in_turn(
        {
            "state": lambda: additive.chunked(query, key, value, None, None, empty),
            "gated state": lambda: additive.chunked(query, key, value, decay, None, empty),
            "softmax": lambda: torch.nn.functional.scaled_dot_product_attention(rows[0], rows[1], rows[2], is_causal=True),
        },
        repeats=2 if length > 8192 else 5,
    )


def run_layers(length: int, device: str) -> dict[str, float]:
    """Time attention layers of Llama, LAWCAT and LoLCATs with their projections, of width 512 and 8 heads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=512, intermediate_size=64, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8
    )
    source = LlamaForCausalLM(config)
    torch.nn.Module.to(source, device)
    hidden = torch.randn(1, length, 512, device=device)
    position = torch.arange(length, device=device)[None]
    rotary = source.model.rotary_emb(hidden, position)
    softmax = source.get_submodule("model.layers.0.self_attn")
    runs: dict[str, Callable[[], object]] = {"softmax": lambda: softmax(hidden, position_embeddings=rotary, attention_mask=None)}
    for spec in ("lawcat", "lolcats"):
        attention = cast("ComposedAttention", composer.build(spec, source).get_submodule("model.layers.0.self_attn"))
        runs[spec] = partial(attention.attention_output, hidden, ModelCall(Tokens(position), TORCH), {})
    return time_in_turn(runs, repeats=2 if length > 8192 else 5)


def decode(device: str) -> dict[str, float]:
    """Time a step of a LAWCAT student of a small random Llama at positions 512 and 131,072, in turn."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=FAR + 1024,
    )
    torch.manual_seed(0)
    model = composer.build("lawcat", LlamaForCausalLM(config))
    torch.nn.Module.to(model, device)
    caches = {}
    for position in (NEAR, FAR):
        cache = ComposedCache(config.num_hidden_layers)
        for start in range(0, position, 4096):
            ids = torch.randint(3, 512, (1, min(4096, position - start)), device=device)
            model(ids, past_key_values=cache, logits_to_keep=1)
        caches[position] = cache
    token = torch.tensor([[5]], device=device)
    steps = time_in_turn(
        {str(position): lambda cache=cache: model(token, past_key_values=cache) for position, cache in caches.items()}, repeats=400
    )
    return {
        "near_seconds": steps[str(NEAR)],
        "far_seconds": steps[str(FAR)],
        "near_bytes": caches[NEAR].bytes(),
        "far_bytes": caches[FAR].bytes(),
    }


@torch.no_grad()
def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    device: str = parser.parse_args().device
    torch.set_num_threads(1)
    console, table = Console(), Table("tokens", "state", "gated state", "softmax", "softmax / state", "softmax / gated")
    rows = {}
    for length in LENGTHS:
        row = rows[length] = prefill(length, device)
        times = [f"{row[name] * 1e3:.0f} ms" for name in ("state", "gated state", "softmax")]
        table.add_row(f"{length:,}", *times, f"{row['softmax'] / row['state']:.2f}", f"{row['softmax'] / row['gated state']:.2f}")
    console.print(table)
    whole, layer_rows = Table("tokens", "softmax", "lawcat", "lolcats", "softmax / lawcat", "softmax / lolcats"), {}
    for length in LENGTHS[:-1]:
        row = layer_rows[length] = run_layers(length, device)
        times = [f"{row[name] * 1e3:.0f} ms" for name in ("softmax", "lawcat", "lolcats")]
        ratios = [f"{row['softmax'] / row[name]:.2f}" for name in ("lawcat", "lolcats")]
        whole.add_row(f"{length:,}", *times, *ratios)
    console.print(whole)
    step = decode(device)
    console.print(
        f"decode at {NEAR:,}: {step['near_seconds'] * 1e3:.2f} ms, {step['near_bytes']:,} bytes of state; "
        f"at {FAR:,}: {step['far_seconds'] * 1e3:.2f} ms, {step['far_bytes']:,} bytes; "
        f"ratio {step['far_seconds'] / step['near_seconds']:.3f}"
    )
    RESULTS.mkdir(exist_ok=True)
    result = {
        "threads": 1,
        "torch": torch.__version__,
        "device": device,
        "prefill_seconds": rows,
        "layer_seconds": layer_rows,
        "decode": step,
    }
    (RESULTS / f"prefill_decode_{device}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
