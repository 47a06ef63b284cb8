"""A short causal convolution of the hidden states."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from pydantic import PositiveInt

from blocks import initialise
from blocks.flow import Tokens
from blocks.legend import Float, Tensor
from blocks.mixers.base import Mixer
from blocks.operation import EVERY, FLA, Form, Slot, State, row_obstacle
from blocks.part import Fresh, Parameters
from blocks.taps import CONVOLUTION, Filtering, filter_by_kernel, filter_inputs, filter_step, obstacle


class ConvolutionMixer(Mixer):
    """Depthwise: each channel is a weighted sum of itself over the last ``kernel`` tokens of its document.

    Starts as the identity. Both ways: over the current and the next tokens, too, with a filter that starts at 0.
    """

    equation: ClassVar[str] = "y_t = Σ_δ w_δ ⊙ x_{t-δ}, 0 ≤ δ < kernel"
    source: ClassVar[str] = "Latte, eq. 15 (K = kernel - 1)"
    kind: Literal["conv"] = "conv"
    kernel: PositiveInt = 3
    """Taps, the current token included."""

    def own_parameters(self, width: int, *, ahead: bool = False) -> dict[str, Fresh]:
        return {"weight": Fresh((width, self.kernel), initialise.constant(0.0) if ahead else initialise.current_token)}

    def own_state(self, width: int) -> dict[str, Slot]:
        return {"hidden": Slot((self.kernel - 1, width), "pairs")}

    def own_flops(self, width: int) -> int:
        return 2 * self.kernel * width

    @property
    def one_way(self) -> tuple[Form, ...]:
        return (
            Form(
                FLA,
                "causal_conv1d",
                partial(self.follow, filtering=filter_by_kernel),
                partial(obstacle, taps=self.kernel),
                missing=CONVOLUTION.missing,
                refuses=True,
            ),
            Form(EVERY, "all taps at once", partial(self.follow, filtering=filter_step), row_obstacle, decode=True),
            Form(EVERY, "as defined", partial(self.follow, filtering=filter_inputs)),
        )

    def follow(
        self, parameters: Parameters, hidden: Float[Tensor, "B T C"], tokens: Tokens, state: State, *, filtering: Filtering
    ) -> tuple[Float[Tensor, "B T C"], State]:
        # As one head of C coordinates.
        mixed, last = filtering(hidden[:, :, None], parameters["weight"][None], tokens, state["hidden"][:, :, None])
        return mixed.squeeze(2), {"hidden": last.squeeze(2)}
