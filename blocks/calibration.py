"""Measurements of a teacher on a few rows of text, from which parts compute their first values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from blocks.legend import Bool, Float, Tensor, torch

STEPS = 20
"""Steps of L-BFGS on the measurements. More steps fit these rows better and other rows worse."""
FAINT = 1e-6
"""Weight that is added to every pair in a memory, so that the mean age of a head without attention there is defined."""
NEAREST = 0.25
"""The smallest mean distance of a head, in tokens."""

WIDEST = 16.0
"""The largest shift of a logit, up or down."""
HALVINGS = 40
"""Bisections of the interval in which a shift is searched."""


@dataclass(frozen=True, kw_only=True)
class Attended:
    """The attention of a teacher's heads to the pairs of one memory, at Q query tokens of each row.

    in_memory: which pairs the memory holds. weights: the teacher's attention weights on these pairs, 0 elsewhere. outside: its
    weight on all other pairs. age: tokens since a pair entered the memory. share: the memory's current share in the head's output.
    balanced: whether the head learns a weight between this memory and others, so that the memory can have any share; None if their
    masses have no common denominator, so that shares do not depend on the feature map. query, key: the inputs of the memory's
    feature map. decay: the natural logarithm of the memory's mean decay per token; both are None without a feature map, and before
    they are measured.
    """

    in_memory: Bool[Tensor, "B Q H T"]
    weights: Float[Tensor, "B Q H T"]
    outside: Float[Tensor, "B Q H"]
    age: Float[Tensor, "B Q H T"]
    share: Float[Tensor, "B Q H"]
    balanced: bool | None = None
    query: Float[Tensor, "B Q H D"] | None = None
    key: Float[Tensor, "B T M D"] | None = None
    decay: Float[Tensor, " H"] | None = None

    def mean_age(self, heads: int) -> Float[Tensor, " n"]:
        """Return the mean age of the pairs that each of ``heads`` groups of heads attends to, in tokens."""
        weighed = self.weights + FAINT * self.in_memory
        mass, aged = weighed.sum((0, 1, 3)), (weighed * self.age).sum((0, 1, 3))
        mass, aged = mass.view(heads, -1).sum(1), aged.view(heads, -1).sum(1)
        return aged / mass.clamp(min=torch.finfo(mass.dtype).tiny)

    def rate(self, heads: int) -> Float[Tensor, " n"]:
        """Return -log α for each of ``heads`` groups of heads. Weights in proportion to α^age have a mean age of about 1 / -log
        α, and a half-life of log 2 / -log α."""
        return 1.0 / self.mean_age(heads).clamp(min=NEAREST)

    def shift(self) -> Float[Tensor, " H"]:
        """Return the shift of each head's logits at which the memory has the teacher's mean share: Σ_t σ(logit_t + shift) = Σ_t
        wanted_t, over the tokens at which both the memory and other pairs have weight. It is 0 for heads without such tokens."""
        wanted = self.weights.sum(-1)
        choice = (self.share > 0) & (self.share < 1) & (wanted + self.outside > 0)
        total = (wanted + self.outside).masked_fill(~choice, 1.0)
        target = (wanted / total).masked_fill(~choice, 0.0).sum((0, 1))
        logits = torch.logit(self.share.masked_fill(~choice, 0.5).double())
        low, high = logits.new_full(target.shape, -WIDEST), logits.new_full(target.shape, WIDEST)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            less = (logits + middle).sigmoid().masked_fill(~choice, 0.0).sum((0, 1)) < target
            low, high = torch.where(less, middle, low), torch.where(less, high, middle)
        return ((low + high) / 2).masked_fill(~choice.any(1).any(0), 0.0)


@dataclass(frozen=True)
class States:
    """The queries and pairs of n tokens that enter a memory, not rotated. length: the tokens of a row."""

    query: Float[Tensor, "n H D"]
    key: Float[Tensor, "n K D"]
    value: Float[Tensor, "n K V"]
    length: int


@dataclass(frozen=True)
class OutputSizes:
    """Mean squares over tokens of each coordinate of a head's output. student: with its current parameters."""

    student: Float[Tensor, "H V"]
    teacher: Float[Tensor, "H V"]

    def factor(self, *, of_all_heads: bool = False) -> Float[Tensor, "H V"] | Float[Tensor, "1 V"]:
        """Return the factor at which each coordinate has the teacher's root mean square; 1 for coordinates that are always 0.
        of_all_heads: one factor for the same coordinate of all heads."""
        student, teacher = self.student, self.teacher
        if of_all_heads:
            student, teacher = student.mean(0, keepdim=True), teacher.mean(0, keepdim=True)
        return (teacher / student).sqrt().masked_fill((student == 0) | (teacher == 0), 1.0)

    @property
    def roots(self) -> tuple[float, float]:
        """Root mean squares over all heads and coordinates: the student's, and the teacher's."""
        return float(self.student.mean().sqrt()), float(self.teacher.mean().sqrt())


def divergence(attended: Attended, scores: Float[Tensor, "B Q H T"], outside_logit: Float[Tensor, "B Q H"] | None) -> Tensor:
    """Return the cross-entropy between the teacher's weights and weights in proportion to exp(scores), averaged by the
    teacher's weight. It is over the pairs in the memory. ``outside_logit`` is the logarithm of the mass of everything else,
    which counts as one more pair."""
    in_memory, wanted = attended.in_memory, attended.weights
    scores = scores.masked_fill(~in_memory, -math.inf)
    if outside_logit is not None:
        has_pairs = in_memory.any(-1, keepdim=True)
        scores = torch.cat((scores, outside_logit[..., None]), dim=-1)
        wanted = torch.cat((wanted, attended.outside[..., None]), dim=-1) * has_pairs
        in_memory = torch.cat((in_memory, has_pairs), dim=-1)
    has_weights = in_memory.any(-1, keepdim=True)
    shares = scores.masked_fill(~has_weights, 0.0).log_softmax(-1).masked_fill(~in_memory, 0.0)
    return -(wanted * shares).sum() / wanted.sum().clamp(min=torch.finfo(wanted.dtype).tiny)


def fit(start: dict[str, Tensor], loss: Callable[[dict[str, Tensor]], Tensor]) -> dict[str, Tensor]:
    """Return the parameters after a few steps of L-BFGS. A step never increases the loss, and nothing is random."""
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
