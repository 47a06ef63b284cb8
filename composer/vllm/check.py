"""Whether vLLM writes what ``generate`` writes: several texts at once, in chunks, some of them late, against one by one."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from composer.errors import ComposerError
from composer.vllm import FORMAT, problem_of_vllm
from composer.vllm.folder import check_servable, configuration_of_folder, load_for_serving
from composer.weights.verify import Check

LENGTHS = (1, 2, 3, 5, 17, 31, 63, 64, 65, 100, 127, 128, 129, 150, 180, 200)
"""Tokens of the texts. The last two are sent while the others are being written."""
LATE, LATE_AT = 2, 10
NEW_TOKENS = 64
CHUNK = 48
"""Tokens of a step at most, so that longer texts are read in chunks beside others that are being written."""
TOLERANCE = 1e-4
"""The largest difference of natural log-probabilities in float32. Where the best two tokens are as close, either may be written."""


@dataclass(frozen=True)
class Written:
    """What was written after a text: its tokens, the log-probability of each, and by how much each was ahead of the next best."""

    tokens: list[int]
    logprobs: list[float]
    margins: list[float]


def check_served(folder: Path, texts: Sequence[list[int]] = (), **options: Any) -> tuple[Check, ...]:
    """Serve the model by vLLM in this process, in float32, and compare greedy text and log-probabilities with ``generate``.

    texts: tokens to begin with; none: random ones of ``LENGTHS``. options: further arguments of vLLM's engine.

    Raises ComposerError if vLLM is not installed or does not fit, and ValueError for a model that it cannot serve.
    """
    if problem := problem_of_vllm():
        raise ComposerError(problem)
    check_servable(configuration_of_folder(folder))
    model = load_for_serving(folder, torch.float32)
    drawn = torch.randint(0, model.config.vocab_size, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    texts = texts or [text.tolist() for text in drawn.split(LENGTHS)]
    wanted = [write_greedily(model, text) for text in texts]
    del model
    return tuple(compare_written(texts, wanted, list(serve_texts(folder, texts, **options))))


def serve_texts(folder: Path, texts: Sequence[list[int]], **options: Any) -> Iterator[Written]:
    """What vLLM writes after these texts. options: further arguments of its engine."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"  # longer texts than the source was trained on are as informative here
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams  # pyright: ignore
    from vllm.distributed import cleanup_dist_env_and_memory  # pyright: ignore

    arguments = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": max(map(len, texts)) + NEW_TOKENS,
        "max_num_seqs": len(texts),
        "max_num_batched_tokens": CHUNK,
        "enable_prefix_caching": False,
        "config_format": FORMAT,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
    }
    served_model: Any = LLM(str(folder), **(arguments | options))
    engine: Any = served_model.llm_engine
    try:
        greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=2, detokenize=False)
        outputs: dict[int, Any] = {}
        waiting, step = list(range(len(texts))), 0
        while waiting or engine.has_unfinished_requests():
            while waiting and (waiting[0] < len(texts) - LATE or step >= LATE_AT):
                number = waiting.pop(0)
                engine.add_request(str(number), {"prompt_token_ids": texts[number]}, greedy)
            for request in engine.step():
                if request.finished:
                    outputs[int(request.request_id.partition("-")[0])] = request.outputs[0]
            step += 1
    finally:
        del served_model, engine
        gc.collect()
        cleanup_dist_env_and_memory()
    for number in range(len(texts)):
        tokens, likely = list(outputs[number].token_ids), outputs[number].logprobs
        logprobs = [logprobs_at[token].logprob for logprobs_at, token in zip(likely, tokens, strict=True)]
        yield Written(tokens, logprobs, [])


@torch.no_grad()
def write_greedily(model: Any, text: list[int]) -> Written:
    """Return what ``generate`` writes after a text."""
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    more = {"output_logits": True, "return_dict_in_generate": True}
    ids = torch.tensor([text])
    generated: Any = model.generate(ids, attention_mask=torch.ones_like(ids), **options, **more)  # else tokens 0 would be padding
    tokens = generated.sequences[0, len(text) :].tolist()
    likely = torch.cat(generated.logits).float().log_softmax(-1)
    best = likely.topk(2).values
    return Written(tokens, likely[range(len(tokens)), tokens].tolist(), (best[:, 0] - best[:, 1]).tolist())


def compare_written(texts: Sequence[list[int]], wanted: Sequence[Written], by_vllm: Sequence[Written]) -> Iterator[Check]:
    """Yield the checks of texts and of probabilities, ``generate``'s against vLLM's."""
    other, largest = [], 0.0
    for text, ours, theirs in zip(texts, wanted, by_vllm, strict=True):
        pairs = zip(ours.tokens, theirs.tokens, strict=True)
        same = next((place for place, (token, another) in enumerate(pairs) if token != another), NEW_TOKENS)
        if same < NEW_TOKENS and ours.margins[same] > TOLERANCE:
            other.append(f"of {len(text)} tokens at new token {same}")
        differences = (
            abs(logprob - another) for logprob, another in zip(ours.logprobs[:same], theirs.logprobs[:same], strict=True)
        )
        largest = max(largest, *differences, 0.0)
    subject = f"{len(texts)} texts"
    detail = f"{NEW_TOKENS} tokens each" if not other else f"vLLM writes others after texts {', '.join(other[:3])}"
    yield Check(what="served text", subject=subject, outcome="failed" if other else "passed", detail=detail)
    detail = f"largest difference of log-probabilities {largest:.1e}"
    yield Check(what="served probabilities", subject=subject, outcome="passed" if largest <= TOLERANCE else "failed", detail=detail)
