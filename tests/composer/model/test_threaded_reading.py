"""A text that several threads read leaves the states of one that is read piece by piece. A failed piece ends the reading."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import composer
from composer.model import threaded_reading
from composer.model.attention import ComposedAttention
from composer.model.cache import ComposedCache, new_cache
from composer.model.generation import continuation, read_in_pieces
from tests.composer.model.models import CAUSAL, llama, student, tokens

PIECE, LENGTH = 16, 70


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threaded_reading, "PIECE", PIECE)
    monkeypatch.setattr("composer.model.generation.PIECE", PIECE)


def read_both_ways(spec: str, count: int) -> tuple[Any, ComposedCache, ComposedCache]:
    """Return a student, and its caches after the same text: read piece by piece, and ``count`` pieces at once."""
    model, ids = student(spec), tokens(1, LENGTH)
    caches = new_cache(model.config), new_cache(model.config)
    read_in_pieces(model, ids, caches[0])
    threaded_reading.read_in_parallel(model, ids, caches[1], count)
    return model, *caches


@pytest.mark.parametrize("spec", CAUSAL)
def test_pieces_read_at_once_leave_the_same_states(spec: str) -> None:
    _, whole, cache = read_both_ways(spec, 3)
    assert cache.get_seq_length() == LENGTH
    assert cache.bytes() == whole.bytes()
    for layer in range(len(whole.layers)):
        held, wanted = cache.state(layer), whole.state(layer)
        assert (held.columns, held.shapes()) == (wanted.columns, wanted.shapes())
        for name, tensor in wanted.tensors.items():
            torch.testing.assert_close(held.tensors[name], tensor, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_a_model_continues_after_pieces_read_at_once() -> None:
    model, *caches = read_both_ways("lolcats", 2)
    step = torch.tensor([[5]])
    first, second = (model(step, position_ids=continuation(1, cache)["position_ids"], past_key_values=cache) for cache in caches)
    torch.testing.assert_close(second.logits, first.logits, rtol=1e-12, atol=1e-12)


def test_an_error_in_one_piece_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other threads do not wait for the states that are missing, and the cache stays empty."""
    model = student("lolcats")
    (last,) = [module for module in model.modules() if isinstance(module, ComposedAttention) and module.layer == 2]
    run, calls = last.run_heads, []

    def fail(call: Any, *states: Tensor | None) -> Tensor:
        calls.append(call)
        if len(calls) == 2:
            raise MemoryError("the second piece")
        return run(call, *states)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(last, "run_heads", fail)
    cache, threads = new_cache(model.config), torch.get_num_threads()
    with pytest.raises(MemoryError, match="the second piece"):
        threaded_reading.read_in_parallel(model, tokens(1, LENGTH), cache, 3)
    assert (cache.get_seq_length(), len(calls), torch.get_num_threads()) == (0, 2, threads)


def test_no_more_pieces_are_begun_than_threads_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error no later piece waits, however long the text is."""
    read, begun = threaded_reading._read_piece, []

    def fail(model: Any, piece: Tensor, cache: threaded_reading.PieceCache) -> None:
        begun.append(cache.columns)
        if cache.columns == PIECE:
            cache.lose()
            raise MemoryError("the second piece")
        read(model, piece, cache)

    monkeypatch.setattr(threaded_reading, "_read_piece", fail)
    model = student("lolcats")
    with pytest.raises(MemoryError, match="the second piece"):
        threaded_reading.read_in_parallel(model, tokens(1, 40 * PIECE), new_cache(model.config), 3)
    assert {0, PIECE} <= set(begun) <= {0, PIECE, 2 * PIECE, 3 * PIECE}


def test_a_rotation_by_the_length_of_a_call_is_refused() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = composer.build("softmax", llama(rope_parameters=rope))
    assert threaded_reading.parallel_obstacle(student("softmax")) is None
    assert threaded_reading.parallel_obstacle(model) == "the rotation of this model depends on the length of the text so far"
