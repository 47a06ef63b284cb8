"""Initial values of fresh parameters. Each function returns a function that fills a tensor in place from a generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from blocks.legend import Tensor, torch

SMALLEST = 1e-6
"""The smallest number whose logarithm a parameter starts with."""


@dataclass(frozen=True)
class Fill:
    """Fills a tensor in place, as ``run`` does from a generator. description: with what, in words."""

    description: str
    run: Callable[[Tensor, torch.Generator | None], object]

    def __call__(self, tensor: Tensor, generator: torch.Generator | None = None) -> None:
        """Fill the tensor."""
        self.run(tensor, generator)


def _constant(tensor: Tensor, _generator: torch.Generator | None, *, value: float) -> None:
    tensor.fill_(value)


def _normal(tensor: Tensor, generator: torch.Generator | None, *, deviation: float) -> None:
    tensor.normal_(0.0, deviation, generator=generator)


def _identity(tensor: Tensor, _generator: torch.Generator | None) -> None:
    tensor.copy_(torch.eye(*tensor.shape[-2:], dtype=tensor.dtype, device=tensor.device).expand_as(tensor))


def _current_token(tensor: Tensor, _generator: torch.Generator | None) -> None:
    tensor.zero_()
    tensor[..., -1] = 1.0


def _sigmoid_power(tensor: Tensor, generator: torch.Generator | None, *, low: float, high: float, power: float) -> None:
    # Not in the tensor's own dtype: bfloat16 has no number between 0.9961 and 1.
    drawn = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device).uniform_(low, high, generator=generator)
    tensor.copy_(-torch.expm1(-drawn.log() / power).log())


def _log_uniform(tensor: Tensor, generator: torch.Generator | None, *, low: float, high: float) -> None:
    drawn = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device).uniform_(low, high, generator=generator)
    # the logarithm of 0 would be -inf
    tensor.copy_(drawn.clamp_(min=SMALLEST).log())


def _softplus_log_uniform(tensor: Tensor, generator: torch.Generator | None, *, low: float, high: float) -> None:
    drawn = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    drawn = drawn.uniform_(math.log(low), math.log(high), generator=generator).exp()
    # softplus⁻¹(y) = log(eʸ - 1)
    tensor.copy_(drawn + torch.log(-torch.expm1(-drawn)))


def constant(value: float) -> Fill:
    """Return a function that sets every entry to ``value``."""
    return Fill(f"{value:.3g}", partial(_constant, value=value))


def normal(deviation: float) -> Fill:
    """Return a function that draws normal numbers with this standard deviation."""
    return Fill(f"normal, deviation {deviation:.2g}", partial(_normal, deviation=deviation))


def fan_in(inputs: int) -> Fill:
    """Return a function that draws normal numbers with standard deviation ``inputs ** -0.5``. Inputs of variance 1 then lead to
    outputs of variance 1."""
    return normal(inputs**-0.5)


def sigmoid_power(low: float, high: float, power: float) -> Fill:
    """Return a function that makes σ(entry) ** ``power`` uniform between ``low`` and ``high``, 0 < low < high < 1."""
    description = f"sigmoid(x)**{power:g} uniform, {low:g} to {high:g}"
    return Fill(description, partial(_sigmoid_power, low=low, high=high, power=power))


def logarithm_of_uniform(low: float, high: float) -> Fill:
    """Return a function that makes exp(entry) uniform between ``low`` and ``high``, 0 ≤ low ≤ high, and at least
    ``SMALLEST``."""
    return Fill(f"exp(x) uniform, {low:g} to {high:g}", partial(_log_uniform, low=low, high=high))


def softplus_log_uniform(low: float, high: float) -> Fill:
    """Return a function that makes softplus(entry) log-uniform between ``low`` and ``high``, 0 < low < high."""
    return Fill(f"softplus(x) log-uniform, {low:g} to {high:g}", partial(_softplus_log_uniform, low=low, high=high))


identity = Fill("identity matrices", _identity)
"""Fill the last two dimensions with an identity matrix, cut or padded with zeros."""

current_token = Fill("1 at the last tap, else 0", _current_token)
"""Set the last tap to 1 and the others to 0: the convolution starts as the identity."""
