"""What the tests check shapes with: jaxtyping's letters, read off the annotations of `blocks` at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

from beartype import beartype
from jaxtyping import AbstractArray

Function = TypeVar("Function", bound=Callable[..., Any])


def stated_shapes(function: Function) -> Function:
    """Check a function that states the shape of a tensor; pydantic sees to the others."""
    hints = function.__annotations__.values()
    return beartype(function) if any(_states_shape(hint) for hint in hints) else function


def _states_shape(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_states_shape(inner) for inner in get_args(hint))
