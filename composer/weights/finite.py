"""Finds NaN and infinity in weights, and names the tensors that hold them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from composer.errors import BuildError, SourceError
from composer.weights.contents import as_tensor, blocks
from converters.bounded import listed, reason, shortened
from converters.shard import Shard, StoredTensor

if TYPE_CHECKING:
    import torch

    from converters.source import Source

REPAIR = "A run that diverged, or a damaged file, leaves such values: fetch the weights again, or use an earlier checkpoint"


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether there is neither NaN nor infinity in it: both show in its least and its largest value, fast."""
    return not tensor.numel() or all(math.isfinite(value) for value in tensor.aminmax())


def count_not_finite(tensor: torch.Tensor) -> int:
    """Return the number of values that are NaN or infinite."""
    if not tensor.is_floating_point() or all_finite(tensor):
        return 0
    return int((~tensor.isfinite()).sum())


def count_stored(tensor: StoredTensor, seen: Callable[[memoryview], object] = lambda _: None) -> int:
    """Return the number of values of a stored tensor that are NaN or infinite. seen: called with each block that is read."""
    count = 0
    for block in blocks(tensor.file, tensor.start, tensor.end):
        seen(block)
        count += count_not_finite(as_tensor(block, tensor.dtype))
    return count


def digest_and_counts(shard: Shard, moved: Callable[[int], object] = lambda _: None) -> tuple[str, dict[str, int]]:
    """Read a weight file once. Return its SHA-256, and the number of values that are not finite of each tensor that has any.

    moved: called with the position behind each tensor that has been read. Raises OSError.
    """
    digest, done, counts = hashlib.sha256(), 0, dict[str, int]()
    for name, tensor in shard.tensors.items():
        for block in blocks(shard.file, done, tensor.start):  # the header, and masks
            digest.update(block)
        if count := count_stored(tensor, digest.update):
            counts[name] = count
        done = tensor.end
        moved(done)
    for block in blocks(shard.file, done):
        digest.update(block)
    return digest.hexdigest(), counts


def not_finite(file: Path | str, counts: Mapping[str, int]) -> str:
    """Return the message for a file with tensors that hold NaN or infinity. counts: how many values of each tensor."""
    named = listed(f"{shortened(name)} ({count:,})" for name, count in counts.items())
    return (
        f"{file} holds NaN or infinity where weights must be finite, in these tensors (numbers of such values): {named}. {REPAIR}."
    )


def refuse_not_finite(file: Path | str, counts: Mapping[str, int], unused: Collection[str] = ()) -> None:
    """Raise BuildError where any tensor has values that are not finite. unused: tensors that no model is made of."""
    if found := {name: count for name, count in counts.items() if name not in unused}:
        raise BuildError(not_finite(file, found))


def check_loaded(model: torch.nn.Module, source: Source) -> None:
    """Raise SourceError where a model that has just been loaded from a folder holds NaN or infinity.

    The message names the stored tensors, or, where these are finite in the files, the parameters that are too large for the type
    that they were loaded in.
    """
    counts = {name: count for name, tensor in model.named_parameters() if (count := count_not_finite(tensor.detach()))}
    if not counts:
        return
    for shard in source.shards.values():
        try:
            stored = {name: count for name, tensor in shard.tensors.items() if (count := count_stored(tensor))}
        except OSError as error:
            raise SourceError(f"{shard.file} cannot be read: {reason(error)}.") from error
        if stored:
            raise SourceError(not_finite(shard.file, stored))
    if adapters := {name: count for name, count in counts.items() if ".lora_" in name}:
        raise SourceError(not_finite(f"The adapters in {source.folder}", adapters))
    dtype = str(next(iter(model.parameters())).dtype).removeprefix("torch.")
    raise SourceError(
        f"The weights of {source.folder} are too large for {dtype}: some values of {listed(counts)} become infinite. Choose another"
        " dtype, such as bfloat16 or float32."
    )
