"""Specs as users write them equal the papers' formulas over all pairs, and specs with the same meaning give equal models."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import composer
from blocks.flow import Tokens
from composer.model.attention import ComposedAttention, ModelCall
from composer.model.classes import Composed, ComposedForSequenceClassification
from composer.model.hosts import attentions
from tests.checkpoints import logits
from tests.composer.model.models import llama, student, tokens

LENGTH = 40
SMALL = ("head.memory.0.size=4", "head.memory.1.size=5")
ENCODER = ("trunk={width: 32, layers: 2, heads: 4, key_heads: 2, vocabulary: 97, labels: 3}", "head.memory.0.size=12")


def in_pieces(model: torch.nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the logits of 24 tokens in calls of a few tokens and of one token with a cache."""
    pieces, cache = [], None
    for start, end in ((0, 9), (9, 10), (10, 21), (21, 22), (22, 24)):
        with torch.no_grad():
            answer = model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        pieces.append(answer.logits)
    return torch.cat(pieces, 1)


def pad(rows: list[Tensor], before: list[int], width: int) -> tuple[Tensor, Tensor]:
    """Return ids and mask with some columns of padding before each row and the rest after it."""
    room = [(count, width - count - len(row)) for row, count in zip(rows, before, strict=True)]
    ids = torch.stack([functional.pad(row, sides, value=9) for row, sides in zip(rows, room, strict=True)])
    return ids, torch.stack([functional.pad(torch.ones_like(row), sides) for row, sides in zip(rows, room, strict=True)])


