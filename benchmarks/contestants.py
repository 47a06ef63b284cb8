"""Random models at the sizes of published ones, made on their device, and the runs that are timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import composer
from composer.benching.trial import RECORDED
from composer.model.cache import SEEN, ComposedCache
from composer.model.cuda_graph import may_record

TEACHER = "teacher"
STUDENTS = ("lolcats", "lawcat", "lola", "gated-delta")
BEFORE = 512
"""Tokens that a student reads before a position, so that its windows and caches are full."""


class Size(NamedTuple):
    """The settings in which the Llamas differ. factor: of Llama 3's rotary embedding."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool
    factor: float

    def build_config(self) -> LlamaConfig:
        rope = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": self.factor, "low_freq_factor": 1.0}
        rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        settings: dict[str, Any] = {name: value for name, value in self._asdict().items() if name != "factor"}
        settings |= {"rope_parameters": rope, "max_position_embeddings": 131_072, "attn_implementation": "sdpa"}
        return LlamaConfig(**settings)


SIZES = {
    "llama-3.2-1b": Size(2048, 8192, 16, 32, 8, 64, 128_256, True, 32.0),
    "llama-3.1-8b": Size(4096, 14_336, 32, 32, 8, 128, 128_256, False, 8.0),
    "tiny": Size(64, 128, 2, 4, 2, 16, 256, True, 32.0),
}


class Contestant:
    """A model, and its runs. growth: the seconds of a prompt are expected to grow with this power of its length."""

    def __init__(self, name: str, model: Any, growth: float = 1.0) -> None:
        self.name, self.model, self.growth = name, model, growth

    def prefill(self, ids: Tensor) -> Any:
        """Run one pass over ``B T`` with an empty cache, with the logits of the last token."""
        return self.model(ids, use_cache=True, logits_to_keep=1)

    def train(self, ids: Tensor) -> None:
        """Compute the next-token loss on ``B T`` and the gradients of all weights, and delete the gradients."""
        try:
            self.model(ids, labels=ids, use_cache=False).loss.backward()
        finally:
            self.model.zero_grad(set_to_none=True)

    def fill_cache(self, position: int, batch: int) -> Any:
        """Return a cache of the size that it has after ``position`` tokens of each row."""
        cache = self.model(self.draw_ids(batch, 1), use_cache=True, logits_to_keep=1).past_key_values
        assert isinstance(cache, ComposedCache)
        # The next BEFORE tokens end at ``position``.
        cache.state(0).tensors[SEEN] = torch.full((batch,), position - BEFORE, device=self._device)
        for layer in range(len(cache.layers)):
            cache.state(layer).columns = position - BEFORE
        return self.model(self.draw_ids(batch, BEFORE), past_key_values=cache, use_cache=True, logits_to_keep=1).past_key_values

    def build_step(self, cache: Any, batch: int) -> Callable[[], Any]:
        """Return a function that adds a token to each row of the cache, and returns the outputs."""
        ids = self.draw_ids(batch, 1)
        return lambda: self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def record(self, cache: Any, run: Callable[[], Any]) -> bool:
        """Record the step on this cache in a CUDA graph. Return whether later runs replay it."""
        if not may_record(self.model):
            return False
        recorder = self.model.recording(cache)
        for _ in range(RECORDED):
            run()
        return recorder.replays

    @property
    def _device(self) -> torch.device:
        return self.model.device

    def draw_ids(self, batch: int, length: int) -> Tensor:
        """Draw random tokens ``B T``."""
        generator = torch.Generator(self._device).manual_seed(length)
        return torch.randint(self.model.config.vocab_size, (batch, length), generator=generator, device=self._device)


class Teacher(Contestant):
    """A model of transformers with SDPA. Its cache of keys and values is filled with random numbers."""

    def record(self, cache: Any, run: Callable[[], Any]) -> bool:
        """Return False: transformers cannot record a step with a growing cache."""
        return False

    def fill_cache(self, position: int, batch: int) -> Any:
        config, cache = self.model.config, DynamicCache()
        shape = batch, config.num_key_value_heads, position, config.head_dim
        for layer in range(config.num_hidden_layers):
            keys, values = (torch.randn(shape, device=self._device, dtype=self.model.dtype) for _ in range(2))
            cache.update(keys, values, layer)
        return cache


def make(size: Size, device: str, dtype: torch.dtype, backend: str = "auto", seed: int = 0) -> list[Contestant]:
    """Build the teacher and its students, which share its weights."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            source = LlamaForCausalLM(size.build_config()).eval()
    finally:
        torch.set_default_dtype(before)
    students = [Contestant(spec, composer.build(spec, source, share=True, backend=backend)) for spec in STUDENTS]
    return [Teacher(TEACHER, source, growth=2.0), *students]
