"""Notes on heads that follow from their source: its layers without attention, its images, and rotations by the length of a text."""

from __future__ import annotations

from collections.abc import Mapping

from blocks.memories.base import Memory
from composer.graph.composition import HeadSpec
from composer.reporting.words import layers_in_words
from composer.spec.resolve import Resolved
from converters.rotary import LengthRotation

IN_GENERAL = (
    "The logits then depend on how a text is split into calls, as they do in the source itself. Set a `theta` under `position`, "
    "or `position: none`, to avoid this."
)


def notes_on_source(resolved: Resolved, rotations: Mapping[int, LengthRotation]) -> tuple[str, ...]:
    """Return all of these notes. rotations: as ``notes_on_rotations`` has them."""
    return (*_on_kept_layers(resolved), *_on_images(resolved), *notes_on_rotations(resolved, rotations))


def notes_on_layers(resolved: Resolved, *, has_head: bool) -> tuple[str, ...]:
    """Return a note on the layers whose caches grow with the text, and a warning if rules leave no layer to the spec's ``head``.

    has_head: the spec has a ``head``, for all layers that no rule names.
    """
    growing = [sum(group.key_heads for group in groups if _grows(resolved.heads[group.head])) for groups in resolved.layers]
    every = [sum(group.key_heads for group in groups) for groups in resolved.layers]
    full_layers = [layer for layer, count in enumerate(growing) if count and count == every[layer]]
    if len(full_layers) < len(resolved.dimensions.with_attention):
        some = [layer for layer, count in enumerate(growing) if 0 < count < every[layer]]
        count, head_count = sum(growing[layer] for layer in some), sum(every[layer] for layer in some)
        kinds = ((full_layers, ""), (some, f" in {count:,} of {head_count:,} key heads"))
        return tuple(
            f"{layers_in_words(layers).capitalize()}: softmax attention over the whole text{detail}, whose cache grows with it."
            for layers, detail in kinds
            if layers
        )
    if has_head and "head" not in resolved.heads:
        return (
            "All layers have softmax attention, and no layer has the `head` of the spec: its `layers` name other heads for each of "
            f"the {len(resolved.layers):,} layers. Change `layers`, or name a source with more layers.",
        )
    return ()


def _grows(head: HeadSpec) -> bool:
    return any(memory.grows for memory in head.memory)


def _on_kept_layers(resolved: Resolved) -> tuple[str, ...]:
    """Return a note on the layers of a hybrid that have no attention; none where all have."""
    without = resolved.dimensions.without_attention
    if not without:
        return ()
    return (
        f"The source has no attention in {layers_in_words(without)}: they are kept unchanged, with their own states. The figures "
        "of heads do not include these states.",
    )


def _on_images(resolved: Resolved) -> tuple[str, ...]:
    """Return a note on the memories to which tokens of an image are causal, where the source lets them see each other."""
    used = {group.head for groups in resolved.layers for group in groups}
    memories = {memory.called: None for name in used for memory in resolved.heads[name].memory if not memory.sees_ahead}
    if not resolved.dimensions.sees_ahead or not memories:
        return ()
    causal = " and ".join(f"`{name}`" for name in memories)
    return (
        "In the source, the tokens of an image see each other in both directions. They do so in `full` and `compressed` with no "
        f"other memory above them, and in layers with `use: source`. In {causal} they see earlier tokens alone.",
    )


def notes_on_rotations(resolved: Resolved, rotations: Mapping[int, LengthRotation]) -> tuple[str, ...]:
    """Return a warning for each rotation that depends on the length of the text so far and that a memory of the heads uses.

    rotations: by layer. A memory that holds all pairs is left out: its layer computes what the source does, call by call.
    """
    layers: dict[LengthRotation, list[int]] = {}
    memories: dict[LengthRotation, dict[str, None]] = {}
    for layer, rotation in rotations.items():
        used = [
            memory.called for group in resolved.layers[layer] for memory in resolved.heads[group.head].memory if _follows(memory)
        ]
        if used and resolved.direction == "causal":
            layers.setdefault(rotation, []).append(layer)
            memories.setdefault(rotation, {}).update(dict.fromkeys(used))
    return tuple(_note(rotation, layers[rotation], list(memories[rotation])) for rotation in layers)


def _follows(memory: Memory) -> bool:
    """Whether a memory of bounded size keeps keys or features rotated by the source's own rotation."""
    return memory.position is not None and memory.position.follows_source and not memory.grows


def _note(rotation: LengthRotation, layers: list[int], memories: list[str]) -> str:
    names = " and ".join(f"`{name}`" for name in memories)
    beyond = "a certain length" if rotation.tokens is None else f"{rotation.tokens:,} tokens"
    return (
        f"In {layers_in_words(layers)} the source's `{rotation.kind}` rotation of all keys of a call depends on the length of the "
        f"text at the end of that call, once the text is longer than {beyond}. {names} keep keys that earlier calls rotated. "
        f"{IN_GENERAL}"
    )
