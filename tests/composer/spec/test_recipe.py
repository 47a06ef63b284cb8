"""A recipe states duration, rates and trained parameters, and a contradiction is rejected at its place."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from composer.errors import SpecError
from composer.spec.loading import load_spec
from composer.spec.recipe import Finetune, Recipe, Stage, Transfer
from composer.spec.shipped import shipped_specs


def recipe(name: str) -> dict[str, Any]:
    """Return a shipped spec's recipe with its defaults."""
    loaded = load_spec(name).recipe
    assert loaded is not None
    return loaded.model_dump()


def test_shipped_recipes_equal_those_of_the_papers() -> None:
    """The recipes are those of LoLCATs (by LoLA, by its code, and by the workshop paper), LAWCAT, Macchiato, and Latte from
    nothing.
    """
    lolcats, lawcat, macchiato = (recipe(name) for name in ("lolcats", "lawcat", "latte-macchiato"))
    assert lolcats["sequence"] == 1024
    assert lolcats["transfer"].items() >= {"mse": 1000, "cross_entropy": 0, "lr": 1e-2, "epochs": 2}.items()
    assert lolcats["finetune"].items() >= {"lr": 1e-4, "trunk": False, "epochs": 2}.items()
    assert lolcats["finetune"]["lora"] == {"rank": 8, "alpha": 16, "targets": ("q", "k", "v", "o")}
    for name in ("lolcats", "lolcats-workshop", "lolcats-terraced", "published/lolcats-llama", "ablations/lolcats-transfer:exp"):
        assert recipe(name)["finetune"]["fresh"] is False, "section 3: all but the projections are frozen"
    assert lawcat["finetune"]["fresh"] is True
    assert recipe("lolcats-workshop")["transfer"].items() >= {"mse": 0, "cross_entropy": 1, "lr": 1e-2}.items()
    assert lawcat["transfer"].items() >= {"lr": 0.1, "schedule": "cosine", "epochs": 4}.items()
    assert (macchiato["transfer"], macchiato["finetune"]["lora"], macchiato["finetune"]["fresh"]) == (None, None, True)
    assert recipe("ablations/latte-table-1:latte")["train"].items() >= {"steps": 100_000, "batch": 80, "lr": 6e-4}.items()


@pytest.mark.parametrize(
    ("stage", "fields", "complaint"),
    [
        (Stage, {"lr": 1}, "has no length"),
        (Stage, {"lr": 1, "epochs": 1, "batch": 6, "accumulate": 4}, "splits 6 rows into 4 parts"),
        (Stage, {"lr": 0, "epochs": 1}, "greater than 0"),
        (Stage, {"lr": 1, "epochs": 1, "betas": (0.9, 1.0)}, "less than 1"),
        (Transfer, {"lr": 1, "epochs": 1, "mse": 0}, "mse and cross_entropy are both 0"),
        (Transfer, {"lr": 1, "epochs": 1, "at": "model", "cross_entropy": 1}, "last hidden states alone"),
        (Finetune, {"lr": 1, "epochs": 1, "lora": {}, "trunk": True}, "trains both the trunk and its adapters"),
        (Finetune, {"lr": 1, "epochs": 1, "fresh": False}, "trains nothing"),
        (Finetune, {"lr": 1, "epochs": 1, "lora": {}, "fresh": False, "fresh_lr": 1}, "does not train them"),
        (Finetune, {"lr": 1, "epochs": 1, "next_token": 0}, "next_token and distill are both 0"),
        (Finetune, {"lr": 1, "epochs": 1, "lora": {"targets": []}}, "at least 1 item"),
    ],
)
def test_contradictory_fields_are_refused(stage: type[Stage], fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        stage.model_validate(fields)


def test_invalid_recipes_are_refused_with_their_place() -> None:
    with pytest.raises(SpecError) as caught:
        load_spec("lolcats", ["recipe.finetune.epochs=null"])
    assert "recipe.finetune" in str(caught.value)
    assert "set epochs, steps or tokens" in str(caught.value)


def test_an_empty_recipe_has_no_stages() -> None:
    assert Recipe() == Recipe(data=None, sequence=None, rows="packed", transfer=None, finetune=None, train=None)


def test_the_pro_block_of_the_forgetting_transformer_can_be_configured() -> None:
    """The options in the spec's comment give a sigmoid gate after an RMSNorm, as in its code."""
    (override,) = re.findall(r"--set 'head.output=(.*?)'", shipped_specs()["forgetting"].read_text(encoding="utf-8"))
    head = load_spec("forgetting", ["head.qk_norm=rms", f"head.output={override}"]).head
    assert head is not None
    assert head.output is not None
    assert (
        head.output.model_dump().items()
        >= {"kind": "gated_norm", "activation": "sigmoid", "epsilon": 1e-6, "first": "norm"}.items()
    )
