"""Models of generated classes can be pickled like other transformers models."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

import composer
from composer.model.modeling import composed_causal
from tests.composer.hosts.families import small
from tests.composer.model.models import student, tokens
from tests.composer.programs import printed_behind_composer


def models() -> dict[str, Any]:
    return {"own": student("lolcats"), "qwen3": composer.build("lola", small("qwen3")).eval()}


@pytest.mark.parametrize("name", ["own", "qwen3"])
@torch.no_grad()
def test_pickled_and_copied_models_have_the_same_logits(name: str) -> None:
    model, ids = models()[name], tokens(2, 9) % 80
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for again in (torch.load(stored, weights_only=False), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(again) is type(model)
        assert torch.equal(again(ids).logits, model(ids).logits)


@torch.no_grad()
def test_pickled_models_load_in_another_process(tmp_path: Path) -> None:
    """Another process that has built no such model loads and saves them."""
    ids, built_models = tokens(2, 9) % 80, models()
    torch.save((built_models, ids, {name: model(ids).logits for name, model in built_models.items()}), tmp_path / "models.pt")
    code = f"""
        import torch
        torch.set_grad_enabled(False)
        models, ids, logits = torch.load({str(tmp_path / "models.pt")!r}, weights_only=False)
        for name, model in models.items():
            assert torch.equal(model(ids).logits, logits[name])
            model.save_pretrained({str(tmp_path)!r} + "/" + name)
            loaded = type(model).from_pretrained({str(tmp_path)!r} + "/" + name, dtype=model.dtype)
            assert torch.equal(loaded(ids).logits, logits[name])
        print(*[type(model).__name__ for model in models.values()])
    """
    assert printed_behind_composer(code) == "ComposedForCausalLM ComposedQwen3ForCausalLM"


class Derived(composed_causal(Qwen3ForCausalLM)):  # pyright: ignore[reportGeneralTypeIssues]
    """A user's subclass."""


def test_subclasses_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(Derived)) is Derived
