"""What a teacher's heads attend to, on a few rows of text, for parts that start from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from blocks.legend import Bool, Float, Tensor, torch

STEPS = 20
"""Of L-BFGS on what is cached: more of them fit these rows better, and others worse."""
FAINT = 1e-6
"""What every pair that is held weighs beside the teacher's weight, so that a head without any has an age, too."""
NEAREST = 0.25
"""Tokens: no head's mean distance is taken to be shorter."""

WIDEST = 16.0
"""The largest shift of a logit."""
HALVINGS = 40
"""Of the interval that a shift is looked for in."""


@dataclass(frozen=True, kw_only=True)
class Attended:
    """One memory's part of what a teacher attends to, at Q tokens of each row.

    held: which pairs the memory holds. weights: the teacher's of them, 0 elsewhere; outside: its weight on all others. age: tokens
    since a pair came into the memory. share: of the memory in its own head's answer, as it stands. balanced: the head learns a
    weight between this memory and others, by which any share comes about; None: their masses share no denominator, so shares do
    not depend on what a map makes of keys. query, key: as the memory's feature map is given them; decay: how much the memory
    forgets a token, a natural logarithm; None where it has no map, or is yet to be asked.
    """

    held: Bool[Tensor, "B Q H T"]
    weights: Float[Tensor, "B Q H T"]
    outside: Float[Tensor, "B Q H"]
    age: Float[Tensor, "B Q H T"]
    share: Float[Tensor, "B Q H"]
    balanced: bool | None = None
    query: Float[Tensor, "B Q H D"] | None = None
    key: Float[Tensor, "B T M D"] | None = None
    decay: Float[Tensor, " H"] | None = None

    def mean_age(self, heads: int) -> Float[Tensor, " n"]:
        """How long ago the pairs came in that so many groups of heads attend to, on average."""
        weighed = self.weights + FAINT * self.held
        mass, aged = weighed.sum((0, 1, 3)), (weighed * self.age).sum((0, 1, 3))
        mass, aged = mass.view(heads, -1).sum(1), aged.view(heads, -1).sum(1)
        return aged / mass.clamp(min=torch.finfo(mass.dtype).tiny)

    def rate(self, heads: int) -> Float[Tensor, " n"]:
        """-log α of so many groups of heads: weights in proportion to α^age have a mean age of about 1 / -log α, and half of them
        lie within log 2 times that, the half-life."""
        return 1.0 / self.mean_age(heads).clamp(min=NEAREST)

    def shift(self) -> Float[Tensor, " H"]:
        """What the logits of the memory's shares lack, so that their mean is the teacher's: Σ_t σ(logit_t + shift) = Σ_t wanted_t,
        over the tokens where there is a choice. 0 for heads without one."""
        wanted = self.weights.sum(-1)
        choice = (self.share > 0) & (self.share < 1) & (wanted + self.outside > 0)
        whole = (wanted + self.outside).masked_fill(~choice, 1.0)
        target = (wanted / whole).masked_fill(~choice, 0.0).sum((0, 1))
        own = torch.logit(self.share.masked_fill(~choice, 0.5).double())
        low, high = own.new_full(target.shape, -WIDEST), own.new_full(target.shape, WIDEST)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            less = (own + middle).sigmoid().masked_fill(~choice, 0.0).sum((0, 1)) < target
            low, high = torch.where(less, middle, low), torch.where(less, high, middle)
        return ((low + high) / 2).masked_fill(~choice.any(1).any(0), 0.0)


def divergence(attended: Attended, scores: Float[Tensor, "B Q H T"], rest: Float[Tensor, "B Q H"] | None) -> Tensor:
    """The cross-entropy of weights in proportion to exp(scores) with the teacher's, a mean over its weight: of what the memory
    holds alone, or, where ``rest`` is the logarithm of the mass of all else, with that as one more pair."""
    held, wanted = attended.held, attended.weights
    scores = scores.masked_fill(~held, -math.inf)
    if rest is not None:
        is_held = held.any(-1, keepdim=True)
        scores = torch.cat((scores, rest[..., None]), dim=-1)
        wanted = torch.cat((wanted, attended.outside[..., None]), dim=-1) * is_held
        held = torch.cat((held, is_held), dim=-1)
    any_held = held.any(-1, keepdim=True)
    shares = scores.masked_fill(~any_held, 0.0).log_softmax(-1).masked_fill(~held, 0.0)
    return -(wanted * shares).sum() / wanted.sum().clamp(min=torch.finfo(wanted.dtype).tiny)


def fitted(start: dict[str, Tensor], loss: Callable[[dict[str, Tensor]], Tensor]) -> dict[str, Tensor]:
    """The parameters after a few steps of L-BFGS from their start: no step makes the loss larger, and none is random."""
    free = {name: parameter.detach().clone().requires_grad_() for name, parameter in start.items()}
    optimiser = torch.optim.LBFGS(list(free.values()), max_iter=STEPS, max_eval=2 * STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        current_loss = loss(free)
        current_loss.backward()
        return current_loss

    with torch.enable_grad():
        optimiser.step(closure)
    return {name: parameter.detach() for name, parameter in free.items()}
