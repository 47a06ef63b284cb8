"""On a GPU every shipped spec is what it is on a CPU. Run by `make gpu`; elsewhere these tests are skipped."""

from __future__ import annotations

import pytest
import torch

from tests.composer.model.models import student, tokens
from tests.shipped import SHIPPED

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("spec", SHIPPED)
def test_logits_and_text_are_the_cpus(spec: str) -> None:
    model, ids = student(spec), tokens(2, 90)
    with torch.no_grad():
        expected = model(ids).logits
        text = model.generate(ids[:, :9], max_new_tokens=20, do_sample=False, eos_token_id=None)
        torch.nn.Module.to(model, "cuda")
        found = model(ids.cuda()).logits.cpu()
        generated = model.generate(ids[:, :9].cuda(), max_new_tokens=20, do_sample=False, eos_token_id=None).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * expected.abs().max().item())
    assert torch.equal(generated, text)


@pytest.mark.parametrize("spec", SHIPPED)
def test_gradients_are_the_cpus(spec: str) -> None:
    model, ids = student(spec).train(), tokens(2, 70)
    model(ids, labels=ids).loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    torch.nn.Module.to(model, "cuda")
    model(ids.cuda(), labels=ids.cuda()).loss.backward()
    for name, parameter in model.named_parameters():
        if name in expected:
            scale = max(1.0, expected[name].abs().max().item())
            torch.testing.assert_close(parameter.grad.cpu(), expected[name], rtol=0, atol=1e-5 * scale)
