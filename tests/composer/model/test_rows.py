"""Inside a model, real tokens come first. Positions and documents may be given in every accepted way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.model.call_arguments import read_documents
from composer.model.rows import Rows

CPU = torch.device("cpu")


def rows(batch: int, length: int, *, seen: torch.Tensor | None = None, columns: int = 0, **options: Any) -> Rows:
    nothing: dict[str, Any] = {"mask": None, "positions": None}
    bounds = {name: options.pop(name) for name in ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k") if name in options}
    longest = {name: options.pop(name) for name in ("max_length_q", "max_length_k") if name in options}
    documents = read_documents(batch, length, CPU, bounds=bounds, seq_idx=options.pop("seq_idx", None), longest=longest)
    return Rows(batch, length, CPU, seen, columns, **nothing | options, documents=documents)


masks = st.integers(1, 3).flatmap(
    lambda batch: st.integers(2, 9).flatmap(
        lambda length: st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=batch, max_size=batch)
    )
)


@given(masks)
def test_real_tokens_are_moved_to_the_front_and_back(is_real: list[list[bool]]) -> None:
    mask = torch.tensor(is_real)
    order = rows(*mask.shape, mask=mask)
    columns = torch.arange(mask.shape[1]).expand_as(mask)
    inside = order.inward(columns)
    assert torch.equal(order.outward(inside), columns)
    for row, real in enumerate(mask):
        count = int(real.sum())
        assert torch.equal(inside[row, :count], columns[row, real])
        assert torch.equal(order.tokens.position[row, :count], torch.arange(count))
        if order.tokens.valid is not None:
            assert order.tokens.valid[row].tolist() == [column < count for column in range(mask.shape[1])]
    assert (order.tokens.valid is None) == bool(mask.all())
    assert order.seen.tolist() == mask.sum(1).tolist()


def test_positions_continue_after_the_seen_tokens() -> None:
    seen = torch.tensor([3, 5])
    single, several = rows(2, 1, seen=seen, columns=5), rows(2, 2, seen=seen, columns=5, mask=torch.ones(2, 7))
    assert single.tokens.position.tolist() == [[3], [5]]
    assert several.tokens.position.tolist() == [[3, 4], [5, 6]]
    assert (single.seen.tolist(), several.seen.tolist()) == ([4, 6], [5, 7])
    assert (single.below, several.below) == (6, 7), "no position is as large"
    assert rows(2, 2, positions=torch.zeros(2, 2, dtype=torch.int64)).below is None


@pytest.mark.parametrize("padded", [False, True])
def test_bounds_and_positions_define_the_same_documents(padded: bool) -> None:
    """A row has documents of 3, 1 and 4 tokens. In the padded row the last document's first token is padding."""
    mask = torch.tensor([[1, 1, 1, 1, 0, 1, 1, 1]]) if padded else None
    position = torch.tensor([[0, 1, 2, 0, 9, 0, 1, 2]]) if padded else torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3]])
    bounded = rows(1, 8, mask=mask, cu_seqlens=torch.tensor([0, 3, 4, 8]))
    stated = rows(1, 8, mask=mask, positions=position)
    real = slice(7 if padded else 8)
    for batch in (bounded, stated):
        assert batch.tokens.position[0, real].tolist() == [0, 1, 2, 0, 0, 1, 2, 3][real]
        assert batch.tokens.segment is not None
        assert batch.tokens.segment[0, real].tolist() == [0, 0, 0, 1, 2, 2, 2, 2][real]