class Layer:
    """The middle layer of a model, and the inputs of its formula: query, key and value ``B H T D``, rotated, one per query head."""

    def __init__(self, model: Composed, batch: int = 2) -> None:
        attention = model.model.layers[1].self_attn
        assert isinstance(attention, ComposedAttention)
        self.attention: Any = attention
        self.hidden = torch.randn(batch, LENGTH, 64, dtype=torch.float64)
        self.query, self.key, self.value = self.projected(self.hidden)
        place = torch.arange(LENGTH)
        self.back = place[:, None] - place
        self.chunks = place[:, None] // 4 - place // 4

    def projected(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project as Llama does: 4 query heads on 2 key heads, and rope from transformers' tables."""
        cos, sin = llama().model.rotary_emb(self.hidden, torch.arange(LENGTH)[None])
        projections = (self.attention.q_proj, self.attention.k_proj, self.attention.v_proj)
        query, key, value = (projection(inputs).unflatten(2, (-1, 16)).transpose(1, 2) for projection in projections)
        query, key = (states * cos + torch.cat((-states[..., 8:], states[..., :8]), -1) * sin for states in (query, key))
        return query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)

    def parameter(self, name: str) -> Tensor:
        """Return a parameter of the head by its name in the checkpoint."""
        return self.attention.composed.get_parameter(f"head.{name}").detach()

    def products(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return φ(q)·φ(k) of all pairs after a matrix each for queries and keys."""
        mapped = (
            torch.einsum("bhtd,hdf->bhtf", states, self.parameter(f"feature_map.{side}_weight"))
            for states, side in ((self.query, "query"), (self.key, "key"))
        )
        query, key = (function(states) for states in mapped)
        return query @ key.mT

    def exponents(self) -> Tensor:
        return self.query @ self.key.mT / 4

    def output(self, weights: Tensor) -> Tensor:
        """Apply the weights of all pairs, in two shares or one, to their values."""
        return self.attention.o_proj((weights @ self.value).transpose(1, 2).flatten(2))

    def answer(self) -> Tensor:
        """Return the model's output."""
        tokens = Tokens(torch.arange(LENGTH).expand(len(self.hidden), -1))
        return self.attention.attention_output(self.hidden, ModelCall(tokens, "torch"), {})


def hedgehog(mapped: Tensor) -> Tensor:
    return torch.cat((mapped.softmax(-1), (-mapped).softmax(-1)), -1).clamp(min=1e-12)


def shares(weights: Tensor) -> Tensor:
    """Divide by the sum, with 0 for an empty sum."""
    total = weights.sum(-1, keepdim=True)
    return weights / total.where(total > 0, 1.0)


@pytest.mark.parametrize("shape", ["sliding", "terraced"])
@torch.no_grad()
def test_lolcats_equals_the_formula_of_its_code(shape: str) -> None:
    """The window's exponentials subtract the row maximum and are multiplied by σ(w). The linear term is not rescaled."""
    model = student("lolcats-terraced", "head.memory.0.size=4", f"head.memory.0.shape={shape}")
    layer = Layer(model)
    near = layer.back < 4 if shape == "sliding" else layer.chunks <= 1
    exponents = layer.exponents().masked_fill(~near | (layer.back < 0), -1e10)
    exponentials = (exponents - exponents.amax(-1, keepdim=True)).exp() * layer.parameter("window.weight").sigmoid()[:, None, None]
    linear = layer.products(hedgehog).masked_fill(near | (layer.back < 0), 0)
    wanted = layer.output((exponentials + linear) / (exponentials.sum(-1, keepdim=True) + linear.sum(-1, keepdim=True)))
    torch.testing.assert_close(layer.answer(), wanted, rtol=1e-6, atol=1e-6)
    exact = Layer(student("lolcats-terraced", "head.memory.0.size=4", f"head.memory.0.shape={shape}", "head.read.scale=exact"))
    exact.hidden = layer.hidden
    assert (exact.answer() - wanted).abs().max() > 1e-2, "the textbook's formula is another one"


@torch.no_grad()
def test_lolcats_workshop_equals_equations_6_and_8_of_its_paper() -> None:
    """Equation 8: σ times the window's softmax plus 1 - σ times linear attention to all earlier pairs, with exp(xW + x)
    (equation 6).
    """
    layer = Layer(student("lolcats-workshop"))
    sigma = layer.parameter("window.weight").sigmoid()[:, None, None]
    window = (layer.back >= 0) & (layer.back < 16)
    near = layer.exponents().masked_fill(~window, -math.inf).softmax(-1)
    query, key = (
        (torch.einsum("bhtd,hdf->bhtf", states, layer.parameter(f"feature_map.{side}_weight")) + states).exp()
        for states, side in ((layer.query, "query"), (layer.key, "key"))
    )
    far = shares((query @ key.mT).masked_fill(layer.back < 16, 0))
    torch.testing.assert_close(layer.answer(), layer.output(sigma * near + (1 - sigma) * far), rtol=0, atol=1e-10)


@pytest.mark.parametrize("read", ["shared", "mixture"])
@torch.no_grad()
def test_a_weight_per_token_scales_the_window(read: str) -> None:
    """σ(w·x_t) scales the window's exponentials in one denominator, or is the share of the window beside 1 - σ for the state."""
    head = {"feature_map": "elu", "memory": [{"kind": "window", "size": 4, "weight": "token"}, "state"], "read": read}
    layer = Layer(composer.build({"compose": 1, "name": "x", "head": head}, llama()))
    sigma = (layer.hidden @ layer.parameter("window.weight").T).sigmoid().transpose(1, 2)[..., None]
    assert sigma.std() > 0.1
    near = layer.exponents().exp().masked_fill((layer.back < 0) | (layer.back >= 4), 0)
    query, key = (functional.elu(states) + 1 for states in (layer.query, layer.key))
    far = (query @ key.mT).masked_fill(layer.back < 4, 0)
    wanted = shares(sigma * near + far) if read == "shared" else sigma * shares(near) + (1 - sigma) * shares(far)
    torch.testing.assert_close(layer.answer(), layer.output(wanted), rtol=0, atol=1e-10)


@pytest.mark.parametrize("read", ["exact", "row_max"])
def test_lola_with_a_cache_of_size_0_equals_lolcats_with_the_same_weights(read: str) -> None:
    """Both are the shipped specs except for the read, on texts of more than three chunks of 64."""
    lolcats, ids = student("lolcats-terraced", f"head.read.scale={read}"), tokens(2, 210)
    lola = composer.build("lola", llama(), overrides=["head.memory.1.size=0", f"head.read={{kind: shared, scale: {read}}}"])
    lola.load_state_dict(lolcats.state_dict(), strict=True)
    torch.testing.assert_close(logits(lola, ids), logits(lolcats, ids), rtol=0, atol=1e-9)
    cached = composer.build("lola", llama(), overrides=[f"head.read={{kind: shared, scale: {read}}}"])
    cached.load_state_dict(lolcats.state_dict(), strict=True)
    result = logits(cached, ids)
    torch.testing.assert_close(result[:, :128], logits(lolcats, ids)[:, :128], rtol=0, atol=1e-9)
    assert (result[:, 128:] - logits(lolcats, ids)[:, 128:]).abs().max() > 1e-3, "a cache of 64 makes a difference once it is used"


def test_lola_with_a_cache_for_all_pairs_equals_its_source() -> None:
    source, ids = llama(), tokens(2, 60)
    built = student("lola", "head.memory.0.size=4", "head.memory.1.size=60", source=source)
    torch.testing.assert_close(logits(built, ids), logits(source, ids), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("keep", "shape"), [("self_recall", "sliding"), ("squared_error", "terraced"), ("random", "sliding")])
def test_padding_and_split_calls_do_not_change_lola(keep: str, shape: str) -> None:
    """Rows of 20, 24 and 8 tokens have padding before or after them, whole and in pieces with a cache."""
    source = llama(num_hidden_layers=2)
    model = student("lola", *SMALL, f"head.memory.1.keep={keep}", f"head.memory.0.shape={shape}", source=source)
    rows = [tokens(1, length, seed=length)[0] for length in (20, 24, 8)]
    alone = [logits(model, row[None])[0] for row in rows]
    for left in (True, False):
        ids, mask = pad(rows, [24 - len(row) if left else 0 for row in rows], 24)
        actual = [logits(model, ids, attention_mask=mask), in_pieces(model, ids, mask)]
        for row, real, wanted in zip(range(3), mask.bool(), alone, strict=True):
            for answers in actual:
                torch.testing.assert_close(answers[row, real], wanted, rtol=0, atol=1e-10)


def mix(hidden: Tensor, filters: Tensor, norm: Tensor) -> Tensor:
    """Apply three taps over the last tokens, then RMSNorm."""
    padded = functional.pad(hidden, (0, 0, 2, 0))
    taps = sum(filters[:, tap] * padded[:, tap : tap + LENGTH] for tap in range(3))
    assert isinstance(taps, Tensor)
    return norm * taps / (taps.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@torch.no_grad()
def test_queries_and_keys_are_projected_from_mixed_inputs() -> None:
    """Values are projected from the unmixed hidden state."""
    spec = "rglru-window"
    layer = Layer(student(spec, "head.mix_input={kind: conv, kernel: 3, feeds: qk}", "head.memory.0.size=5"))
    inputs = mix(layer.hidden, layer.parameter("mix_input.weight"), layer.parameter("mix_input.norm"))
    layer.query, layer.key, _ = layer.projected(inputs)
    window = (layer.back >= 0) & (layer.back < 5)
    wanted = layer.output(layer.exponents().masked_fill(~window, -math.inf).softmax(-1))
    torch.testing.assert_close(layer.answer(), wanted, rtol=0, atol=1e-10)


@torch.no_grad()
def test_only_the_group_with_a_mixer_has_mixed_inputs() -> None:
    near = {"mix_input": {"kind": "conv", "kernel": 3, "feeds": "qk"}, "memory": [{"kind": "window", "size": 5, "evict": "drop"}]}
    halves = [{"head": "exact", "heads": "1/2"}, {"head": "near", "heads": "1/2"}]
    spec = {"compose": 1, "name": "x", "heads": {"exact": {"memory": ["full"]}, "near": near}}
    layer = Layer(composer.build(spec | {"layers": [{"at": "all", "use": halves}]}, llama()))
    filters, norm = (layer.attention.composed.get_parameter(f"near.mix_input.{name}") for name in ("weight", "norm"))
    for parameter in (filters, norm):
        parameter += 0.3 * torch.randn_like(parameter)
    query, key, _ = layer.projected(mix(layer.hidden, filters, norm))
    layer.query[:, 2:], layer.key[:, 2:] = query[:, 2:], key[:, 2:]
    seen = torch.stack([layer.back >= 0] * 2 + [(layer.back >= 0) & (layer.back < 5)] * 2)
    wanted = layer.output(layer.exponents().masked_fill(~seen, -math.inf).softmax(-1))
    torch.testing.assert_close(layer.answer(), wanted, rtol=0, atol=1e-10)


def test_mixed_inputs_in_split_calls_equal_one_call() -> None:
    model, ids = student("rglru-window", "head.mix_input.blocks=4", "head.memory.0.size=6"), tokens(2, 24)
    torch.testing.assert_close(in_pieces(model, ids, torch.ones_like(ids)), logits(model, ids), rtol=0, atol=1e-10)


@torch.no_grad()
def test_threads_mix_their_inputs_independently() -> None:
    """Another thread runs the model between the projections of queries and of keys."""
    model, ids = student("rglru-window", "head.mix_input.blocks=4", "head.memory.0.size=6"), tokens(2, 24)
    expected, runs = logits(model, ids), list[Tensor]()
    (_, attention), *_ = attentions(model)

    def meanwhile(*_: object) -> None:
        handle.remove()
        thread = threading.Thread(target=lambda: runs.append(logits(model, ids[:, :9])))
        thread.start()
        thread.join()

    handle = attention.get_submodule("q_proj").register_forward_hook(meanwhile)
    torch.testing.assert_close(logits(model, ids), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(runs[0], expected[:, :9], rtol=0, atol=1e-10)


def classifier() -> ComposedForSequenceClassification:
    """Bidirectional Latte on a small trunk with weights large enough for different outputs."""
    model = composer.build("latte-bidirectional", fresh=True, overrides=ENCODER, dtype="float64")
    assert isinstance(model, ComposedForSequenceClassification)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


def test_padding_changes_neither_logits_nor_gradients_of_a_bidirectional_classifier() -> None:
    model, rows, labels = classifier(), [tokens(1, length, seed=length)[0] for length in (4, 12, 9)], torch.tensor([0, 2, 1])
    alone = torch.cat([model(row[None]).logits for row in rows])
    loss = functional.cross_entropy(alone, labels)
    # A head of latents alone asks neither queries nor keys.
    used = {name: parameter for name, parameter in model.named_parameters() if "q_proj" not in name and "k_proj" not in name}
    wanted = torch.autograd.grad(loss, [*used.values()])
    assert all(gradient.any() for gradient in wanted)
    for before in ([0, 0, 0], [3, 3, 3], [11, 3, 6]):
        ids, mask = pad(rows, before, 15)
        model.zero_grad()
        answer = model(ids, attention_mask=mask, labels=labels)
        torch.testing.assert_close(answer.logits, alone, rtol=0, atol=1e-10)
        torch.testing.assert_close(answer.loss, loss, rtol=0, atol=1e-10)
        answer.loss.backward()
        for parameter, gradient in zip(used.values(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-10)


def test_a_bidirectional_classifier_depends_on_all_tokens_but_not_on_their_order() -> None:
    """Without positions the order of tokens does not matter, and the first tokens see the last."""
    model, ids = classifier(), tokens(1, 12)
    result = logits(model, ids)
    torch.testing.assert_close(logits(model, ids.flip(1)), result, rtol=0, atol=1e-10)
    with torch.no_grad():
        states = [model.model(text).last_hidden_state[:, 0] for text in (ids, ids[:, :11])]
    assert (states[0] - states[1]).abs().max() > 1e-3
