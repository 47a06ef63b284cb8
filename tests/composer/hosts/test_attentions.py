"""`output_attentions=True` of softmax students returns their sources' weights with own rotations, soft caps, windows and
attention sinks.
"""

from __future__ import annotations

import pytest
import torch

import composer
from tests.composer.hosts.families import small


@pytest.mark.parametrize("family", ["gpt2", "qwen3", "gemma2", "gpt_oss", "phi"])
@torch.no_grad()
def test_attention_weights_equal_those_of_the_source(family: str) -> None:
    source = small(family)
    ids = torch.randint(3, 96, (2, 20), generator=torch.Generator().manual_seed(0))
    wanted = source(ids, output_attentions=True).attentions
    actual = composer.build("softmax", source)(ids, output_attentions=True).attentions
    assert len(actual) == len(wanted) == 2
    for own, theirs in zip(actual, wanted, strict=True):
        torch.testing.assert_close(own, theirs[..., :20], rtol=0, atol=1e-5)
