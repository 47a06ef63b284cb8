"""The state of a model after a text, as one safetensors file.

A state belongs to the model that read the text: its metadata have the hashes of the model's spec, config, weights and tokenizer.
Files may be from untrusted sources. Before any tensor is read, the header is compared with the states that the model declares:
names, shapes, dtypes, and the size of the file that follows from them. Then the tensors are compared with the file's hash, and
values that no state has are refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, ValidationError
from safetensors.torch import save_file
from torch import Tensor

from blocks.memories.base import Memory
from blocks.operation import Slot
from blocks.part import Closed
from blocks.tensors import slot_dtypes
from composer.errors import ComposerError
from composer.model.cache import SEEN, ComposedCache, new_cache
from composer.model.head import anatomy
from composer.model.heads import ComposedHeads
from composer.spec.explain import state_size
from composer.system.devices import check_memory
from composer.system.json_files import first_problem
from converters.bounded import brief, list_first, open_regular, reason
from converters.errors import WeightsError
from converters.shard import check_places, read_header

METADATA = "composer_state"
"""The key of the record in the file's metadata."""
LONGEST = 2**31
"""The largest number of tokens of a state."""
BASE_HEADER, ENTRY = 2**18, 2**9
"""Bytes of the header that a record, and the entry of a tensor beside its name, need at most."""
AGAIN = "Read the text again: `compose read MODEL --text FILE -o STATE`."
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
"""The names that the format has for the types of states."""


class StateOwner(Closed):
    """The model that read a text. weights, tokenizer: SHA-256 of each file, by name; adapters are weights."""

    spec_hash: str
    config_sha256: str
    weights: dict[str, str]
    tokenizer: dict[str, str]
    dtype: str


class StateRecord(Closed):
    """The metadata of a state. tokens: read so far; sha256: of the tensors' bytes, in the order of their names."""

    format: Literal[1] = 1
    model: StateOwner
    tokens: Annotated[int, Field(ge=1, le=LONGEST)]
    sha256: str


class DeclaredState(NamedTuple):
    """A tensor that a model declares. name: in the cache's layer. shape: with the batch's row. is_first: its memory receives every
    pair as its token is read."""

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    slot: Slot
    is_first: bool = False


def declare_states(model: Any, tokens: int) -> dict[str, DeclaredState]:
    """Return every tensor of a model's cache after ``tokens`` tokens of one row, by its name in a file.

    Raises ComposerError for a hybrid, whose host does not declare the states of its layers.
    """
    if model.base.has_mixers:
        raise ComposerError(
            "The state of this model is not kept in files: layers of its source keep states of another kind beside those of heads. "
            "Pass the text with each call of `compose generate`."
        )
    dtypes = slot_dtypes(model.dtype)
    states = {SEEN: DeclaredState(0, SEEN, (1,), torch.int64, Slot((), "int64"))}
    for module in model.modules():
        if isinstance(module, ComposedHeads):
            for group, head in module.named_children():
                head_anatomy: Any = anatomy(head)  # pyright: ignore[reportArgumentType]
                layer, graph = head_anatomy.place[0], head_anatomy.graph
                for name, slot in state_size(graph, tokens).items():
                    state_name, above = f"{group}.{name}", graph.into(name.rpartition(".")[0], "pairs")
                    is_first = not any(isinstance(graph.nodes[edge.start].part, Memory) for edge in above)
                    states[f"layers.{layer}.{state_name}"] = DeclaredState(
                        layer, state_name, (1, *slot.shape), dtypes[slot.dtype], slot, is_first
                    )
    return dict(sorted(states.items()))


def growing_layers(model: Any) -> list[int]:
    """Return the layers whose states grow with the text."""
    shorter, longer = declare_states(model, 1), declare_states(model, 2)
    return sorted({state.layer for name, state in longer.items() if state.shape != shorter[name].shape})