def test_position_0_starts_a_new_document_only_after_seen_tokens() -> None:
    position = torch.tensor([[0, 1, 2]])
    assert rows(1, 3, positions=position).tokens.segment is None
    segment = rows(1, 3, positions=position, seen=torch.tensor([7])).tokens.segment
    assert segment is not None
    assert segment.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"mask": torch.ones(2, 3)}, r"attention_mask has shape \(2, 3\); expected 2 dimensions, 1 rows and at least 4 columns"),
        ({"mask": torch.ones(1, 1, 4)}, r"attention_mask has shape \(1, 1, 4\)"),
        ({"cu_seqlens": torch.tensor([0, 2, 2, 4])}, r"must rise from 0 to the length of one packed row; got \[0, 2, 2, 4\]"),
        ({"cu_seqlens": torch.tensor([0, 3])}, "must rise from 0 to the length"),
        ({"seq_idx": torch.zeros(1, 3)}, r"seq_idx has shape \(1, 3\); expected \(1, 4\)"),
        (
            {"cu_seq_lens_q": torch.tensor([0, 4]), "positions": torch.tensor([[0, 1, 0, 1]])},
            "cu_seq_lens_q and position_ids contradict each other: by position_ids, token 2 of row 0 begins a document",
        ),
        (
            {"seq_idx": torch.tensor([[0, 0, 1, 1]]), "positions": torch.arange(4)},
            "seq_idx and position_ids contradict each other: by seq_idx, token 2 of row 0 begins a document",
        ),
        (
            {"cu_seq_lens_q": torch.tensor([0, 1, 4]), "cu_seq_lens_k": torch.tensor([0, 2, 4])},
            "cu_seq_lens_q and cu_seq_lens_k contradict each other: by cu_seq_lens_q, token 1 of row 0",
        ),
        (
            {"cu_seq_lens_q": torch.tensor([0, 1, 4]), "seq_idx": torch.tensor([[0, 0, 1, 1]])},
            "cu_seq_lens_q and seq_idx contradict each other",
        ),
        (
            {"cu_seq_lens_q": torch.tensor([0, 1, 4]), "max_length_k": 2},
            "max_length_k is 2, and the longest document has 3 tokens",
        ),
        (
            {"cu_seqlens": torch.tensor([0, 1, 4]), "positions": torch.tensor([[5, 0, 1, 2]]), "seen": torch.tensor([5])},
            "by cu_seqlens, token 0 of row 0 begins a document",
        ),
        (  # the columns of the call, where padding stands elsewhere inside the model
            {"seq_idx": torch.zeros(1, 4), "positions": torch.tensor([[0, 0, 1, 0]]), "mask": torch.tensor([[0, 1, 1, 1]])},
            "by position_ids, token 3 of row 0 begins a document",
        ),
    ],
)
def test_invalid_and_contradictory_arguments_are_refused(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        rows(1, 4, **options)


BEGINS_AT_3_AND_4: dict[str, dict[str, Any]] = {
    "transformers' bounds": {"cu_seq_lens_q": torch.tensor([0, 3, 4, 8], dtype=torch.int32), "max_length_q": 4},
    "a list": {"cu_seq_lens_q": [0, 3, 4, 8]},
    "numbers": {"seq_idx": torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2]], dtype=torch.int32)},
    "numbers that come again": {"seq_idx": torch.tensor([4, 4, 4, 0, 4, 4, 4, 4])},
    "positions from 1": {"positions": torch.tensor([[1, 2, 3, 1, 1, 2, 3, 4]])},
    "all of transformers' collator": {
        "cu_seq_lens_q": torch.tensor([0, 3, 4, 8]),
        "cu_seq_lens_k": torch.tensor([0, 3, 4, 8]),
        "max_length_q": 4,
        "max_length_k": 9,
        "seq_idx": torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2]]),
        "positions": torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3]]),
    },
}


@pytest.mark.parametrize("how", BEGINS_AT_3_AND_4)
def test_documents_are_read_from_every_accepted_argument(how: str) -> None:
    statement = BEGINS_AT_3_AND_4[how]
    tokens = rows(1, 8, **statement).tokens
    assert tokens.segment is not None
    assert tokens.segment.tolist() == [[0, 0, 0, 1, 2, 2, 2, 2]]
    assert tokens.position.tolist() == statement.get("positions", torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3]])).tolist()


def test_rows_have_separate_documents() -> None:
    """Padding of any number belongs to no document."""
    numbers, mask = torch.tensor([[0, 0, 1, 1, 1], [7, 3, 3, 9, 9]]), torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
    tokens = rows(2, 5, seq_idx=numbers, mask=mask).tokens
    assert tokens.segment is not None
    assert tokens.segment[:, :4].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]
    assert tokens.position[:, :4].tolist() == [[0, 1, 0, 1], [0, 1, 0, 1]]


def test_positions_that_jump_ahead_continue_their_document() -> None:
    assert rows(1, 4, positions=torch.tensor([[3, 4, 90, 91]])).tokens.segment is None
