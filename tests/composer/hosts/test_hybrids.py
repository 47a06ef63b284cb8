"""The recurrent layers of hybrids are unchanged beside heads, for texts that are split, padded or packed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

import composer
from composer.errors import BuildError, ComposerError, GraphError, SpecError
from composer.model.mixers import hybrids_run
from composer.model.state_file import declare_states
from tests.composer.hosts.families import HYBRIDS, small, tokens
from tests.covers import some

LENGTH = 17
pytestmark = pytest.mark.skipif(not hybrids_run(), reason="this version of transformers has no layers with states that continue")


def near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5 * max(1.0, float(expected.abs().max()) / 2))


def in_pieces(model: Any, ids: torch.Tensor, bounds: tuple[int, ...], mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return the logits of a text that is read in pieces."""
    cache, logits = None, []
    for start, end in pairwise(bounds):
        partial_mask = None if mask is None else mask[:, :end]
        answer = model(ids[:, start:end], attention_mask=partial_mask, past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        logits.append(answer.logits)
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("family", some(HYBRIDS, set(HYBRIDS) - {"bamba", "lfm2_moe", "qwen3_5_moe_text"}))
@torch.no_grad()
def test_hybrids_equal_their_source_in_pieces_and_with_padding_and_beams(family: str) -> None:
    """The first piece is shorter than a convolution, and ends in the padding of a row. The families marked ``full`` have the layers
    of another family.
    """
    source, ids = small(family), tokens(2, LENGTH)
    student = composer.build("softmax", source)
    expected = source(input_ids=ids, use_cache=False).logits
    near(in_pieces(student, ids, (0, 2, 3, 9, LENGTH)), expected)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    padded = source(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), use_cache=False).logits
    near(in_pieces(student, ids, (0, 3, 8, 9, LENGTH), mask)[mask.bool()], padded[mask.bool()])
    settings: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "num_beams": 2, "pad_token_id": 0}
    written = student.generate(ids, attention_mask=mask, **settings)
    assert torch.equal(written, source.generate(ids, attention_mask=mask, **settings))


@torch.no_grad()
def test_documents_of_a_packed_row_do_not_see_each_other() -> None:
    """This holds with a cache, which holds the last document's state, and without."""
    source, ids = small("qwen3_next"), tokens(1, LENGTH)
    student = composer.build("softmax", source)
    places = torch.cat((torch.arange(5), torch.arange(3), torch.arange(LENGTH - 8)))[None]
    expected = [source(input_ids=part, use_cache=False).logits for part in ids.split((5, 3, LENGTH - 8), dim=1)]
    near(student(ids, position_ids=places, use_cache=False).logits, torch.cat(expected, dim=1))
    answer = student(ids[:, :12], position_ids=places[:, :12], use_cache=True)
    answer = student(ids[:, 12:], position_ids=places[:, 12:], past_key_values=answer.past_key_values, use_cache=True)
    near(answer.logits, expected[2][:, 4:])


def test_gradients_reach_the_layers_below() -> None:
    """Recomputed layers know the tokens of the call, so gradients are right with gradient checkpointing."""
    student = composer.build("lolcats", small("qwen3_next"), overrides=["recipe=null"]).train()
    places = torch.cat((torch.arange(6), torch.arange(LENGTH - 6))).expand(2, -1)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            student.gradient_checkpointing_enable()
        student.zero_grad()
        student(tokens(2, LENGTH), position_ids=places, labels=tokens(2, LENGTH), use_cache=False).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in student.named_parameters()})
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients[0].values())
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradient, gradients[0][name], rtol=1e-4, atol=1e-6, msg=name)


@torch.no_grad()
def test_a_cache_of_a_call_that_was_cut_short_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    student: Any = composer.build("softmax", small("qwen3_next"))
    cache = student(tokens(2, LENGTH)[:, :8], use_cache=True).past_key_values

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(student.model.layers[2], "forward", stop)
        with pytest.raises(KeyboardInterrupt):
            student(tokens(2, LENGTH)[:, 8:], past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match="was interrupted"):
        student(tokens(2, LENGTH)[:, 8:], past_key_values=cache, use_cache=True)


def test_rules_name_layers_with_attention() -> None:
    """`all` and ranges skip layers without attention. The number of such a layer is rejected."""
    source = small("qwen3_next")
    rule = {"compose": 1, "name": "some", "head": {"position": "rope", "memory": ["full"]}, "layers": [{"at": 1, "use": "source"}]}
    for at in (1, [1], -2, "all", "1:", "::1"):
        student: Any = composer.build(rule | {"layers": [{"at": at, "use": "source"}]}, source)
        assert [bool(groups) for groups in student.config.read_spec().layers] == [False, True, False]
    for at in (0, [0, 1], "2:"):
        with pytest.raises(
            (SpecError, GraphError, BuildError), match="has no attention, so it has no heads to replace.* are 1: choose"
        ):
            composer.build(rule | {"layers": [{"at": at, "use": "source"}]}, source)


def test_a_state_is_not_kept_in_a_file() -> None:
    student = composer.build("lolcats", small("lfm2"), overrides=["recipe=null"])
    with pytest.raises(ComposerError, match="keep states of another kind"):
        declare_states(student, 1)
