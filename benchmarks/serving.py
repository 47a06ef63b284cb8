"""Throughput of a student under vLLM, against its teacher under vLLM and its own ``generate``, and bytes of a request.

    .venv-vllm/bin/python benchmarks/serving.py STUDENT TEACHER [--prompt 512] [--new 128] [--requests 32] [--mixed] [--repeats 3]

It needs the environment of ``make serve-test``. Each figure is the best of all repeats, after one that is not counted, in a
separate process with one thread. Tokens a second are of new tokens and of the processor's time, which other work on the machine
changes little. With ``--mixed`` the prompts have from half of ``--prompt`` to one and a half times as many tokens, and one
batch of ``generate`` is padded to the longest. Peak memory is of the whole process; vLLM takes 4 GiB for its cache at once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from composer.system.devices import device_name

ONE_BY_ONE = 4
"""Number of requests that ``generate`` completes one by one. Each further request would take as long."""


def measure_vllm(model: str, prompts: list[list[int]], options: argparse.Namespace) -> dict[str, float]:
    """Return tokens a second under vLLM, and the bytes of a request in the cache at its end."""
    from vllm import LLM, SamplingParams  # pyright: ignore

    longest = max(map(len, prompts)) + options.new
    engine: Any = LLM(
        model, dtype=options.dtype, enforce_eager=True, max_model_len=longest, max_num_seqs=options.requests,
        enable_prefix_caching=False, skip_tokenizer_init=True, disable_log_stats=True,
    )  # fmt: skip
    greedy = SamplingParams(temperature=0, max_tokens=options.new, ignore_eos=True, detokenize=False)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    seconds = [_time(lambda: engine.generate(inputs, greedy, use_tqdm=False)) for _ in range(options.repeats + 1)]
    config = engine.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
    request_bytes = sum(_count_bytes(group, options.prompt + options.new) for group in config.kv_cache_groups)
    return {"tokens a second": len(prompts) * options.new / min(seconds[1:]), "bytes a request": request_bytes}


def _count_bytes(group: Any, length: int) -> int:
    """Return the bytes of a request of so many tokens in the cache of these layers: blocks of attention, or one page of states."""
    from vllm.v1.kv_cache_interface import MambaSpec  # pyright: ignore

    spec = group.kv_cache_spec
    blocks = 1 if isinstance(spec, MambaSpec) else -(-length // spec.block_size)
    return blocks * spec.page_size_bytes * len(group.layer_names)


def measure_generate(model: str, prompts: list[list[int]], options: argparse.Namespace, *, rows: int) -> dict[str, float]:
    """Return tokens a second of ``generate`` with ``rows`` rows at once, and the cache's bytes of a row."""
    import torch
    from transformers import AutoModelForCausalLM

    import composer  # noqa: F401  registers the project's models with transformers

    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, options.dtype)).eval()
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    fixed = {"max_new_tokens": options.new, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    single = [(torch.tensor([prompt]), torch.ones(1, len(prompt), dtype=torch.long)) for prompt in prompts[:ONE_BY_ONE]]
    batches = single if rows == 1 else list(zip(ids.split(rows), mask.split(rows), strict=True))
    fixed["return_dict_in_generate"] = True
    cache: Any = None

    def generate_all() -> None:
        nonlocal cache
        for batch, attention_mask in batches:
            cache = loaded.generate(batch, attention_mask=attention_mask, **fixed).past_key_values

    with torch.no_grad():
        seconds = [_time(generate_all) for _ in range(options.repeats + 1)]
    cache_bytes = cache.bytes() if hasattr(cache, "bytes") else sum(2 * layer.keys.nbytes for layer in cache.layers)
    new = sum(len(batch) for batch, _ in batches) * options.new
    return {"tokens a second": new / min(seconds[1:]), "bytes a request": cache_bytes / len(batches[-1][0])}


def _time(run: Any) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    """Measure, in separate processes, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("student")
    parser.add_argument("teacher")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", choices=list(CASES), help="one of the cases alone")
    options = parser.parse_args()
    if options.only is not None:
        import torch

        vocabulary = json.loads(Path(options.student, "config.json").read_text())["vocab_size"]
        generator = torch.Generator().manual_seed(0)
        half = options.prompt // 2 if options.mixed else 0
        lengths = torch.linspace(options.prompt - half, options.prompt + half, options.requests).long()
        lengths = lengths[torch.randperm(options.requests, generator=generator)].tolist()
        prompts = [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in lengths]
        figures = CASES[options.only](options, prompts)
        figures["MiB at its peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print("FIGURES", json.dumps(figures))
        return
    fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    of_vllm = {
        "ENABLE_V1_MULTIPROCESSING": "0",
        "CPU_KVCACHE_SPACE": "4",
        "LOGGING_LEVEL": "ERROR",
        "ALLOW_LONG_MAX_MODEL_LEN": "1",
    }
    environment = os.environ | fixed | {f"VLLM_{name}": str(value) for name, value in of_vllm.items()}
    lengths = f"{'about ' if options.mixed else ''}{options.prompt} + {options.new}"
    print(f"{options.requests} requests of {lengths} tokens, {options.dtype}, one thread, {device_name('cpu')}")
    for name in CASES:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        line = next((line for line in completed.stdout.splitlines() if line.startswith("FIGURES ")), None)
        if line is None:
            sys.exit(completed.stderr[-2000:])
        figures = json.loads(line.removeprefix("FIGURES "))
        print(f"{name:32}", *(f"{value:14,.0f} {unit}" for unit, value in figures.items()), flush=True)


CASES: dict[str, Any] = {
    "student under vLLM": lambda options, prompts: measure_vllm(options.student, prompts, options),
    "teacher under vLLM": lambda options, prompts: measure_vllm(options.teacher, prompts, options),
    "student, generate, one batch": lambda options, prompts: measure_generate(
        options.student, prompts, options, rows=options.requests
    ),
    "student, generate, one by one": lambda options, prompts: measure_generate(options.student, prompts, options, rows=1),
    "teacher, generate, one batch": lambda options, prompts: measure_generate(
        options.teacher, prompts, options, rows=options.requests
    ),
    "teacher, generate, one by one": lambda options, prompts: measure_generate(options.teacher, prompts, options, rows=1),
}

if __name__ == "__main__":
    main()
