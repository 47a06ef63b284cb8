"""Students on other hosts behave like models of transformers and PyTorch: compiled, copied, with further outputs, and with
rotations that depend on the length of a call.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from blocks.operation import Kind
from composer.graph.program import HeadInputs
from composer.model.head import Head, anatomy
from composer.model.head_visits import visiting_heads
from composer.model.stepwise import pieces
from tests.composer.hosts.families import skip_before, small, tokens
from tests.composer.programs import printed_behind_composer

pytestmark = pytest.mark.long

COMPILED = """
    import torch
    import composer
    from tests.composer.hosts.families import small

    torch.set_grad_enabled(False)
    model = composer.build({spec!r}, small({family!r}, num_hidden_layers={layers}), overrides=["recipe=null"]).double()
    ids = torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    for given in (dict(use_cache=False), dict(use_cache=False, attention_mask=mask)):
        found, real = compiled(ids, **given).logits, given.get("attention_mask", torch.ones_like(ids)).bool()
        torch.testing.assert_close(found[real], model(ids, **given).logits[real], rtol=1e-9, atol=1e-9)
    caches = [model(ids[:, :9]).past_key_values for _ in range(2)]
    found = compiled(ids[:, 9:10], past_key_values=caches[0]).logits
    torch.testing.assert_close(found, model(ids[:, 9:10], past_key_values=caches[1]).logits, rtol=1e-9, atol=1e-9)
    exported = torch.export.export(model, (ids,), dict(use_cache=False), strict=True).module()
    torch.testing.assert_close(exported(ids, use_cache=False).logits, model(ids, use_cache=False).logits, rtol=1e-9, atol=1e-9)
    print("compared")
"""


@pytest.mark.parametrize(
    ("family", "spec", "layers"), [("gemma2", "softmax", 2), pytest.param("phi3", "lolcats", 1, marks=pytest.mark.full)]
)
def test_prefill_and_decode_are_one_graph(family: str, spec: str, layers: int) -> None:
    """The model, gemma2, has two kinds of layers."""
    assert printed_behind_composer(COMPILED.format(family=family, spec=spec, layers=layers)) == "compared"


@torch.no_grad()
def test_copies_have_a_separate_rotation() -> None:
    """All layers of the copy share one rotation, and the original's may be deleted."""
    model: Any = composer.build("lolcats", small("qwen3"), overrides=["recipe=null"])
    wanted = model(tokens(2, 14)).logits
    other = copy.deepcopy(model)
    assert len({id(layer.self_attn.composed.head._compiled) for layer in other.model.layers}) == 1
    model.to("meta")
    assert torch.equal(other(tokens(2, 14)).logits, wanted)


@torch.no_grad()
def test_router_logits_are_in_the_order_of_the_call() -> None:
    source = small("mixtral")
    student: Any = composer.build("softmax", source)
    ids, mask = tokens(2, 14), torch.ones(2, 14, dtype=torch.int64)
    mask[1, :6] = 0
    options: dict[str, Any] = {"attention_mask": mask, "output_router_logits": True, "use_cache": False}
    call, wanted = student(ids, **options), source(ids, position_ids=(mask.cumsum(1) - 1).clamp(min=0), **options)
    torch.testing.assert_close(call.aux_loss, wanted.aux_loss, rtol=1e-5, atol=1e-5)
    for first, other in zip(call.router_logits, wanted.router_logits, strict=True):
        real = mask.flatten().bool()
        torch.testing.assert_close(first[real], other[real], rtol=1e-4, atol=1e-4)


