"""A state in a file continues bit for bit as the cache in memory does, for every kind of memory. Files of other models and
damaged files are rejected.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from composer.errors import ComposerError
from composer.model.cache import new_cache
from composer.model.generation import PIECE, continuation, read_in_pieces
from composer.model.state_file import METADATA, StateOwner, declare_states, growing_layers, load_cache, save_cache
from composer.spec.explain import explain_resolved
from tests.composer.model.models import student, tokens
from tests.damage import DAMAGE, damage, no_waiting

OWNER = StateOwner(
    spec_hash="0" * 64,
    config_sha256="1" * 64,
    weights={"model.safetensors": "2"},
    tokenizer={"tokenizer.json": "3"},
    dtype="float64",
)
BOUNDED = [
    "window",
    "lola",
    "delta",
    "latte",
    "latte-conv",
    "latte-rglru",
    "mamba2",
    "mamba3",
    "lolcats-terraced",
    "mixed-heads",
    "streaming",
]
GROWING = {"softmax": [0, 1, 2], "forgetting": [0, 1, 2], "nsa": [0, 1, 2], "hybrid": [0, 2]}
READ, MORE = 90, 7


@torch.no_grad()
@pytest.mark.parametrize("spec", [*BOUNDED, *GROWING])
def test_a_loaded_state_continues_like_the_cache_in_memory(spec: str, tmp_path: Path) -> None:
    """The logits of each token equal a run without a file, and the bytes equal those of ``explain``."""
    model, ids, path = student(spec), tokens(1, READ + MORE), tmp_path / "state"
    cache = new_cache(model.config)
    model(ids[:, :READ], past_key_values=cache)
    save_cache(path, cache, model, OWNER)
    loaded = load_cache(path, model, OWNER)
    held = explain_resolved(model.config.read_spec(), sequence=READ, dtype="float64").state_bytes
    (header,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert loaded.bytes() == cache.bytes() == held == path.stat().st_size - 8 - header
    assert loaded.get_seq_length() == READ
    assert loaded.is_initialized
    assert growing_layers(model) == GROWING.get(spec, [])
    for place in range(READ, READ + MORE):
        token = ids[:, place : place + 1]
        wanted, actual = (model(token, past_key_values=own).logits for own in (cache, loaded))
        assert torch.equal(actual, wanted)


@torch.no_grad()
def test_saving_and_loading_between_pieces_changes_no_state(tmp_path: Path) -> None:
    """A text of three pieces is read at once, or with a file after the second piece."""
    model, ids = student("lawcat"), tokens(1, 2 * PIECE + 100)
    whole, first, progress = new_cache(model.config), new_cache(model.config), []
    read_in_pieces(model, ids, whole, lambda done, length: progress.append((done, length)))
    assert progress == [(PIECE, 2148), (2 * PIECE, 2148), (2148, 2148)]
    read_in_pieces(model, ids[:, : 2 * PIECE], first)
    save_cache(tmp_path / "state", first, model, OWNER)
    second = load_cache(tmp_path / "state", model, OWNER)
    read_in_pieces(model, ids[:, 2 * PIECE :], second)
    for layer in range(3):
        wanted, actual = whole.state(layer).tensors, second.state(layer).tensors
        assert wanted.keys() == actual.keys()
        assert all(torch.equal(wanted[name], actual[name]) for name in wanted)


def test_a_state_of_a_bfloat16_model_keeps_its_dtypes_and_values(tmp_path: Path) -> None:
    model = student("lolcats").bfloat16()
    cache = new_cache(model.config)
    read_in_pieces(model, tokens(1, READ), cache)
    save_cache(tmp_path / "state", cache, model, OWNER)
    types = {tensor.dtype for tensor in load_file(tmp_path / "state").values()}
    assert types == {torch.bfloat16, torch.float32, torch.int64}
    wanted, actual = cache.state(1).tensors, load_cache(tmp_path / "state", model, OWNER).state(1).tensors
    assert all(torch.equal(wanted[name], actual[name]) for name in wanted)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model with a window and a state, and the file of its state."""
    model, path = student("lolcats"), tmp_path_factory.mktemp("states") / "state"
    cache = new_cache(model.config)
    read_in_pieces(model, tokens(1, READ), cache)
    save_cache(path, cache, model, OWNER)
    return model, path


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"spec_hash": "f" * 64}, "the spec (hash '000000000000', this model's is 'ffffffffffff')"),
        ({"config_sha256": "f" * 64}, "What differs: config.json."),
        ({"weights": {"model.safetensors": "9"}}, "the weights (model.safetensors)"),
        ({"weights": {**OWNER.weights, "adapter/adapter_model.safetensors": "9"}}, "(adapter/adapter_model.safetensors)"),
        ({"tokenizer": {"tokenizer.json": "9"}}, "the tokenizer (tokenizer.json)"),
        ({"dtype": "float32"}, "the dtype ('float64', this model's is float32)"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "+".join(value),
)
def test_states_of_other_models_are_refused(saved: tuple[Any, Path], change: dict[str, Any], problem: str) -> None:
    model, path = saved
    with pytest.raises(ComposerError) as caught:
        load_cache(path, model, OWNER.model_copy(update=change))
    assert "is the state of another model" in str(caught.value)
    assert problem in str(caught.value)


