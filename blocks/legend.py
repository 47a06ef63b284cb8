"""The letters, layouts and units that every block uses.

B  batch rows                      T  tokens of this call            S  pairs that a memory can see
H  query heads of the group        K  key/value heads of the group   N  state heads (K or H)
D  head dimension                  F  features of a map              V  value dimension
C  width of the hidden state       W  window size                    E  earlier entries and this call's

Layout is ``B T H D``. Vectors are rows: a pair adds kᵀ v to a state S, and a query reads q S. Query head ``h`` reads key head
``h // (H // K)``. A decay is a natural logarithm, at most 0. A mass is kept as its natural logarithm, ``lse``. States
accumulate in float32 (float64 where the inputs are float64); pairs keep the dtype of the model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor
else:

    class _Torch:
        """Import torch at its first use: a spec is read, checked and explained without it."""

        def __getattr__(self, name: str) -> Any:
            import torch

            attribute = getattr(torch, name)
            setattr(self, name, attribute)  # and is not looked for again
            return attribute

    torch = _Torch()
    # Shapes are checked only if jaxtyping is imported before the blocks, as the tests do. Otherwise annotations are only read.
    if "jaxtyping" in sys.modules:
        from jaxtyping import Bool, Float, Int, Shaped
        from torch import Tensor
    else:

        class Shaped:
            """Stands for jaxtyping's class of the same name, which takes a third of a second to import."""

            def __class_getitem__(cls, _: Any) -> Any:
                return Any

        Bool = Float = Int = Shaped
        Tensor = Any

__all__ = ["Bool", "Float", "Int", "Number", "Shape", "Shaped", "Tensor", "torch"]


@dataclass(frozen=True)
class Number:
    """A number that each pair carries beside its key and value: its name, and its number of heads.

    error: for a number that a window sums up while it holds the pair: the function of the exact weights and of the products of
    features that approximate them (both B H t e). None if the number is computed from the pair's token.
    """

    name: str
    heads: int
    error: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes around one part of one group of heads, known before anything is built.

    - hidden_size, heads, key_heads, head_dim: the letters C, H, K and D.
    - features, state_heads: F and N, set for parts that use features.
    """

    hidden_size: int
    heads: int
    key_heads: int
    head_dim: int
    value_dim: int = 0
    """The letter V: numbers of a value. 0 sets it to ``head_dim``."""
    features: int = 0
    state_heads: int = 0
    convolved_heads: int = 0
    """Heads of the convolved key that a pair carries beside the raw one; 0 where there is none."""
    arriving: int = 1
    """Number of pairs that the memory above evicts together."""
    numbers: tuple[Number, ...] = ()
    """Further numbers that the pairs of a memory carry."""
    exponential: bool = False
    """Features are stored as their logarithms."""
    even: bool = False
    """The largest feature of each query and key is at least 1/F, as for features that sum to 1."""
    signed: bool = False
    """Features can be negative."""
    both_ways: bool = False
    """Attention is bidirectional. A call has whole documents, and memories have no state between calls."""
    window: int | None = None
    """Number of tokens that a query of the model's own attention sees, itself included; None: all."""
    softcap: float | None = None
    """The c of the model's logits c·tanh(logit / c); None if it has none."""
    sinks: bool = False
    """Whether the model has attention sinks."""

    def __post_init__(self) -> None:
        if not self.value_dim:
            object.__setattr__(self, "value_dim", self.head_dim)
