"""Packed documents are separate for each of transformers' and TRL's arguments, and contradicting arguments are rejected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DataCollatorWithFlattening

import composer
from tests.composer.hosts.families import skip_before, small
from tests.composer.model.models import student, tokens

SPECS = {"softmax": (), "lolcats": ("head.memory.0.size=5",), "gla": (), "mamba2": ()}
COLLATORS: dict[str, dict[str, Any]] = {
    "positions": {},
    "bounds": {"return_flash_attn_kwargs": True},
    "bounds alone": {"return_flash_attn_kwargs": True, "return_position_ids": False},
    "numbers alone": {"return_seq_idx": True, "return_position_ids": False},
    "all": {"return_flash_attn_kwargs": True, "return_seq_idx": True},
}
LENGTHS = (5, 1, 17)


def documents() -> list[Tensor]:
    return [tokens(1, length, seed=length) for length in LENGTHS]


def collate(**options: Any) -> dict[str, Any]:
    """Return the documents packed into one row by transformers."""
    return DataCollatorWithFlattening(**options)([{"input_ids": document[0].tolist()} for document in documents()])


@torch.no_grad()
@pytest.mark.parametrize("how", COLLATORS)
@pytest.mark.parametrize("spec", SPECS)
def test_collated_documents_have_the_logits_of_single_documents(spec: str, how: str) -> None:
    model = student(spec, *SPECS[spec])
    alone = torch.cat([model(document).logits for document in documents()], 1)
    torch.testing.assert_close(model(**collate(**COLLATORS[how])).logits, alone, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3", "gpt2", "mixtral", "gemma2"])
def test_collated_documents_are_independent_on_other_hosts(family: str) -> None:
    model: Any = composer.build("softmax", small(family))
    alone = torch.cat([model(document.clamp(max=90)).logits for document in documents()], 1)
    batch = collate(**COLLATORS["all"])
    batch["input_ids"] = batch["input_ids"].clamp(max=90)
    torch.testing.assert_close(model(**batch).logits, alone, rtol=0, atol=1e-4)


@torch.no_grad()
def test_positions_may_start_at_1() -> None:
    """A collator may count positions from 1. The documents are the same."""
    skip_before("5.16", "collator that counts from 1")
    model, batch = student("lolcats"), collate(position_ids_start=1)
    alone = [model(document, position_ids=torch.arange(1, document.shape[1] + 1)[None]).logits for document in documents()]
    torch.testing.assert_close(model(**batch).logits, torch.cat(alone, 1), rtol=0, atol=1e-10)


def test_gradients_of_collated_documents_equal_those_of_cu_seqlens() -> None:
    model, batch = student("lolcats", "head.memory.0.size=5").train(), collate(**COLLATORS["all"])
    bounds = {"input_ids": batch["input_ids"], "labels": batch["labels"], "cu_seqlens": batch["cu_seq_lens_q"]}
    gradients_of = []
    for packing in (batch, bounds):
        model.zero_grad()
        model(**packing).loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        gradients_of.append({name: gradient.clone() for name, gradient in gradients.items()})
    assert gradients_of[0].keys() == gradients_of[1].keys()
    assert all(torch.equal(gradient, gradients_of[1][name]) for name, gradient in gradients_of[0].items())


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"position_ids": torch.arange(23)[None]}, "token 5 of row 0 begins a document, and by position_ids it does not"),
        ({"cu_seq_lens_k": torch.tensor([0, 6, 23])}, "cu_seq_lens_q and cu_seq_lens_k contradict each other"),
        ({"seq_idx": torch.zeros(1, 23)}, "cu_seq_lens_q and seq_idx contradict each other"),
        ({"max_length_q": 16}, "max_length_q is 16, and the longest document has 17 tokens"),
        ({"cu_seq_lens_q": torch.tensor([0, 5, 6])}, "cu_seq_lens_q must rise from 0 to the length of one packed row"),
    ],
)
def test_contradictory_arguments_are_refused(changed: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        student("lolcats")(**collate(**COLLATORS["all"]) | changed)
