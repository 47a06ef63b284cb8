"""How fresh parameters start. Each function fills its tensor in place from a generator and knows nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from blocks.legend import Tensor, torch

SMALLEST = 1e-6
"""The smallest number whose logarithm an entry is."""
Fill = Callable[["Tensor", "torch.Generator | None"], object]


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
    # A drawn 0 would have no logarithm.
    tensor.copy_(drawn.clamp_(min=SMALLEST).log())


def _softplus_log_uniform(tensor: Tensor, generator: torch.Generator | None, *, low: float, high: float) -> None:
    drawn = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    drawn = drawn.uniform_(math.log(low), math.log(high), generator=generator).exp()
    # softplus⁻¹(y) = log(eʸ - 1)
    tensor.copy_(drawn + torch.log(-torch.expm1(-drawn)))


def constant(value: float) -> Fill:
    """Every entry is ``value``."""
    return partial(_constant, value=value)


def normal(fan_in: int) -> Fill:
    """Normal with standard deviation ``fan_in ** -0.5``: a unit input gives a unit output."""
    return partial(_normal, deviation=fan_in**-0.5)


def sigmoid_power(low: float, high: float, power: float) -> Fill:
    """σ(entry) ** ``power`` is uniform between ``low`` and ``high``, 0 < low < high < 1."""
    return partial(_sigmoid_power, low=low, high=high, power=power)


def logarithm_of_uniform(low: float, high: float) -> Fill:
    """exp(entry) is uniform between ``low`` and ``high``, 0 ≤ low ≤ high, and at least ``SMALLEST``."""
    return partial(_log_uniform, low=low, high=high)


def softplus_log_uniform(low: float, high: float) -> Fill:
    """log softplus(entry) is uniform between those of ``low`` and ``high``, 0 < low < high."""
    return partial(_softplus_log_uniform, low=low, high=high)


identity: Fill = _identity
"""The last two dimensions are an identity matrix, cut or padded with zeros."""

current_token: Fill = _current_token
"""The last tap is 1, the others 0: the convolution starts as the identity."""
