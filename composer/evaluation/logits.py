"""A model in two: up to the states that its logits are made of, and from there on, by its own class in both.

The logits of a whole text are large, so whoever scores them takes some at a time. What a family does to them (scaling, soft caps,
biases, prediction heads) stays its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from composer.errors import EvaluationError


def before_logits(model: Any, ids: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The states that logits are made of, ``B T C``, and what makes logits of some of them, ``b t C`` to ``b t V``.

    Only the logits of each row's first token are computed on the way. Raises EvaluationError where the states are not to be found.
    """
    outputs: list[Any] = []
    given: list[Tensor] = []

    def first(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        given.append(arguments[0])
        return arguments[0][:, :1], *arguments[1:]

    base, head = model.base_model, model.get_output_embeddings()
    with base.register_forward_hook(lambda *called: outputs.append(called[-1])), head.register_forward_pre_hook(first):
        model(input_ids=ids, use_cache=False)
    if len(outputs) == 1 and hasattr(outputs[0], "last_hidden_state"):
        return outputs[0].last_hidden_state, partial(_behind_base, model, type(outputs[0]))
    if len(given) == 1:
        return given[0], partial(_behind_one_token, model)
    raise EvaluationError(
        f"{type(model).__name__} computes its logits in a way of its own: tasks that are scored by tokens or by loss "
        "cannot be asked of it."
    )


class Outputs(nn.Module):
    """Stands where a language model has its base, and gives outputs that are there already. All else of it is the base's."""

    def __init__(self, base: nn.Module, outputs: Any) -> None:
        super().__init__()
        vars(self)["base"] = base  # and not as a module of its own
        self.outputs = outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["base"], name)

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.outputs


def _behind_base(model: Any, kind: type[Any], states: Tensor) -> Tensor:
    """The logits of a model that calls its base, which gave these states."""
    name, base = model.base_model_prefix, model.base_model
    setattr(model, name, Outputs(base, kind(last_hidden_state=states)))
    try:
        return model(input_ids=torch.zeros(states.shape[:2], dtype=torch.long, device=model.device), use_cache=False).logits
    finally:
        setattr(model, name, base)


def _behind_one_token(model: Any, states: Tensor) -> Tensor:
    """The logits of any other model: its output embeddings take these states in place of those of a call with one token."""
    with model.get_output_embeddings().register_forward_pre_hook(lambda _, arguments: (states, *arguments[1:])):
        return model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=False).logits
