"""Joins the states of texts that were read apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from blocks.memories.base import Memory
from composer.errors import ComposerError
from composer.model.cache import SEEN, ComposedCache, new_cache
from composer.model.head import anatomy
from composer.model.heads import ComposedHeads
from composer.spec.explain import state_size


def join_caches(model: Any, first: ComposedCache, second: ComposedCache, dropped: int) -> ComposedCache:
    """Return a cache of one row, as after both texts without the first ``dropped`` tokens of the second one.

    Exact for a layer whose inputs depend on the tokens alone, which is the first layer. Raises ComposerError, with the layer and
    the part, for a state that cannot be joined.
    """
    before, added = first.get_seq_length(), second.get_seq_length() - dropped
    joined = new_cache(model.config)
    for layer, group, name, part in parts_with_state(model):
        prefix = f"{group}.{name}."
        earlier, later = (_part_state(cache, layer, prefix) for cache in (first, second))
        match part:
            case Memory() if part.rotation.by_call:
                state = "its rotation depends on the length of a text"
            case Memory():
                state = part.join(earlier, later, dropped, before - dropped)
            case _:
                state = "this part is not a memory"
        if isinstance(state, str):
            raise ComposerError(
                f"The states do not join: layer {layer}, heads `{group}`, `{name}`: {state}. Read the texts as one with "
                "`compose read`."
            )
        joined.state(layer).tensors |= {prefix + tensor: value for tensor, value in state.items()}
    for layer in range(len(joined.layers)):
        joined.state(layer).columns = before + added
        joined.state(layer).is_initialized = True
    joined.state(0).tensors[SEEN] = torch.tensor([before + added], device=model.device)
    return joined


def parts_with_state(model: Any) -> Iterator[tuple[int, str, str, Any]]:
    """Yield each part that has a state: its layer, its group of heads, its name in the head, and itself."""
    for module in model.modules():
        for group, head in module.named_children() if isinstance(module, ComposedHeads) else ():
            head_anatomy = anatomy(head)  # pyright: ignore[reportArgumentType]
            for name in dict.fromkeys(name.rpartition(".")[0] for name in state_size(head_anatomy.graph, 1)):
                yield head_anatomy.place[0], group, name, head_anatomy.graph.nodes[name].part


def _part_state(cache: ComposedCache, layer: int, prefix: str) -> dict[str, torch.Tensor]:
    tensors = cache.state(layer).tensors
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
