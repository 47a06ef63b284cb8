"""Groups of heads by number equal consecutive groups on a source whose heads are in that order, in every kind of call."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaForCausalLM

import composer
from composer.model.head import anatomy
from composer.model.heads import groups_of
from composer.model.hosts import attentions
from tests.checkpoints import logits
from tests.composer.exporting.models import of_file, randomised
from tests.composer.hosts.families import small
from tests.composer.model.models import llama, moved, tokens
from tests.composer.vllm.engine import serve

pytestmark = pytest.mark.long

KEY_HEADS, LAYERS, LENGTH = 4, 2, 24
HEADS: dict[str, dict[str, Any]] = {
    "exact": {"position": "none", "memory": ["full"]},
    "lolcats": {"feature_map": "hedgehog", "memory": [{"kind": "window", "size": 4, "weight": "learned"}, "state"]},
    "lawcat": {"conv": "causal", "feature_map": "hedgehog", "memory": [{"kind": "state", "gate": {"kind": "channel", "rank": 2}}]},
    "mixed": {"mix_input": {"kind": "conv", "feeds": "qk"}, "feature_map": "elu", "memory": ["state"]},
    "cached": {
        "feature_map": "elu",
        "memory": [{"kind": "window", "size": 4}, {"kind": "sparse", "size": 3, "keep": "recent"}, "state"],
    },
}
NAMES = ["source", *HEADS]
SHARED = {"num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": KEY_HEADS, "head_dim": 8}
SINGLE = SHARED | {"num_attention_heads": 4}
OWNERS = st.lists(st.lists(st.sampled_from(NAMES), min_size=KEY_HEADS, max_size=KEY_HEADS), min_size=LAYERS, max_size=LAYERS)
"""By layer, the head of each key head."""
SEARCHING = getattr(settings.default, "max_examples", 0) >= 200
FEW, FEWEST = (settings(max_examples=200 if SEARCHING else count) for count in (4, 1))


def by_number(owners: list[list[str]], order: Any = lambda items: items) -> dict[str, Any]:
    """Return a spec whose groups list key heads by number. order: rearranges the list of groups, and the numbers of each."""
    groups = [
        [(name, [at for at, owner in enumerate(layer) if owner == name]) for name in dict.fromkeys(layer)] for layer in owners
    ]
    return spec_of([[{"head": name, "heads": order(numbers)} for name, numbers in order(layer)] for layer in groups])


def spec_of(layers: list[list[dict[str, Any]]]) -> dict[str, Any]:
    used = {group["head"] for layer in layers for group in layer}
    rules = [{"at": layer, "use": groups} for layer, groups in enumerate(layers)]
    return {
        "compose": 1,
        "name": "numbered",
        "heads": {name: head for name, head in HEADS.items() if name in used},
        "layers": rules,
    }


def reorder(owners: list[list[str]], sizes: dict[str, int]) -> tuple[LlamaForCausalLM, dict[str, Any]]:
    """Return the source with the heads of each group side by side, and the spec that counts them."""
    source, per_key, layers = llama(**sizes), sizes["num_attention_heads"] // KEY_HEADS, []
    for block, layer in zip(source.model.layers, owners, strict=True):
        names = list(dict.fromkeys(layer))
        keys = torch.tensor([at for name in names for at, owner in enumerate(layer) if owner == name])
        queries = (keys[:, None] * per_key + torch.arange(per_key)).flatten()
        attention: Any = block.self_attn
        with torch.no_grad():
            for projection, order in ((attention.q_proj, queries), (attention.k_proj, keys), (attention.v_proj, keys)):
                projection.weight.copy_(projection.weight.unflatten(0, (-1, 8))[order].flatten(0, 1))
            attention.o_proj.weight.copy_(attention.o_proj.weight.unflatten(1, (-1, 8))[:, queries].flatten(1))
        layers.append([{"head": name, "heads": layer.count(name) * per_key} for name in names])
    return source, spec_of(layers)


def assert_near(actual: Tensor, wanted: Tensor, within: float = 1e-9) -> None:
    torch.testing.assert_close(actual, wanted, rtol=0, atol=within * max(1.0, float(wanted.abs().max())))


def in_calls(model: Any, ids: Tensor, bounds: tuple[int, ...]) -> Tensor:
    cache, results = None, []
    for start, end in zip((0, *bounds), (*bounds, ids.shape[1]), strict=True):
        answer = model(ids[:, start:end], past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        results.append(answer.logits)
    return torch.cat(results, 1)


def check_calls(model: Any, ids: Tensor, within: float = 1e-9) -> Tensor:
    """Check that whole = split = decode = each row alone = padded on the left. Returns the logits of the whole."""
    whole, (rows, length) = logits(model, ids), ids.shape
    with torch.no_grad():
        assert_near(in_calls(model, ids, (9, 10, 11)), whole, within)
    assert_near(torch.cat([logits(model, row[None]) for row in ids]), whole, within)
    padded = torch.cat((torch.zeros(rows, 3, dtype=torch.int64), ids), 1)
    assert_near(logits(model, padded, attention_mask=(torch.arange(length + 3) >= 3).long().expand(rows, -1))[:, 3:], whole, within)
    return whole


INTERLEAVED = [["source", "lolcats", "source", "lawcat"], ["cached", "mixed", "cached", "mixed"]]
KEPT = [["source"] * KEY_HEADS] * LAYERS


@FEW
@example(INTERLEAVED, Random(0), SHARED)
@example(KEPT, Random(0), SHARED)
@given(OWNERS, st.randoms(use_true_random=False), st.sampled_from([SHARED, SINGLE]))
def test_groups_by_number_equal_consecutive_groups_of_a_reordered_source(
    owners: list[list[str]], chance: Any, sizes: dict[str, int]
) -> None:
    """The order of the list means nothing; heads equal those of a reordered source; the laws hold, packed rows included."""
    ids, source = tokens(2, LENGTH), llama(**sizes)
    model = moved(composer.build(by_number(owners), source))
    shuffled = composer.build(by_number(owners, lambda items: chance.sample(items, len(items))), source)
    assert shuffled.config.spec_hash == model.config.spec_hash
    whole = check_calls(model, ids)
    assert torch.equal(logits(moved(shuffled), ids), whole)
    if owners == KEPT:
        assert torch.equal(whole, logits(composer.build("softmax", source), ids))
        assert_near(whole, logits(source, ids))
    other, counted = reorder(owners, sizes)
    assert_near(logits(moved(composer.build(counted, other)), ids), whole)
    position = torch.arange(LENGTH).repeat(2)[None]
    assert_near(logits(model, ids.flatten()[None], position_ids=position), whole.flatten(0, 1)[None])


@FEWEST
@example(INTERLEAVED[:1] + KEPT[:1])
@given(OWNERS.filter(lambda owners: not any("mixed" in layer for layer in owners)))
def test_exported_files_and_served_models_have_the_same_logits(owners: list[list[str]]) -> None:
    model = randomised(composer.build(by_number(owners), llama(**SHARED).float()))
    ids = tokens(2, LENGTH)
    _, own = of_file(model)
    assert_near(check_calls(own, ids, 2e-5), logits(model, ids), 2e-5)
    rows = [ids[0], ids[1, :5]]
    wanted = [logits(model, row[None])[0] for row in rows]
    for served, alone in zip(serve(model, rows), wanted, strict=True):
        assert_near(served, alone, 2e-5)


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma2", "gpt2", "lfm2", "deepseek_v3"])
def test_groups_with_the_attention_of_the_source_equal_the_source(family: str) -> None:
    """A group has the source's rotation, window, sinks and soft cap, and a hybrid's other layers stay."""
    more = {} if family in ("gpt2", "deepseek_v3") else {"num_attention_heads": 8, "num_key_value_heads": 4}
    source: Any = small(family, **more)
    use = [{"head": "source", "heads": [0, 3]}, {"head": "other", "heads": "rest"}]
    spec = {"compose": 1, "name": "same", "heads": {"other": {"memory": ["full"]}}, "layers": [{"at": "all", "use": use}]}
    model = composer.build(spec, source)
    assert any(group.numbers == (0, 3) for layer in model.config.read_spec().layers for group in layer)
    ids = tokens(2, LENGTH).clamp(max=90)
    assert_near(logits(model, ids), logits(source, ids), 1e-5)
    with torch.no_grad():
        assert_near(in_calls(model, ids, (9, 10, 11)), logits(source, ids), 1e-5)


OWNED = [["source", "lawcat", "lawcat", "source"], ["lolcats", "source", "lolcats", "lawcat"]]


def test_a_saved_model_loads_and_keeps_its_groups(tmp_path: Path) -> None:
    model = moved(composer.build(by_number(OWNED), llama(**SHARED)))
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["spec"]["layers"]
    assert stored[0][0] == {"head": "source", "heads": 4, "key_heads": 2, "numbers": [0, 3]}
    loaded = composer.load(tmp_path, dtype="float64")
    assert torch.equal(logits(loaded, tokens(2, LENGTH)), logits(model, tokens(2, LENGTH)))


def test_only_the_same_key_heads_keep_trained_parameters() -> None:
    """The same key heads in another listing keep what was learned; other key heads start anew."""
    student = moved(composer.build(by_number(OWNED), llama(**SHARED)))
    again = composer.build(by_number(OWNED, lambda items: items[::-1]), student)
    name = "model.layers.0.self_attn.composed.lawcat.feature_map.query_weight"
    assert torch.equal(again.get_parameter(name), student.get_parameter(name))
    with pytest.warns(UserWarning, match=r"it was made for heads 2 to 5 of the layer, and these are heads 0 to 1, 4 to 5"):
        other = composer.build(by_number([["lawcat", "source", "lawcat", "source"], OWNED[1]]), student)
    assert not torch.equal(other.get_parameter(name), student.get_parameter(name))


def test_attention_weights_are_in_the_head_order_of_the_layer() -> None:
    source = llama(**SHARED)
    model = composer.build(by_number([["source", "exact", "source", "source"]] * LAYERS), source)
    weights = model(tokens(1, 9), output_attentions=True).attentions[0]
    plain = composer.build("softmax", source)(tokens(1, 9), output_attentions=True).attentions[0]
    same = [0, 1, 4, 5, 6, 7]
    assert_near(weights[:, same], plain[:, same])
    assert not torch.allclose(weights[:, 2:4], plain[:, 2:4])


def test_each_group_has_the_numbers_of_its_query_heads() -> None:
    model = composer.build(by_number(OWNED), llama(**SHARED))
    _, attention = list(attentions(model))[1]
    assert {name: list(anatomy(head).numbers) for name, head in groups_of(attention.composed)} == {
        "lolcats": [0, 1, 4, 5],
        "source": [2, 3],
        "lawcat": [6, 7],
    }
