"""Griffin's real-gated linear recurrent unit: all the past of a document, in one number a channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from pydantic import PositiveInt

from blocks import initialise
from blocks.flow import Tokens
from blocks.legend import Float, Shape, Tensor, torch
from blocks.mixers.base import Mixer
from blocks.operation import Form, Slot, State
from blocks.part import Fresh, Parameters, Problem
from blocks.recurrences import elementwise
from blocks.tensors import accumulating, as_dtype

Recurrence = Callable[..., tuple["Tensor", "Tensor"]]
POWER = 8.0
"""c of eq. 3 and 4."""
SHORTEST, LONGEST = 0.9, 0.999
"""Between these a^c is at the start (section 2.4)."""


class RGLRU(Mixer):
    """h_t = a_t ⊙ h_{t-1} + √(1 - a_t²) ⊙ (i_t ⊙ x_t), with a decay a_t and a gate i_t of the current hidden state.

    W_a and W_x are block-diagonal, b_a and b_x start at 0.
    """

    equation: ClassVar[str] = "h_t = a_t ⊙ h_{t-1} + √(1 - a_t²) ⊙ i_t ⊙ x_t, a_t = σ(Λ)^(8 r_t); r, i: σ(W x_t + b)"
    source: ClassVar[str] = "De et al. 2024, arXiv:2402.19427, eq. 1 to 4; as Latte Macchiato's input (Latte, section 2.4)"
    kind: Literal["rglru"] = "rglru"
    blocks: PositiveInt = 1
    """Equal blocks that the channels are split into for W_a and W_x; 1: full matrices."""

    @property
    def one_way(self) -> tuple[Form, ...]:
        return tuple(replace(form, run=partial(self.follow, recurrence=form.run)) for form in elementwise.FORMS)

    def misfit(self, shape: Shape) -> Problem | None:
        width = shape.hidden_size
        if width % self.blocks == 0:
            return None
        return (
            f"{self.blocks} equal blocks cannot hold the {width} channels of the hidden state; set `blocks` to a divisor of {width}"
        ), ("blocks",)

    def own_parameters(self, width: int, *, ahead: bool = False) -> dict[str, Fresh]:
        side, nothing = width // self.blocks, initialise.constant(0.0)
        weight = Fresh((self.blocks, side, side), initialise.fan_in(side))
        return {
            "recurrence_weight": weight,
            "recurrence_bias": Fresh((width,), nothing, precise=True),
            "input_weight": weight,
            "input_bias": Fresh((width,), nothing),
            "decay": Fresh((width,), initialise.sigmoid_power(SHORTEST, LONGEST, POWER), precise=True),
        }

    def own_state(self, width: int) -> dict[str, Slot]:
        return {"hidden": Slot((width,), "state")}

    def own_flops(self, width: int) -> int:
        """Two gates, two products of the input, and a multiply-add of the state."""
        return 2 * 2 * width * (width // self.blocks) + 4 * width

    def follow(
        self, parameters: Parameters, hidden: Float[Tensor, "B T C"], tokens: Tokens, state: State, *, recurrence: Recurrence
    ) -> tuple[Float[Tensor, "B T C"], State]:
        dtype = accumulating(hidden.dtype)
        rows = hidden.reshape(-1, self.blocks, hidden.shape[-1] // self.blocks).transpose(0, 1)
        rows = as_dtype(rows, parameters["input_weight"].dtype)
        pace, gate = (_gate(parameters, name, rows, dtype).view(hidden.shape) for name in ("recurrence", "input"))
        log_decay = POWER * torch.nn.functional.logsigmoid(as_dtype(parameters["decay"], dtype)) * pace
        # Towards a = 1 the root's slope is infinite, and what it meets vanishes faster; at 1 itself that would be ∞ · 0.
        share = (-torch.expm1(2 * log_decay)).clamp(min=torch.finfo(dtype).tiny).sqrt()
        inputs = share * gate * as_dtype(hidden, dtype)
        if tokens.valid is not None:
            padding = ~tokens.valid[..., None]
            inputs, log_decay = inputs.masked_fill(padding, 0.0), log_decay.masked_fill(padding, 0.0)
        mixed, last = recurrence(inputs, log_decay, tokens.segment, state["hidden"])
        return mixed, {"hidden": last}


def _gate(parameters: Parameters, name: str, rows: Float[Tensor, "blocks R in"], dtype: torch.dtype) -> Float[Tensor, "R C"]:
    """Return the gate, in the accumulating dtype; a weight is blocks × out × in."""
    weight, bias = parameters[f"{name}_weight"], parameters[f"{name}_bias"]
    by_block = bias.view(weight.shape[0], 1, -1)
    if bias.dtype == weight.dtype:
        logits = as_dtype(torch.baddbmm(by_block, rows, weight.mT), dtype)
    else:
        logits = rows.bmm(weight.mT).to(dtype).add_(by_block.to(dtype))
    return logits.sigmoid().transpose(0, 1).flatten(1)
