"""On a GPU every shipped spec gives the results of a CPU. `make gpu` runs these tests. Without a GPU they are skipped. Sums have
another order on a GPU: on an H100 the softmax teacher's logits differ by 1.1e-6 of the largest.
"""

from __future__ import annotations

import pytest
import torch

from composer.spec.loading import load_spec
from tests.composer.model.models import student, tokens
from tests.shipped import SHIPPED

pytestmark = pytest.mark.gpu


WRITING = [name for name in SHIPPED if load_spec(name).direction == "causal"]
GREEDY = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None}


@pytest.mark.parametrize("spec", SHIPPED)
def test_logits_equal_those_on_the_cpu(spec: str) -> None:
    model, ids = student(spec, "trunk=null"), tokens(2, 90)
    with torch.no_grad():
        expected = model(ids).logits
        torch.nn.Module.to(model, "cuda")
        actual = model(ids.cuda()).logits.cpu()
    torch.testing.assert_close(actual, expected, rtol=0, atol=5e-6 * expected.abs().max().item())


@pytest.mark.parametrize("spec", WRITING)
def test_generated_texts_equal_those_on_the_cpu(spec: str) -> None:
    model, ids = student(spec, "trunk=null"), tokens(2, 9)
    text = model.generate(ids, **GREEDY)
    torch.nn.Module.to(model, "cuda")
    assert torch.equal(model.generate(ids.cuda(), **GREEDY).cpu(), text)


@pytest.mark.parametrize("spec", SHIPPED)
def test_gradients_equal_those_on_the_cpu(spec: str) -> None:
    model, ids = student(spec, "trunk=null").train(), tokens(2, 70)
    model(ids).logits.logsumexp(-1).sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    torch.nn.Module.to(model, "cuda")
    model(ids.cuda()).logits.logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        if name in expected:
            scale = max(1.0, expected[name].abs().max().item())
            torch.testing.assert_close(parameter.grad.cpu(), expected[name], rtol=0, atol=3e-5 * scale)
