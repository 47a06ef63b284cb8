"""`output_attentions=True` returns the weights of each head: those of the source for a softmax student, padded or not, and the
implied weights for others, also in inference mode. Heads without attention weights are refused.
"""

from __future__ import annotations

import pytest
import torch

from tests.composer.model.models import llama, student, tokens


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    ids, mask = tokens(3, 20), torch.ones(3, 20, dtype=torch.long)
    mask[1, :6] = 0
    mask[2, :1] = 0
    return ids, mask


@torch.no_grad()
def test_weights_of_softmax_students_equal_those_of_the_source() -> None:
    source = llama().float()  # in float64 its eager attention answers NaN to padding
    source.set_attn_implementation("eager")
    ids, mask = padded()
    wanted = source(ids, attention_mask=mask, output_attentions=True).attentions
    actual = student("softmax", source=source)(ids, attention_mask=mask, output_attentions=True).attentions
    assert len(actual) == len(wanted) == 3
    real = mask.bool()
    for own, theirs in zip(actual, wanted, strict=True):
        assert own.shape == (3, 4, 20, 20)
        rows = real[:, None, :, None].expand_as(own)
        torch.testing.assert_close(own[rows], theirs[rows], rtol=0, atol=1e-5)


@pytest.mark.parametrize("spec", ["lolcats", "lola", "lawcat", "latte-macchiato", "mixed-heads", "latte-bidirectional"])
@torch.no_grad()
def test_implied_weights_ignore_padding_and_sum_to_1(spec: str) -> None:
    model, (ids, mask) = student(spec), padded()
    answer = model(ids, attention_mask=mask, output_attentions=True)
    torch.testing.assert_close(
        getattr(answer, "logits", answer.last_hidden_state if "last_hidden_state" in answer else None),
        (plain := model(ids, attention_mask=mask)).get("logits", plain.get("last_hidden_state")),
    )
    real = mask.bool()
    for weights in answer.attentions:
        assert weights.shape == (3, 4, 20, 20)
        assert not weights.masked_select((~real)[:, None, None].expand_as(weights) & real[:, None, :, None]).any()
        sums = weights.sum(-1)[real[:, None].expand(3, 4, 20)]
        assert ((sums - 1).abs() < 1e-9).float().mean() > 0.9  # an empty memory of a mixture answers 0


@pytest.mark.parametrize("spec", ["softmax", "lola", "forgetting", "latte-bidirectional"])
def test_inference_mode_does_not_change_the_weights(spec: str) -> None:
    """Weights are computed as gradients, which inference mode does not record."""
    model, (ids, mask) = student(spec), padded()
    wanted = model(ids, attention_mask=mask, output_attentions=True).attentions
    with torch.inference_mode():
        actual = model(ids.clone(), attention_mask=mask.clone(), output_attentions=True).attentions
    for own, before in zip(actual, wanted, strict=True):
        torch.testing.assert_close(own, before, rtol=0, atol=0)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_weights_of_delta_memories_of_gated_reads_and_of_calls_with_a_cache_are_refused() -> None:
    with pytest.raises(ValueError, match="`delta` memory returns a sum"):
        student("delta")(tokens(1, 5), output_attentions=True)
    model = student("lawcat")
    cache = model(tokens(1, 5), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="its read adds up outputs"):
        student("nsa")(tokens(1, 5), output_attentions=True)
    with pytest.raises(ValueError, match="in one call, without a cache"):
        model(tokens(1, 5), past_key_values=cache, output_attentions=True)


def test_parameters_require_gradients_after_the_call() -> None:
    model = student("lolcats")
    model(tokens(1, 5), output_attentions=True)
    assert all(parameter.requires_grad for parameter in model.parameters())
