"""Table 3: whole models of Llama-3.2-1B's shapes, a teacher with SDPA and students of it, in prefill and decode.

Random weights, made on their device, which the students share. A step of decode is replayed as a CUDA graph where the model can be
recorded. The teacher's step is recorded with a cache of one length, whose last pair it writes over: transformers' own cache grows.
A student's cache far into a text is that after the last tokens before the position; memories that grow are filled up with copies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer

import composer
from benchmarks.gpu_rows import Bench, Row, Run, attempt
from composer.benching.memory import gauge_allocations
from composer.benching.trial import RECORDED, cache_bytes, run_unmeasured
from composer.model.cache import CACHE, SEEN, ComposedCache
from composer.model.cuda_graph import capture, may_record
from composer.model.head import Head, anatomy

TEACHER = "teacher"
STUDENTS = ("softmax", "lolcats", "lawcat", "lola", "gated-deltanet", "kda-hybrid", "gdn-hybrid")
BEFORE = 256
"""Tokens that a student reads before a position, so that its windows and caches are full."""
PREFILL, DECODE, BATCHES = (8192, 2048, 32_768), (8192, 32_768, 512, 131_072), (1, 16)


def list_rows(bench: Bench) -> dict[str, Callable[[], Row]]:
    """Return the measurements by the names of their rows, the most important first."""
    models = Models(bench)
    prefill, decode, batches = ((24,), (BEFORE + 8,), (1,)) if bench.tiny else (PREFILL, DECODE, BATCHES)
    workloads = [("prefill", prefill[0], 1), *(("decode", decode[0], batch) for batch in batches)]
    workloads += [("prefill", tokens, 1) for tokens in prefill[1:]]
    workloads += [("decode", tokens, batch) for tokens in decode[1:] for batch in batches]
    return {
        f"{model} {kind} {tokens} batch {batch}": partial(models.measure, model, kind, tokens, batch)
        for kind, tokens, batch in workloads
        for model in (TEACHER, *STUDENTS)
    }


def build_config(layers: int, *, tiny: bool = False) -> LlamaConfig:
    """Return the config of Llama-3.2-1B, or of a tiny Llama."""
    rope = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192}
    sizes = (64, 128, 4, 2, 16, 256) if tiny else (2048, 8192, 32, 8, 64, 128_256)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    settings: dict[str, Any] = dict(zip(names, sizes, strict=True))
    settings |= {"num_hidden_layers": layers, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_parameters": rope}
    return LlamaConfig(**settings | {"max_position_embeddings": 131_072, "attn_implementation": "sdpa"})


def build_teacher(bench: Bench, dtype: torch.dtype, few: int = 4) -> LlamaForCausalLM:
    """Return a Llama with random weights, in a dry run and for compilation with few layers. Every fourth layer of a hybrid has the
    source's attention.
    """
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(bench.device):
            return LlamaForCausalLM(build_config(few if bench.tiny or bench.warm else 16, tiny=bench.tiny)).eval()
    finally:
        torch.set_default_dtype(before)


class FixedLayer(DynamicLayer):
    """Keys and values of a fixed number of tokens. An update writes over the last pair, so a step can be recorded and repeated."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True
        self.dtype, self.device = keys.dtype, keys.device

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys[:, :, -1:].copy_(key_states)
        self.values[:, :, -1:].copy_(value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[2] - 1


class Models:
    """The models, each of which is built when it is first measured."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._built: dict[str, Any] = {}

    def load(self, name: str) -> Any:
        """Return a model by its name."""
        if TEACHER not in self._built:
            self._built[TEACHER] = build_teacher(self.bench, self.bench.dtype)
        if name not in self._built:
            self._built[name] = composer.build(name, self._built[TEACHER], share=True)
        return self._built[name]

    @torch.no_grad()
    def measure(self, name: str, kind: str, tokens: int, batch: int) -> Row:
        """Time a model on one workload. Its peak memory is measured in the first run."""
        if self.bench.warm:
            tokens = min(tokens, 4096)
        model, row = self.load(name), {"model": name, "kind": kind, "tokens": tokens, "batch": batch}
        if kind == "prefill":
            ids, cache = self.draw_ids(model, batch, tokens), None
            run: Run = partial(model, ids, use_cache=True, logits_to_keep=1)
        else:
            cache = self.fill_cache(model, tokens, batch)
            run = partial(model, self.draw_ids(model, batch, 1), **{CACHE: cache}, use_cache=True, logits_to_keep=1)
        held = cache_bytes(cache)
        answer, peak = (run_unmeasured if self.bench.tiny else gauge_allocations(self.bench.device))(run, held)
        row |= {"peak_bytes": peak, "state_bytes": held or cache_bytes(answer[CACHE])}
        row["finite"] = bool(torch.isfinite(answer.logits).all())
        del answer
        if cache is not None:
            run, row["replayed"] = self.record(model, cache, run)
        return row | self.bench.time_in_turn({"seconds": run}, wall=True)

    def draw_ids(self, model: Any, batch: int, length: int) -> Tensor:
        """Draw random tokens ``B T``."""
        generator = torch.Generator(self.bench.device).manual_seed(length)
        return torch.randint(model.config.vocab_size, (batch, length), generator=generator, device=self.bench.device)

    def fill_cache(self, model: Any, position: int, batch: int) -> Any:
        """Return a cache of the size that it has after ``position`` tokens of each row."""
        if isinstance(model, LlamaForCausalLM):
            config: Any = model.config
            cache: Any = DynamicCache()
            shape = batch, config.num_key_value_heads, position + 1, config.head_dim
            options: dict[str, Any] = {"device": self.bench.device, "dtype": model.dtype}
            pairs = [[torch.randn(shape, **options) for _ in range(2)] for _ in range(config.num_hidden_layers)]
            cache.layers = [FixedLayer(*pair) for pair in pairs]
            return cache
        cache = model(self.draw_ids(model, batch, 1), use_cache=True, logits_to_keep=1)[CACHE]
        assert isinstance(cache, ComposedCache)
        # The next BEFORE tokens end at ``position``.
        cache.state(0).tensors[SEEN] = torch.full((batch,), position - BEFORE, device=self.bench.device)
        for layer in range(len(cache.layers)):
            cache.state(layer).columns = position - BEFORE
        ids = self.draw_ids(model, batch, BEFORE)
        cache = model(ids, **{CACHE: cache}, use_cache=True, logits_to_keep=1)[CACHE]
        growing = {name.rpartition(".")[2] for name in list_growing(model)}
        for layer in range(len(cache.layers)):
            tensors = cache.state(layer).tensors
            for name, tensor in tensors.items():
                if tensor.dim() > 1 and tensor.shape[1] == BEFORE + 1 and name.rpartition(".")[2] in growing:
                    tensors[name] = _grow(tensor, position)
        return cache

    def record(self, model: Any, cache: Any, run: Run) -> tuple[Run, bool]:
        """Return the step, and whether it is replayed as a CUDA graph."""
        if isinstance(model, LlamaForCausalLM):
            if self.bench.tiny:
                return run, False
            run()
            replay, failure = attempt(lambda: capture(lambda: run().logits))  # pyright: ignore[reportAttributeAccessIssue]
            return (run, False) if failure else (replay, True)
        if not may_record(model):
            return run, False
        recorder = model.recording(cache)
        for _ in range(RECORDED):
            run()
        return run, recorder.replays


def list_growing(model: Any) -> set[str]:
    """Return the names of the tensors of a model's states that have an entry for each token."""
    heads = [anatomy(module) for module in model.modules() if isinstance(module, Head)]
    return {name for head in heads for name, slot in head.graph.slots.items() if slot.grows}


def _grow(tensor: Tensor, entries: int) -> Tensor:
    """Return a tensor with so many entries: copies of its own, or counted positions."""
    if tensor.dtype == torch.int64:
        return torch.arange(entries, device=tensor.device).expand(tensor.shape[0], -1).contiguous()
    return tensor.repeat_interleave(-(-entries // tensor.shape[1]), dim=1)[:, :entries].contiguous()
