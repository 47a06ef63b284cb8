"""The generalised delta rule on fla's kernels equals its definition: gradients, initial states, shared heads, documents, one
step.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tests.interpreter  # noqa: F401 - the kernels run in it
from blocks.operation import Setting
from blocks.recurrences.rank_one import naive
from blocks.recurrences.rank_one.fla_forms import chunked, obstacle, step
from tests.blocks.recurrences.kernels import CLOSE, compared
from tests.blocks.recurrences.rank_one.problems import draw
from tests.laws.cases import SMALL


@pytest.mark.parametrize("rank", ["none", "channel"])
def test_a_split_sequence_from_a_state_matches_the_definition(rank: str) -> None:
    problem = draw(rank, (2, 1, 1), 19, batch=1)
    compared(naive, chunked, (*problem.columns, problem.state), None, 17)


def test_rows_of_documents_match_the_definition() -> None:
    problem = draw("channel", (2, 2, 1), 21, documents=True)
    compared(naive, chunked, (*problem.columns, problem.state), problem.segment, 0)


@pytest.mark.parametrize("apart", [False, True], ids=["the key", "w"])
def test_a_decode_step_matches_the_definition(apart: bool) -> None:
    for documents in (False, True):
        problem = draw("channel", (4, 4, 2), 1, documents=documents, apart=apart)
        wanted = naive(*problem.arguments())
        with torch.no_grad():
            actual = step(*problem.arguments([tensor.float() for tensor in problem.tensors]))
        for got, want in zip(actual, wanted, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=CLOSE, atol=CLOSE)


def test_unsupported_settings_of_the_kernel_are_obstacles() -> None:
    shape = replace(SMALL.shape(4), features=256)
    assert obstacle(Setting("cuda", "bfloat16", shape=shape)) is None
    assert obstacle(Setting("cuda", "bfloat16", shape=replace(shape, features=257))) == "its kernel supports 256 features at most"
    assert obstacle(Setting("cuda", "float32", shape=shape)) == "its kernel does not support float32 on every GPU"