def save_cache(path: Path, cache: ComposedCache, model: Any, owner: StateOwner) -> None:
    """Write the state of a cache with one row. Raises OSError."""
    tokens = cache.get_seq_length()
    states = declare_states(model, tokens)
    tensors = {name: cache.state(state.layer).tensors[state.name].detach() for name, state in states.items()}
    wrong = [name for name, state in states.items() if (tensors[name].shape, tensors[name].dtype) != (state.shape, state.dtype)]
    assert not wrong, f"states are not as declared: {list_first(wrong)}"
    assert sum(tensor.nbytes for tensor in tensors.values()) == cache.bytes(), "the cache has tensors that no part declares"
    tensors = {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    digest = hashlib.sha256()
    for tensor in tensors.values():
        digest.update(_bytes_of(tensor))
    record = StateRecord(model=owner, tokens=tokens, sha256=digest.hexdigest())
    save_file(tensors, path, metadata={METADATA: record.model_dump_json()})


def load_cache(path: Path, model: Any, owner: StateOwner) -> ComposedCache:
    """Read a state into a new cache on the model's device.

    owner: of the model that is to continue. Raises ComposerError if the file is damaged, or belongs to another model.
    """
    try:
        header = read_header(path, BASE_HEADER + sum(ENTRY + 4 * len(name) for name in declare_states(model, 1)))
        record = _record(path, header.metadata)
        _check_owner(path, record.model, owner)
        states = declare_states(model, record.tokens)
        places = _places(path, header.entries, states, header.start)
        check_places(path, [(start, end, end - start, name) for name, (start, end) in places.items()], header.start, header.size)
    except WeightsError as error:
        raise ComposerError(f"{error} Or read the text again with `compose read`.") from error
    check_memory(header.size - header.start, f"the state in {path}")
    digest, cache = hashlib.sha256(), new_cache(model.config)
    try:
        with open_regular(path) as stream:
            for name, state in states.items():
                tensor = torch.empty(state.shape, dtype=state.dtype)
                buffer = _bytes_of(tensor)
                stream.seek(places[name][0])
                if stream.readinto(buffer) != len(buffer):
                    raise _damage_error(path, f"it ends within {name}")
                digest.update(buffer)
                if problem := _problem_of_values(state, tensor, record.tokens):
                    raise _damage_error(path, f"{name} has {problem}")
                cache.state(state.layer).tensors[state.name] = tensor.to(model.device)
    except OSError as error:
        raise ComposerError(f"{path} cannot be read: {reason(error)}.") from error
    if digest.hexdigest() != record.sha256:
        raise _damage_error(path, f"its tensors have the SHA-256 {digest.hexdigest()}, expected {brief(record.sha256)}")
    for layer in range(len(cache.layers)):
        cache.state(layer).columns, cache.state(layer).is_initialized = record.tokens, True
    return cache


def _record(path: Path, metadata: Mapping[str, str]) -> StateRecord:
    if METADATA not in metadata:
        raise ComposerError(
            f"{path} is not the state of a model: its metadata lack {METADATA}. Pass a file that `compose read` wrote."
        )
    try:
        return StateRecord.model_validate_json(metadata[METADATA], strict=True)
    except ValidationError as error:
        raise _damage_error(path, f"{METADATA}: {first_problem(error)}") from None


def _check_owner(path: Path, stored: StateOwner, owner: StateOwner) -> None:
    """Raise ComposerError if the state belongs to another model, or to another tokenizer."""
    differences = list(_differences(stored, owner))
    if differences:
        raise ComposerError(
            f"{path} is the state of another model. What differs: {', '.join(differences)}. A state continues only with the "
            f"weights and the tokenizer that read its text. {AGAIN}"
        )


def _differences(stored: StateOwner, owner: StateOwner) -> Iterator[str]:
    if stored.spec_hash != owner.spec_hash:
        yield f"the spec (hash {brief(stored.spec_hash[:12])}, this model's is {brief(owner.spec_hash[:12])})"
    if stored.config_sha256 != owner.config_sha256:
        yield "config.json"
    for kind in ("weights", "tokenizer"):
        before, now = getattr(stored, kind), getattr(owner, kind)
        files = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        if files:
            yield f"the {kind} ({list_first(files)})"
    if stored.dtype != owner.dtype:
        yield f"the dtype ({brief(stored.dtype)}, this model's is {owner.dtype})"


def _places(path: Path, entries: Mapping[str, Any], states: Mapping[str, DeclaredState], start: int) -> dict[str, tuple[int, int]]:
    """Return the first and the last byte of each tensor. Raise ComposerError if the entries are not those of the states."""
    if unknown := sorted(entries.keys() - states.keys()):
        raise _damage_error(path, f"this model has no state {list_first(unknown)}")
    if missing := sorted(states.keys() - entries.keys()):
        raise _damage_error(path, f"it lacks {list_first(missing)}")
    places = {}
    for name, state in states.items():
        count = math.prod(state.shape) * state.dtype.itemsize
        match entries[name]:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(first), int(last)], **more} if (
                not more and (dtype, tuple(shape)) == (DTYPES[state.dtype], state.shape) and last - first == count and first >= 0
            ):
                places[name] = (start + first, start + last)
            case _:
                wanted = f"{DTYPES[state.dtype]} of shape {list(state.shape)}"
                raise _damage_error(path, f"{name} is {brief(entries[name])}, expected {wanted} in {count:,} bytes")
    return places


def _problem_of_values(state: DeclaredState, tensor: Tensor, tokens: int) -> str | None:
    """Return which values of a tensor no state has after so many tokens, or None."""
    if tensor.is_floating_point():
        return _problem_of_numbers(state.slot, tensor)
    return _problem_of_positions(state, tensor, tokens)


def _problem_of_numbers(slot: Slot, tensor: Tensor) -> str | None:
    """Return which numbers of a tensor no state has, or None."""
    bounded = tensor[..., slot.bounded_from :]
    problems = {
        "values that are no numbers": tensor.isnan(),
        "infinite values": tensor.isinf() & (tensor != slot.empty),
        f"values below {slot.minimum:g}": bounded < slot.minimum,
        f"values above {slot.maximum:g}": bounded > slot.maximum,
    }
    return next((problem for problem, wrong in problems.items() if bool(wrong.any())), None)


def _problem_of_positions(state: DeclaredState, tensor: Tensor, tokens: int) -> str | None:
    """Return what is wrong with positions after so many tokens, or None. Numbers of tokens are checked, too."""
    if state.name == SEEN:
        return None if tensor.tolist() == [tokens] else f"{brief(tensor.tolist())}, expected [{tokens}]"
    if bool(((tensor < -1) | (tensor >= tokens)).any()):
        return f"positions outside of -1 to {tokens - 1:,}"
    if state.is_first and state.slot.order != "any":
        count = tensor.shape[1]
        place = torch.arange(count)
        last = tokens - 1 - (tokens - 1 - place) % count if state.slot.order == "ring" else place
        expected = last.where((last >= 0) & (last < tokens), -1).view(count, *[1] * (tensor.dim() - 2))
        return "positions in an order that reading does not leave" if bool((tensor[0] != expected).any()) else None
    ordered = tensor.sort(dim=1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    return "a position twice" if bool(twice.any()) else None


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    return tensor.flatten().view(torch.uint8).numpy().data


def _damage_error(path: Path, problem: str) -> ComposerError:
    return ComposerError(f"{path} is damaged: {problem}. {AGAIN}")
