"""Bidirectional latents on this project's kernels equal their definition, gradients included, for documents of any length,
padding and shared heads. The kernels compile for other GPUs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from blocks import stretches
from blocks.flow import Tokens
from blocks.fused import pooled_latents
from blocks.legend import Shape
from blocks.memories import pooling
from blocks.operation import Setting
from tests.blocks.fused.builds import assert_they_are_built
from tests.blocks.fused.heads import ALIKE, GROUPED, assert_defined
from tests.laws.kernels import LENGTH, packed_tokens, padded_tokens, plain

SAYS = "means of each document by stretches"
HEAD = {"position": "none", "memory": [{"kind": "latents", "size": 12}]}


@pytest.mark.parametrize("shape", [GROUPED, ALIKE], ids=["shared heads", "heads of 12"])
@pytest.mark.parametrize("tokens", [plain(), packed_tokens(), padded_tokens()], ids=["plain", "documents", "padding"])
def test_heads_and_gradients_match_the_definition(tokens: Tokens, shape: Shape) -> None:
    assert_defined(HEAD, replace(shape, both_ways=True), LENGTH, rows=2, tokens=tokens, parts={"latents": SAYS})


def test_documents_longer_than_a_span_match_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 tokens do not fill a block of 64, and documents end in the middle of the block."""
    monkeypatch.setattr(stretches, "SPAN", 40)
    length = 150
    segment = torch.zeros(1, length, dtype=torch.int64)
    segment[:, 90:] += 1
    segment[:, 91:] += 1
    tokens = Tokens(torch.arange(length)[None], segment)
    assert_defined(HEAD, replace(GROUPED, both_ways=True), length, tokens=tokens, parts={"latents": SAYS})


def test_obstacle_names_unsupported_dtypes_and_sizes() -> None:
    assert pooling.obstacle(Setting()) is None
    wide = Shape(hidden_size=12, heads=1, key_heads=1, head_dim=257)
    for setting, message in ((Setting(dtype="float16"), "range of float16"), (Setting(shape=wide), "256 numbers a value")):
        reason = pooling.obstacle(setting)
        assert reason is not None
        assert message in reason


def test_the_kernels_compile_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """The kernels compile for 128 latents for each of 32 heads of 128."""
    constants = pooled_latents.constants_of(torch.bfloat16, 32, 8, 128, 128)
    assert_they_are_built(pooled_latents, ("sum_up", "compute_output", "of_means", "of_tokens"), constants, capsys)