def test_states_of_other_heads_are_refused(saved: tuple[Any, Path]) -> None:
    """With forged hashes, the names and shapes of the states are still checked."""
    with pytest.raises(ComposerError, match=r"is damaged: this model has no state layers\.0\.head\."):
        load_cache(saved[1], student("latte"), OWNER)


Tensors = dict[str, torch.Tensor]


def rewrite(change: Callable[[Tensors, dict[str, Any]], object]) -> Callable[[Path], None]:
    """Write a damage as a valid safetensors file with the right hash."""

    def write(path: Path) -> None:
        tensors = load_file(path)
        with safe_open(path, "pt") as stream:
            record = json.loads(stream.metadata()[METADATA])
        change(tensors, record)
        digest = hashlib.sha256()
        for name in sorted(tensors):
            digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
        save_file(tensors, path, metadata={METADATA: json.dumps({**record, "sha256": digest.hexdigest()})})

    return write


def edit(change: Callable[[bytearray], object]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        contents = bytearray(path.read_bytes())
        change(contents)
        path.write_bytes(contents)

    return write


def set_header_length(length: int) -> Callable[[bytearray], None]:
    def change(contents: bytearray) -> None:
        contents[:8] = struct.pack("<Q", length)

    return change


def pad_header(path: Path) -> None:
    """Write an otherwise valid header of 9 MB."""
    contents = path.read_bytes()
    (length,) = struct.unpack("<Q", contents[:8])
    header = contents[8 : 8 + length] + b" " * 9_000_000
    path.write_bytes(struct.pack("<Q", len(header)) + header + contents[8 + length :])


def first(tensors: Tensors, ending: str) -> torch.Tensor:
    return next(tensor for name, tensor in sorted(tensors.items()) if name.endswith(ending))


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (edit(lambda contents: contents.__delitem__(slice(-5, None))), "is truncated"),
    "longer": (edit(lambda contents: contents.extend(b"12345")), "longer than its header states"),
    "empty": (lambda path: path.write_bytes(b""), "does not begin with a safetensors header"),
    "text": (lambda path: path.write_text("once upon a time " * 9), "does not begin with a safetensors header"),
    "huge header": (edit(set_header_length(2**62)), "does not begin with a safetensors header"),
    "long header": (pad_header, "has a header of 9,00"),
    "a changed byte": (edit(lambda contents: contents.__setitem__(-1, contents[-1] ^ 1)), "its tensors have the SHA-256"),
    "no state": (lambda path: save_file({"x": torch.ones(1)}, path), "its metadata lack composer_state"),
    "unknown name": (rewrite(lambda tensors, _: tensors.update(x=torch.ones(1))), "this model has no state x"),
    "missing": (rewrite(lambda tensors, _: tensors.pop("seen")), "it lacks seen"),
    "shape": (rewrite(lambda tensors, _: tensors.update(seen=torch.tensor([[READ]]))), "expected I64 of shape [1] in 8 bytes"),
    "dtype": (rewrite(lambda tensors, _: tensors.update(seen=torch.ones(1, dtype=torch.float64))), "expected I64 of shape [1]"),
    "count": (rewrite(lambda tensors, _: tensors["seen"].fill_(5)), "seen has [5], expected [90]"),
    "position": (rewrite(lambda tensors, _: first(tensors, "position").fill_(2**40)), "positions outside of -1 to 89"),
    "reordered": (
        rewrite(lambda tensors, _: first(tensors, "position").copy_(first(tensors, "position").roll(1))),
        "in an order that",
    ),
    "absent": (
        rewrite(lambda tensors, _: first(tensors, "position").fill_(-1)),
        "positions in an order that reading does not leave",
    ),
    "infinite": (rewrite(lambda tensors, _: first(tensors, "value").view(-1)[0].fill_(torch.inf)), "value has infinite values"),
    "negative mass": (rewrite(lambda tensors, _: first(tensors, "state.state")[..., -1].neg_()), "state has values below 0"),
    "NaN": (rewrite(lambda tensors, _: first(tensors, "key").fill_(torch.nan)), "has values that are no numbers"),
    "tokens": (rewrite(lambda _, record: record.update(tokens=10**15)), "composer_state: tokens: expected at most 2.14748e+09"),
    "no tokens": (rewrite(lambda _, record: record.update(tokens=0)), "expected at least 1"),
    "format": (rewrite(lambda _, record: record.update(format=2)), "composer_state: format: input should be 1"),
    "field": (rewrite(lambda _, record: record.update(more=1)), "composer_state: more: the field is unknown"),
    "types": (rewrite(lambda _, record: record.update(model=[])), "composer_state: model: "),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_files_are_refused_with_the_damage(saved: tuple[Any, Path], tmp_path: Path, kind: str) -> None:
    model, original = saved
    path = tmp_path / "state"
    path.write_bytes(original.read_bytes())
    change, problem = DAMAGED[kind]
    change(path)
    with pytest.raises(ComposerError) as caught:
        load_cache(path, model, OWNER)
    assert problem in str(caught.value)
    assert "ompose read" in str(caught.value)


def test_more_tokens_than_a_growing_state_holds_are_refused(tmp_path: Path) -> None:
    """A number of tokens beyond the size of the file is rejected before memory is allocated."""
    model, path = student("softmax"), tmp_path / "state"
    cache = new_cache(model.config)
    read_in_pieces(model, tokens(1, READ), cache)
    save_cache(path, cache, model, OWNER)
    rewrite(lambda _, record: record.update(tokens=2**31))(path)
    with pytest.raises(ComposerError, match=r"expected F64 of shape \[1, 2147483648, 2, 16\]"):
        load_cache(path, model, OWNER)


class _Largest(TorchDispatchMode):
    """Counts the numbers of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


def test_a_large_token_count_allocates_no_large_tensor(tmp_path: Path) -> None:
    """A state of constant size continues as after so many tokens, without a tensor of that length."""
    model, path = student("lawcat"), tmp_path / "state"
    cache = new_cache(model.config)
    read_in_pieces(model, tokens(1, READ), cache)
    save_cache(path, cache, model, OWNER)
    rewrite(lambda tensors, record: (tensors["seen"].fill_(2**31), record.update(tokens=2**31)))(path)
    with _Largest() as largest:
        claimed = load_cache(path, model, OWNER)
        made = model.generate(tokens(1, 5), **continuation(5, claimed), max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert made.shape == (1, 8)
    assert claimed.get_seq_length() == 2**31 + 7
    assert largest.numbers < 10**6


@pytest.mark.parametrize("kind", DAMAGE)
def test_irregular_files_are_refused(saved: tuple[Any, Path], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, original = saved
    path = tmp_path / "state"
    path.write_bytes(original.read_bytes())
    damage(path, kind, monkeypatch)
    with no_waiting(), pytest.raises(ComposerError):
        load_cache(path, model, OWNER)


def test_the_declared_states_are_those_of_the_file(saved: tuple[Any, Path]) -> None:
    assert list(declare_states(saved[0], READ)) == sorted(load_file(saved[1]))
