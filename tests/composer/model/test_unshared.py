"""Students with keys and values per query head are equal to their sources at the start and then learn as copies of the
projections do. They are built, streamed, trained, saved and loaded on every family.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import composer
from composer.spec.explain import explain_resolved
from composer.spec.loading import load_spec
from composer.spec.resolve import resolve
from tests.composer.hosts.families import LATER, PASSED, UNLIKE, skip_before, small
from tests.composer.hosts.test_families import near
from tests.composer.model.models import llama
from tests.composer.training.runs import RECIPE, SPEC, make_student, make_teacher, run, write_texts
from tests.composer.training.streams import STREAM, same
from tests.composer.weights.students import weights
from tests.covers import some
from tests.laws.cases import SMALL

OWN = "head.unshare=copies"
UNSHARED: dict[str, Any] = {**SPEC, "head": {**SPEC["head"], "unshare": "copies"}}


def ids(seed: int = 1, length: int = 23) -> torch.Tensor:
    return torch.randint(3, 90, (2, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", some(PASSED, UNLIKE))
@torch.no_grad()
def test_unshared_heads_start_as_their_source_on_every_family(family: str) -> None:
    """This includes families with joint projections. No weight of the trunk is copied."""
    skip_before(LATER.get(family, "0"), f"place for heads in {family}")
    source = small(family)
    near(composer.build("softmax", source, overrides=[OWN])(ids()).logits, source(input_ids=ids(), use_cache=False).logits)


@pytest.mark.parametrize("spec", ["lawcat", "lolcats", "gated-delta", "lola", "forgetting"])
@torch.no_grad()
def test_unshared_heads_start_as_shared_heads(spec: str) -> None:
    source, token_ids = llama(), ids()
    plain, own = composer.build(spec, source), composer.build(spec, source, overrides=[OWN])
    theirs = dict(plain.named_parameters())
    for name, parameter in own.named_parameters():
        if name in theirs and theirs[name].shape == parameter.shape:
            parameter.copy_(theirs[name])
    logits = own(token_ids).logits
    torch.testing.assert_close(logits, plain(token_ids).logits, rtol=1e-8, atol=1e-8)
    stepwise = own(token_ids[:, :9], use_cache=True)
    rest = own(token_ids[:, 9:], past_key_values=stepwise.past_key_values, use_cache=True)
    torch.testing.assert_close(torch.cat((stepwise.logits, rest.logits), dim=1), logits, rtol=1e-8, atol=1e-8)


@torch.no_grad()
def test_trained_unshared_heads_equal_a_model_with_one_key_head_per_query_head() -> None:
    """A model with one key head per query head, whose projections are the shared ones plus the differences, has the same logits."""
    source: Any = llama()
    own: Any = composer.build("softmax", source, overrides=[OWN])
    whole: Any = LlamaForCausalLM(LlamaConfig(**{**source.config.to_dict(), "num_key_value_heads": 4})).double().eval()
    held = dict(source.state_dict())
    for layer, attention in enumerate(block.self_attn for block in own.model.layers):
        for name, target in (("key", "k_proj"), ("value", "v_proj")):
            difference = attention.composed.head.unshare.get_parameter(name)
            difference.copy_(0.1 * torch.randn_like(difference))
            full = f"model.layers.{layer}.self_attn.{target}.weight"
            shared = held[full].unflatten(0, (2, -1)).repeat_interleave(2, dim=0)
            held[full] = (shared + difference).flatten(0, 1)
    whole.load_state_dict(held)
    wanted = whole(ids()).logits
    assert not torch.allclose(wanted, source(ids()).logits, atol=1e-2)
    torch.testing.assert_close(own(ids()).logits, wanted, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unshared")
    return make_student(folder / "student", make_teacher(folder / "teacher"), UNSHARED | {"recipe": RECIPE})


def test_trained_unshared_parameters_are_saved_and_loaded(student: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.jsonl")
    report = run(student, tmp_path / "out", texts, "recipe.transfer.start=calibrated", merge=True)
    assert [outcome.stage for outcome in report.stages] == ["transfer", "finetune"]
    before, after = weights(student), weights(tmp_path / "out")
    moved = [name for name in after if ".unshare." in name and not torch.equal(before[name], after[name])]
    assert len(moved) == 4
    trained: Any = composer.load(tmp_path / "out")
    trained.save_pretrained(tmp_path / "again")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        assert torch.equal(loaded(ids() % 64).logits, trained(ids() % 64).logits)


def test_streamed_transfer_equals_transfer_in_memory(student: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.jsonl")
    run(student, tmp_path / "whole", texts, which="transfer")
    run(student, tmp_path / "out", texts, **STREAM)
    assert same(weights(tmp_path / "whole"), tmp_path / "out")


def test_transfer_with_attention_weights_has_finite_losses(student: Path, tmp_path: Path) -> None:
    """Weights do not depend on the heads of values."""
    report = run(
        student, tmp_path / "out", write_texts(tmp_path / "texts.jsonl"), "recipe.transfer.cross_entropy=1", which="transfer"
    )
    (stage,) = report.stages
    assert all(math.isfinite(loss) for loss in stage.after.values())


@pytest.mark.parametrize(("named", "count"), [("[k]", 1), ("[v]", 1), ("[k, v]", 2)])
def test_explain_counts_parameters_operations_and_state_of_unshared_heads(named: str, count: int) -> None:
    """Parameters are H · D · C for each, with their operations, and a state per query head, here twice the source's cache."""
    overrides = ["head.position=none", f"head.unshare={{kind: copies, inputs: {named}}}"]
    plain, own = (explain_resolved(resolve(load_spec("softmax", overrides[:most]), SMALL), sequence=64) for most in (1, 2))
    size = 4 * 8 * 24 * count
    assert own.fresh_parameters - plain.fresh_parameters == 3 * size
    assert own.groups[0].decode_flops_per_token == (plain.groups[0].decode_flops_per_token or 0) + 2 * size
    assert own.groups[0].state_bytes - plain.groups[0].state_bytes == plain.groups[0].kv_cache_bytes
    assert own.kv_cache_bytes == plain.kv_cache_bytes
