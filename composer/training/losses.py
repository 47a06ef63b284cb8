"""The cross-entropy of each next token, in nats: by fla's kernel on a GPU, which reads logits once, or as defined."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from blocks.kernels import FLASH_LINEAR_ATTENTION, Kernel, Refused, needs_gpu
from blocks.operation import FLA, Setting
from composer.graph.lowering import AUTO
from composer.graph.program import tell
from converters.trunk import dtype_name

ENTROPY = Kernel("fla.modules.fused_cross_entropy", "cross_entropy_loss", FLASH_LINEAR_ATTENTION)
SERVED = frozenset({"float32", "bfloat16"})


def next_token_losses(logits: Tensor, targets: Tensor, backend: str = AUTO) -> Tensor:
    """-log p(target), N float32, of logits N V. backend: what runs the model's heads; auto takes the kernel on a GPU."""
    if why_not_fused(logits, backend) is None:
        try:
            return ENTROPY(logits, targets)[0]
        except Refused as refusal:
            tell(str(refusal), "In its place: the loss as defined")
    return functional.cross_entropy(logits.float(), targets, reduction="none")


def why_not_fused(logits: Tensor, backend: str) -> str | None:
    """Why the kernel does not compute the losses of these logits, or None."""
    if backend not in (AUTO, FLA) or (backend == AUTO and logits.device.type != "cuda"):
        return "auto takes it on a GPU"
    dtype = dtype_name(logits.dtype)
    if dtype not in SERVED:
        return f"it does not serve {dtype}"
    if not logits.shape[0]:
        return "there is no token"
    return ENTROPY.missing() or needs_gpu(Setting(device=logits.device.type, dtype=dtype))