def test_angles_that_depend_on_the_length_of_a_call_are_those_of_the_whole() -> None:
    """This holds with and without gradients, if other heads process the text in pieces."""
    half, longer = 4, {"max_position_embeddings": 2048, "original_max_position_embeddings": 600}
    rotation = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * half, "long_factor": [4.0] * half}
    source = small("phi3", rope_parameters=rotation | {"factor": 4.0, "original_max_position_embeddings": 600}, **longer)
    student, ids = composer.build("lolcats", source, overrides=["recipe=null"]).double(), tokens(16, 1024)
    whole = student(ids, use_cache=False).logits.detach()
    with torch.no_grad():
        torch.testing.assert_close(student(ids, use_cache=False).logits, whole, rtol=1e-9, atol=1e-9)
    calls: list[tuple[Head, HeadInputs]] = []
    with torch.no_grad(), visiting_heads(student, lambda layer, name, head, inputs: calls.append((head, inputs))):
        student(ids[:1], use_cache=False)
    assert calls
    for head, inputs in calls:
        outputs = [
            piece.outputs_of(Kind.OUTPUT, anatomy(head).graph).values() for piece in pieces(head, inputs, "torch", bounds=(300,))
        ]
        empty = head.empty_state(1, inputs.value.dtype, inputs.value.device)
        with torch.no_grad():
            answer, _ = head(inputs, empty, "torch")
        torch.testing.assert_close(torch.cat([only for (only,) in outputs], dim=1), answer, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_heads_whose_outputs_depend_on_splits_are_warned_about(tmp_path: Path) -> None:
    """The source's own outputs depend on splits, too, beyond the length of its short factors. `build`, `explain` and `check`
    warn.
    """
    rotation = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0}
    source: Any = small("phi3", rope_parameters=rotation, original_max_position_embeddings=20)
    source.save_pretrained(tmp_path / "source")
    plan = composer.build_folder("lolcats", tmp_path / "source", tmp_path / "built", dry_run=True).plan
    (note,) = (note for note in plan.notes if "longrope" in note)
    assert "20 tokens" in note
    assert composer.explain("lolcats", tmp_path / "source").notes == (note,)
    checked = composer.check(["lolcats", "softmax"], tmp_path / "source")
    assert [check.notes for check in checked.checks] == [(note,), ()]
    assert f"Note: {note}" in checked.summary()

    student, ids = composer.build("lolcats", source, overrides=["recipe=null"]), tokens(1, 30)
    for model in (source, student):
        whole, first = model(ids, use_cache=False).logits, model(ids[:, :15], use_cache=True)
        second = model(ids[:, 15:], past_key_values=first.past_key_values, use_cache=True).logits
        assert (second - whole[:, 15:]).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotations_by_length_equal_those_of_the_source(kind: str) -> None:
    """This holds also after a long call of the source in memory, and for rows of different lengths."""
    factors = {"short_factor": [1.5] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 20}
    rotation = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0} | (factors if kind == "longrope" else {})
    source = small("llama", rope_parameters=rotation, max_position_embeddings=20)
    if kind == "dynamic":
        skip_before("5.14", "source whose short call after a long one is as before it")
    source(tokens(2, 60), use_cache=False)
    student = composer.build("softmax", source)
    for length in (15, 40, 30, 15, 60):
        ids, mask = tokens(2, length), torch.ones(2, length, dtype=torch.int64)
        mask[0, : length // 2] = 0
        places = (mask.cumsum(1) - 1).clamp(min=0)
        expected = source(ids, attention_mask=mask, position_ids=places, use_cache=False).logits
        actual = student(ids, attention_mask=mask, use_cache=False).logits
        torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_window_of_the_source_counts_tokens_and_not_positions(backend: str) -> None:
    """The window equals the source's in one call, in two calls, and token by token."""
    source, ids = small("mistral"), tokens(2, 14)
    position = torch.cat((torch.arange(5), torch.arange(40, 49))).expand(2, -1)
    wanted = source(ids, position_ids=position, attention_mask=torch.ones_like(ids), use_cache=False).logits
    student: Any = composer.build("softmax", source)
    student.set_backend(backend)
    assert source.config.sliding_window == 8
    for bounds in ((0, 14), (0, 6, 14), (0, 7, *range(8, 15))):
        cache, call = None, []
        for start, end in pairwise(bounds):
            answer = student(ids[:, start:end], position_ids=position[:, start:end], past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
            call.append(answer.logits)
        torch.testing.assert_close(torch.cat(call, dim=1), wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_students_return_tuples_if_their_config_asks_for_them() -> None:
    student: Any = composer.build("softmax", small("qwen3"))
    wanted = student(tokens(2, 14)).logits
    student.config.return_dict = student.model.config.return_dict = False
    assert torch.equal(student(tokens(2, 14))[0], wanted)
