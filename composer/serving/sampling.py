"""Choose the next token of a text from the model's logits, as OpenAI's fields describe it.

A text's tokens depend on its own logits and its own random numbers alone, whatever else is in the batch.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from composer.serving.requests import TextRequest

LEAST_TEMPERATURE = 1e-5
"""Below it, the most likely token is chosen."""
LEAST_LOGPROB = -9999.0
"""In place of minus infinity, which JSON does not have."""


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of a chosen token, and of the likeliest ones, before temperature and penalties."""

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]


@dataclass
class TokenDrawer:
    """Draws the tokens of one text. prompt: its tokens before. number: of this text among those of the request."""

    request: TextRequest
    prompt: Sequence[int]
    number: int
    written: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        seed = self.request.seed
        self.random = random.Random() if seed is None else random.Random(f"{seed} {self.number}")
        self.repeated: Tensor | None = None
        """V: the tokens of the prompt and the text, which ``repetition_penalty`` makes less likely."""

    def draw(self, logits: Tensor) -> int:
        """Return the next token. logits: V, float32, on the CPU."""
        logits, temperature = self._penalise(logits), self.request.temperature
        token = int(logits.argmax()) if temperature < LEAST_TEMPERATURE else self._sample(logits / temperature)
        self.written[token] += 1
        if self.repeated is not None:
            self.repeated[token] = True
        return token

    def _penalise(self, logits: Tensor) -> Tensor:
        request = self.request
        if request.repetition_penalty != 1:
            if self.repeated is None:
                self.repeated = torch.zeros(len(logits), dtype=torch.bool)
                self.repeated[torch.tensor([*self.prompt, *self.written])] = True
            penalty = request.repetition_penalty
            logits = torch.where(self.repeated, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        if self.written and (request.presence_penalty or request.frequency_penalty):
            counts = torch.tensor(list(self.written.values()), dtype=logits.dtype)
            penalties = request.presence_penalty + request.frequency_penalty * counts
            logits = logits.index_add(0, torch.tensor(list(self.written)), -penalties)
        if request.logit_bias:
            biases = torch.tensor(list(request.logit_bias.values()), dtype=logits.dtype)
            logits = logits.index_add(0, torch.tensor(list(request.logit_bias)), biases)
        return logits

    def _sample(self, logits: Tensor) -> int:
        """Invert the distribution function at one random number, so that rounding errors of a batch hardly ever matter."""
        request = self.request
        if 0 < request.top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(request.top_k).values[-1], -torch.inf)
        probabilities = logits.double().softmax(0)
        if request.min_p > 0:
            probabilities[probabilities < request.min_p * probabilities.max()] = 0
        if request.top_p < 1:
            ordered, order = probabilities.sort(descending=True)
            before = ordered.cumsum(0) - ordered
            unlikely = before >= request.top_p * ordered.sum()
            unlikely[0] = False
            probabilities[order[unlikely]] = 0
        sums = probabilities.cumsum(0)
        token = int(torch.searchsorted(sums, self.random.random() * sums[-1], right=True))
        return token if token < len(sums) else int(probabilities.argmax())  # rounded up to the sum, or logits of NaN


def logprobs_of(logits: Tensor, token: int, count: int) -> TokenLogprobs:
    """Return the log-probability of a token, and the ``count`` largest ones."""
    every = logits.log_softmax(0)
    values, tokens = every.topk(min(count, len(every)))
    likeliest = tuple(zip(tokens.tolist(), map(_finite, values.tolist()), strict=True))
    return TokenLogprobs(token, _finite(float(every[token])), likeliest)


def _finite(logprob: float) -> float:
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB  # also for NaN
