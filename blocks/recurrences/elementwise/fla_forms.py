"""The elementwise recurrence on flash-linear-attention: ``hgrn``. Nothing is multiplied but elements, all in float32.

A document that starts is a decay of -inf, as the kernel only exponentiates decays and sums of them. What enters with the state is
added to the first input, where it has its gradient.
"""

from __future__ import annotations

import math

from blocks import fla_kernels
from blocks.fla_kernels import kernel
from blocks.legend import Float, Int, Tensor, torch
from blocks.operation import Setting

CHUNKS = kernel("ops.hgrn", "chunk_hgrn")


def missing() -> str | None:
    """Return a message on the packages that the form needs and that are not installed, or None."""
    return CHUNKS.missing()


def obstacle(setting: Setting) -> str | None:
    """Return why the form cannot run, or None. It computes in float32, also in a model of float16."""
    return (
        fla_kernels.gpu_obstacle(setting) if setting.dtype == "float16" and not setting.one_token else fla_kernels.obstacle(setting)
    )


def chunked(
    inputs: Float[Tensor, "B T C"],
    log_decay: Float[Tensor, "B T C"],
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B C"],
) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "B C"]]:
    """Any number of tokens."""
    if segment is not None:
        before = torch.cat((torch.zeros_like(segment[:, :1]), segment[:, :-1]), dim=1)
        log_decay = log_decay.masked_fill((segment != before)[..., None], -math.inf)
    first = torch.addcmul(inputs[:, :1], log_decay[:, :1].exp(), state[:, None])
    output, _ = CHUNKS(torch.cat((first, inputs[:, 1:]), dim=1), log_decay)
    return output, output[:, -1]
