"""`output_attentions=True` of softmax students returns their sources' weights with own rotations, soft caps, windows and
attention sinks. Layers rotate as their hosts do.
"""

from __future__ import annotations

import pytest
import torch

import composer
from composer.model.hosts import attentions
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


@pytest.mark.parametrize(
    ("family", "options", "rotates"),
    [
        ("qwen3", {}, [True, True]),
        ("gpt2", {}, [False, False]),
        ("deepseek_v2", {}, [True, True]),
        ("cohere2", {"layer_types": ["sliding_attention", "full_attention"]}, [True, False]),
        ("exaone4", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}, [True, False]),
        ("smollm3", {"no_rope_layers": [0, 1]}, [False, True]),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_a_layer_rotates_if_its_queries_depend_on_cosine_and_sine(
    family: str, options: dict[str, object], rotates: list[bool], inference: bool
) -> None:
    with torch.inference_mode(inference):
        student = composer.build("softmax", small(family, **options))
    assert [attention.facts.rotates for _, attention in attentions(student)] == rotates
