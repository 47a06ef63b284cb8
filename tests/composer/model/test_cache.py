"""A cache uses the reported memory: no state keeps a longer tensor alive by a view."""

from __future__ import annotations

import pytest
import torch

from composer.model.cache import ComposedCache, StateLayer
from tests.composer.model.models import FEW, student, tokens


@pytest.mark.parametrize("spec", ["lolcats", "lolcats-terraced", "lola", "lawcat", "gated-delta", "latte-conv"])
def test_states_do_not_keep_the_tensors_of_a_prefill_alive(spec: str) -> None:
    sizes = []
    model = student(spec, "trunk=null")
    for length in (70, 300):
        with torch.no_grad():
            cache = model(tokens(1, length), use_cache=True).past_key_values
        assert isinstance(cache, ComposedCache)
        held = [tensor for layer in range(len(cache.layers)) for tensor in cache.state(layer).tensors.values()]
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in held)
        sizes.append(sum(tensor.nbytes for tensor in held))
    assert sizes[0] == sizes[1]


@torch.no_grad()
def test_caches_of_interrupted_calls_are_refused() -> None:
    """The first layers have processed the token and the others have not, so the cache is refused."""
    model, ids = student("lolcats"), tokens(1, 7)
    for begun in (model(ids[:, :6]).past_key_values, ComposedCache(len(model.model.layers))):
        cut = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(ids[:, 6:], past_key_values=begun)
        cut.remove()
        with pytest.raises(ValueError, match="a call with this cache was interrupted"):
            model(ids[:, 6:], past_key_values=begun)
        begun.reset()
        torch.testing.assert_close(model(ids, past_key_values=begun).logits, model(ids).logits)


@pytest.mark.parametrize(("columns", "kept"), [(0, True), (1, False)])
def test_a_mixer_beside_heads_keeps_the_mark_of_states_with_gradients(columns: int, kept: bool) -> None:
    """A mixer beside heads (columns 0) runs first, while the heads still hold the states of a call with gradients."""
    layer = StateLayer()
    layer.keep({"window.key": torch.ones(1, 4, requires_grad=True)}, 1)
    with torch.no_grad():
        layer.keep_mixer({"conv": torch.zeros(1, 4)}, columns)
    assert layer.differentiated is kept


@torch.no_grad()
@pytest.mark.parametrize(("spec", "joins"), [("lolcats", True), ("gated-delta", True), ("softmax", False)])
def test_rows_of_another_cache_are_appended_if_states_have_equal_shapes(spec: str, joins: bool) -> None:
    model, ids, others = student(spec), tokens(2, 9), tokens(1, 30)
    cache, other = model(ids[:, :8]).past_key_values, model(others[:, :29]).past_key_values
    before = cache.bytes()
    assert cache.append(other) is joins
    assert cache.bytes() == (before + other.bytes() if joins else before)
    last = torch.cat((ids[:, 8:], others[:, 29:])) if joins else ids[:, 8:]
    whole = torch.cat([model(text).logits[:, -1] for text in ((ids, others) if joins else (ids,))])
    torch.testing.assert_close(model(last, past_key_values=cache).logits[:, -1], whole)


@torch.no_grad()
@pytest.mark.parametrize("spec", FEW)
def test_a_cropped_cache_is_that_of_the_tokens_that_are_left(spec: str) -> None:
    """Law: a cache that has removed its last tokens equals a cache that never read them, in every shipped spec. First two calls
    and a part of one are removed, then one call."""
    model, text, new = student(spec, "trunk=null"), tokens(1, 28), tokens(1, 3, seed=9)
    cache = model(text[:, :20]).past_key_values
    cache.activate_past_recording()
    for first, end in ((20, 26), (26, 27), (27, 28)):
        model(text[:, first:end], past_key_values=cache)
    cache.crop(-5)
    model(text[:, 25:26], past_key_values=cache)
    cache.crop(-1)
    assert cache.get_seq_length() == 23
    wanted = model(torch.cat((text[:, :23], new), dim=1)).logits[:, 23:]
    torch.testing.assert_close(model(new, past_key_values=cache).logits, wanted)


@torch.no_grad()
def test_all_tokens_may_be_removed() -> None:
    model, cache, ids = student("lolcats"), ComposedCache(3), tokens(1, 6)
    cache.activate_past_recording()
    model(ids, past_key_values=cache)
    cache.crop(-6)
    torch.testing.assert_close(model(ids, past_key_values=cache).logits, model(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("spec", ["softmax", "lolcats", "latte-rglru"])
def test_padding_is_removed_with_the_tokens_of_its_columns(spec: str) -> None:
    """Inside a call real tokens are before padding. A positive number is that of the columns that are kept."""
    model, text, new = student(spec, "trunk=null"), tokens(2, 12), tokens(2, 3, seed=9)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1]])
    cache = model(text[:, :5], attention_mask=mask[:, :5]).past_key_values
    cache.activate_past_recording()
    model(text[:, 5:], attention_mask=mask, past_key_values=cache)
    cache.crop(8)
    whole, seen = torch.cat((text[:, :8], new), dim=1), torch.cat((mask[:, :8], torch.ones_like(new)), dim=1)
    wanted = model(whole, attention_mask=seen).logits[:, 8:]
    torch.testing.assert_close(model(new, attention_mask=seen, past_key_values=cache).logits, wanted)


@torch.no_grad()
def test_rows_that_are_selected_cannot_be_removed_from() -> None:
    model, ids = student("lolcats"), tokens(2, 7)
    cache = model(ids).past_key_values
    cache.activate_past_recording()
    model(ids[:, :2], past_key_values=cache)
    cache.batch_select_indices(torch.tensor([1]))
    with pytest.raises(ValueError, match="it has recorded 0 of them"):
        cache.crop(-1)


@torch.no_grad()
def test_a_call_follows_a_cache_only_if_all_rows_are_at_their_next_token() -> None:
    cache = student("lolcats")(tokens(2, 5)).past_key_values
    assert cache.follows(None, torch.tensor([[5], [5]]))
    assert not cache.follows(None, torch.tensor([[5], [0]]))
    assert cache.follows(torch.ones(2, 6), None)
    assert not cache.follows(torch.tensor([[1], [0]]), None)
