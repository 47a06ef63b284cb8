"""A student accepts the arguments of transformers' Llama, and computes losses and outputs as Llama does."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import composer
from tests.composer.hosts.families import small
from tests.composer.model.models import llama, student, tokens

IDS = tokens(2, 12)
LABELS = torch.where(torch.arange(12) % 3 == 1, -100, tokens(2, 12, seed=5))
CALLS: dict[str, Callable[[Any], Any]] = {
    "labels": lambda model: model(IDS, labels=LABELS).loss,
    "labels that are shifted already": lambda model: model(IDS, labels=IDS, shift_labels=LABELS).loss,
    "labels of the last tokens": lambda model: model(IDS, labels=LABELS[:, -4:], logits_to_keep=4).loss,
    "a number of items": lambda model: model(IDS, labels=LABELS, num_items_in_batch=7).loss,
    "a tensor of it": lambda model: model(IDS, labels=LABELS, num_items_in_batch=torch.tensor(7)).loss,
    "logits of some tokens": lambda model: model(IDS, logits_to_keep=torch.tensor([1, 5])).logits,
    "positions of the cache": lambda model: model(IDS, cache_position=torch.arange(12)).logits,
    "embeddings": lambda model: model(inputs_embeds=model.get_input_embeddings()(IDS)).logits,
    "a tuple": lambda model: model(IDS, return_dict=False)[0],
    "a tuple with a loss": lambda model: torch.stack(model(IDS, labels=LABELS, return_dict=False, use_cache=False)[:1]),
    "a tuple of the base": lambda model: model.model(IDS, return_dict=False)[0],
    "more tokens": lambda model: resize(model)(IDS, labels=LABELS).loss,
}


def resize(model: Any) -> Any:
    """Return a copy with more embeddings, which start as the mean of the others."""
    larger = copy.deepcopy(model)
    torch.manual_seed(4)
    larger.resize_token_embeddings(120)
    assert (
        larger.config.vocab_size == len(larger.get_input_embeddings().weight) == len(larger.get_output_embeddings().weight) == 120
    )
    return larger


@torch.no_grad()
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("host", ["own", "qwen3"])
def test_a_softmax_student_equals_its_source_for_every_argument(host: str, call: str) -> None:
    source: Any = llama() if host == "own" else small(host).double()
    answer, wanted = CALLS[call](composer.build("softmax", source)), CALLS[call](source)
    torch.testing.assert_close(answer, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_output_tuples_have_the_elements_of_llamas() -> None:
    actual, wanted = (
        [type(value).__name__ for value in model(IDS, labels=IDS, output_hidden_states=True, use_cache=False, return_dict=False)]
        for model in (student("lolcats"), llama())
    )
    assert actual == wanted


def test_forward_has_the_arguments_of_llama() -> None:
    """Trainer keeps the columns that ``forward`` names, ``generate`` the masks, and PEFT reads the signature, too."""
    own, llamas = (inspect.signature(model.forward).parameters for model in (student("softmax"), LlamaForCausalLM))
    assert list(own) == [name for name in llamas if name != "self"]


@torch.no_grad()
@pytest.mark.parametrize("spec", ["softmax", "lolcats", "gla", "mamba2"])
def test_models_on_the_meta_device_compute_shapes(spec: str) -> None:
    """A model on the device ``meta`` computes shapes."""
    model = student(spec).to("meta")
    ids, mask = (tensor.to("meta") for tensor in (IDS, torch.ones_like(IDS)))
    assert model(ids).logits.shape == (2, 12, 97)
    assert model(ids, attention_mask=mask, labels=ids).loss.shape == ()
    bounds = torch.tensor([0, 5, 12])
    assert model(ids[:1], cu_seq_lens_q=bounds, cu_seq_lens_k=bounds).logits.shape == (1, 12, 97)


def test_classifiers_accept_use_cache_and_return_dict() -> None:
    spec = {"compose": 1, "name": "reader", "extends": "lolcats", "recipe": None}
    trunk = {"width": 32, "layers": 2, "heads": 4, "vocabulary": 97, "labels": 3}
    built: Any = composer.build(spec | {"trunk": trunk}, fresh=True)
    labels = torch.tensor([0, 2])
    answer = built(IDS, labels=labels, use_cache=False)
    loss, logits = built(IDS, labels=labels, return_dict=False)
    assert torch.equal(loss, answer.loss)
    assert torch.equal(logits, answer.logits)
