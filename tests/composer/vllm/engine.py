"""A small engine in place of vLLM: requests arrive late, chunks have any length, and pages are reused."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from blocks.flow import Tokens
from composer.model.attention import ComposedAttention
from composer.model.head import Anatomy
from composer.model.modeling import ComposedForCausalLM
from composer.vllm.heads import CurrentStep, serve_heads, slots_of
from composer.vllm.pages import Pages, layout
from composer.vllm.step import EngineStep

GARBAGE = 77
"""What a fresh page holds, byte by byte."""


class SmallEngine:
    """An engine that serves a model and replaces its heads. pages: the largest number of requests at a time."""

    def __init__(self, model: ComposedForCausalLM, longest: int, pages: int) -> None:
        self.model, self.current = model, CurrentStep()
        self.rows: list[int] = []
        self.layers = serve_heads(model, self._softmax, self.current)
        for layer in self.layers:
            fields, size = layout(slots_of(layer.heads), torch.float32, longest)
            layer.pages = Pages(fields, torch.full((pages, size), GARBAGE, dtype=torch.int8)) if fields else None

    def _softmax(self, attention: ComposedAttention, group: str, head: Anatomy) -> CachedSoftmax:
        return CachedSoftmax(self, head, attention.facts.window, attention.facts.softcap)

    def step(self, chunks: dict[int, Tensor], seen: dict[int, int], page: dict[int, int]) -> dict[int, Tensor]:
        """Return the last hidden states of each request's tokens. chunks: the tokens of each. seen: the number of earlier
        tokens.
        """
        self.rows = list(chunks)
        starts = [0]
        for row in self.rows:
            starts.append(starts[-1] + len(chunks[row]))
        position = torch.cat([seen[row] + torch.arange(len(chunks[row])) for row in self.rows])
        pages = torch.tensor([page[row] for row in self.rows])
        names = {layer.name: pages for layer in self.layers if layer.pages is not None}
        self.current.step = EngineStep(position, tuple(starts), tuple(seen[row] for row in self.rows), names)
        ids = torch.cat(list(chunks.values()))[None]
        hidden = self.model.base.run(
            Tokens(position[None]), position_ids=position[None], cache=None, input_ids=ids, inputs_embeds=None
        ).last_hidden_state
        lengths = [len(chunk) for chunk in chunks.values()]
        return dict(zip(self.rows, self.model.logits_of(hidden)[0].split(lengths), strict=True))


class CachedSoftmax:
    """Softmax attention with a cache for each request, as in an engine."""

    def __init__(self, engine: SmallEngine, head: Anatomy, window: int | None, softcap: float | None) -> None:
        self.engine, self.shape, self.window, self.softcap = engine, head.shape, window, softcap
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        step, answers = self.engine.current.step, []
        assert step is not None
        for number, row in enumerate(self.engine.rows):
            own = slice(step.starts[number], step.starts[number + 1])
            size = self.shape.head_dim
            q, k, v = (states[own].unflatten(1, (-1, size)) for states in (query, key, value))
            if step.seen[number]:
                k, v = (torch.cat(both) for both in zip(self.kept[row], (k, v), strict=True))
            self.kept[row] = k, v
            group = self.shape.heads // self.shape.key_heads
            logits = torch.einsum("thd,shd->hts", q, k.repeat_interleave(group, 1)) / math.sqrt(size)
            if self.softcap is not None:
                logits = self.softcap * (logits / self.softcap).tanh()
            place = torch.arange(len(k))
            distance = place[len(k) - len(q) :, None] - place
            hidden = distance < 0 if self.window is None else (distance < 0) | (distance >= self.window)
            weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
            answers.append(torch.einsum("hts,shd->thd", weights, v.repeat_interleave(group, 1)).flatten(1))
        return torch.cat(answers)


@torch.no_grad()
def serve(model: ComposedForCausalLM, texts: list[Tensor], *, pages: int = 3, seed: int = 0) -> list[Tensor]:
    """Return the logits of all texts, read in random chunks, a few requests at a time."""
    engine, chance = SmallEngine(model, max(len(text) for text in texts), pages), random.Random(seed)
    waiting, running, free = list(range(len(texts))), {}, list(range(pages))
    seen = dict.fromkeys(waiting, 0)
    logits: dict[int, list[Tensor]] = {row: [] for row in waiting}
    while waiting or running:
        while waiting and free and chance.random() < 0.7:
            running[waiting.pop(0)] = free.pop(0)
        if not running:
            continue
        some = [row for row in running if chance.random() < 0.8] or list(running)
        chance.shuffle(some)
        lengths = {row: min(len(texts[row]) - seen[row], chance.choice([1, 1, 2, 7, 16, 40])) for row in some}
        chunks = {row: texts[row][seen[row] : seen[row] + length] for row, length in lengths.items()}
        for row, answer in engine.step(chunks, seen, running).items():
            logits[row].append(answer)
            seen[row] += len(answer)
            if seen[row] == len(texts[row]):
                free.append(running.pop(row))
    return [torch.cat(logits[row]) for row in range(len(texts))]
