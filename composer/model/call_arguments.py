"""The arguments of a model's call beside its tokens: which are ignored or refused, and the documents of packed rows.

The collators of transformers and TRL state documents by bounds, by the number of each token's document, by positions, or by all of
these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from blocks.tensors import has_numbers

IGNORED = frozenset({"cache_position", "logits_to_keep", "num_items_in_batch", "shift_labels", "token_type_ids", "tokenizer"})
"""Arguments that transformers and its loops pass to every causal model, and that its base does not use. tokenizer: that of
``generate``, which hands it on to the model."""
OF_IMAGES = "visual_pos_masks"
"""The argument of some text decoders for the tokens that are parts of images, B T bool."""
TAKEN = frozenset({"output_hidden_states", "output_router_logits", OF_IMAGES, "deepstack_visual_embeds"})
"""Arguments of hosts."""
AGREE = "Pass arguments that state the same documents, or one of them alone."


def check_passed(passed: dict[str, Any]) -> None:
    """Remove the arguments that are None or ``IGNORED``. Raise TypeError for arguments that no composed model accepts."""
    for name in [name for name, value in passed.items() if value is None or name in IGNORED]:
        del passed[name]
    if unknown := sorted(set(passed) - TAKEN):
        raise TypeError(f"a composed model does not accept {', '.join(unknown)}")


@dataclass(frozen=True)
class Documents:
    """The documents of a call's rows, in the order of the call.

    numbers: for each argument that states documents, ``B T`` whole numbers that change where a document begins. longest: by
    argument, the most tokens that a document may have.
    """

    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    longest: Mapping[str, int] = field(default_factory=dict)


def read_documents(
    batch: int,
    length: int,
    device: torch.device,
    *,
    bounds: Mapping[str, Any],
    seq_idx: Tensor | None = None,
    longest: Mapping[str, Any],
) -> Documents:
    """Return the documents that a call's arguments state. An argument of None states nothing.

    bounds: ``N + 1`` bounds of the documents of one packed row, by argument, such as ``cu_seq_lens_q``. seq_idx: ``B T`` or ``T``,
    the number of each token's document. longest: upper bounds of the documents' lengths, by argument. Raises ValueError.
    """
    numbers = {name: _numbers(name, value, batch, length, device) for name, value in bounds.items() if value is not None}
    if seq_idx is not None:
        rows = 1 if seq_idx.dim() == 1 else seq_idx.shape[0]
        if seq_idx.dim() not in (1, 2) or rows not in (1, batch) or seq_idx.shape[-1] != length:
            raise ValueError(f"seq_idx has shape {tuple(seq_idx.shape)}; expected {(batch, length)}, or one row for all")
        numbers["seq_idx"] = seq_idx.to(device).expand(batch, length)
    return Documents(
        numbers, {name: int(longest_document) for name, longest_document in longest.items() if longest_document is not None}
    )


def _numbers(name: str, value: Any, batch: int, length: int, device: torch.device) -> Tensor:
    """Return the number of each token's document, ``1 T``."""
    bounds = torch.as_tensor(value).to(device, torch.int64)
    wrong = bounds.dim() != 1 or bounds.shape[0] < 2 or batch != 1
    if not wrong and has_numbers(bounds):
        wrong = int(bounds[0]) != 0 or int(bounds[-1]) != length or bool((bounds.diff() <= 0).any())
    if wrong:
        shown = bounds.tolist() if has_numbers(bounds) else f"shape {tuple(bounds.shape)}"
        raise ValueError(f"{name} must rise from 0 to the length of one packed row; got {shown} for a batch of {batch} × {length}")
    return torch.searchsorted(bounds, torch.arange(length, device=device), right=True)[None]
