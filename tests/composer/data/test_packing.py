"""Every token is in the rows once and in order, boundaries and labels are right, and batches equal the rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.data.packing import Document, PackedRows, Packing, pack
from composer.errors import DataError

HOWS: tuple[Packing, ...] = ("packed", "whole", "padded")
"""Where documents are independent."""
Drawn = list[list[bool]]
MANY = settings(max_examples=max(60, settings.default.max_examples))
drawn_documents = st.lists(st.lists(st.booleans(), min_size=1, max_size=23), max_size=12)


def made(drawn: Drawn, *, all_learned: bool = False) -> list[Document]:
    """Return documents whose tokens count 1, 2, 3, … across all of them."""
    documents, first = [], 1
    for learned in drawn:
        ids = np.arange(first, first + len(learned), dtype=np.int32)
        documents.append(Document(ids, np.array(learned) | all_learned))
        first += len(learned)
    return documents


def pieces(rows: PackedRows) -> list[tuple[list[int], list[int]]]:
    """Return the ids and labels of each run of positions 0, 1, 2, … in all rows."""
    runs: list[tuple[list[int], list[int]]] = []
    before = -1
    for ids, labels, position, valid in zip(rows.ids, rows.labels, rows.position, rows.valid, strict=True):
        for token, label, place, real in zip(ids, labels, position, valid, strict=True):
            if place == 0:
                runs.append(([], []))
                before = -1
            assert place == before + 1
            before = place
            if real:
                runs[-1][0].append(int(token))
                runs[-1][1].append(int(label))
            else:
                assert label == -100
    return runs


@given(drawn_documents, st.integers(2, 12), st.sampled_from(HOWS))
@MANY
def test_each_token_occurs_once_and_in_order(drawn: Drawn, sequence: int, how: Packing) -> None:
    documents = made(drawn)
    rows = pack(documents, sequence, how=how)
    teaching = [document for document in documents if document.learned[1:].any()]
    tokens = rows.ids[rows.valid].tolist()
    assert set(tokens) <= {token for document in teaching for token in document.ids.tolist()}
    assert tokens == sorted(set(tokens))
    assert len(tokens) == rows.tokens
    assert rows.tokens + rows.dropped == sum(map(len, documents))
    assert all((labels != -100).any() for labels in rows.labels)
    assert rows.ids.shape == rows.labels.shape == rows.position.shape == rows.valid.shape == (len(rows), sequence)
    assert (rows.ids.dtype, rows.labels.dtype, rows.position.dtype, rows.valid.dtype) == (np.int32, np.int32, np.int32, np.bool_)
    assert (np.diff(rows.valid.astype(int), axis=1) <= 0).all()
    assert rows.valid.any(axis=1).all()


@given(drawn_documents, st.integers(2, 12), st.sampled_from(HOWS))
@MANY
def test_pieces_are_parts_of_documents_with_their_targets(drawn: Drawn, sequence: int, how: Packing) -> None:
    documents = made(drawn)
    home = {token: number for number, document in enumerate(documents) for token in document.ids.tolist()}
    learned = {token: flag for document in documents for token, flag in zip(document.ids.tolist(), document.learned, strict=True)}
    for ids, labels in pieces(pack(documents, sequence, how=how)):
        assert len({home[token] for token in ids}) == 1
        assert ids == list(range(ids[0], ids[0] + len(ids)))
        assert labels == [-100] + [token if learned[token] else -100 for token in ids[1:]]


@given(drawn_documents, st.integers(2, 12))
@MANY
def test_documents_begin_as_each_way_of_packing_defines(drawn: Drawn, sequence: int) -> None:
    """If every token is learned, only a token that is alone in its row is dropped."""
    documents = [document for document in made(drawn, all_learned=True) if len(document) > 1]
    for how in HOWS:
        runs = [ids for ids, _ in pieces(pack(documents, sequence, how=how))]
        begins = {ids[0] for ids in runs if ids}
        for document in documents:
            fits = len(document) <= sequence
            assert int(document.ids[0]) in begins or sequence == 2
            if how != "packed" and fits:
                assert document.ids.tolist() in runs
    full = pack(documents, sequence, how="packed")
    assert full.valid[:-1].all() or sequence == 2


@pytest.mark.parametrize(
    ("how", "ids", "position"),
    [
        ("packed", [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 0, 0, 0, 0]], [[0, 1, 2, 0, 1], [0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]),
        ("whole", [[1, 2, 3, 0, 0], [4, 5, 6, 7, 0], [8, 9, 10, 11, 0]], [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]),
    ],
)
def test_packed_and_whole_rows_match_an_example(how: Packing, ids: list[list[int]], position: list[list[int]]) -> None:
    rows = pack(made([[True] * 3, [True] * 4, [True] * 4]), 5, how=how)
    last = len(rows)  # of `packed`, the row of token 11 has nothing to predict
    assert last == (2 if how == "packed" else 3)
    assert rows.dropped == (1 if how == "packed" else 0)
    assert rows.ids.tolist() == ids[:last]
    assert rows.position.tolist() == position[:last]


@given(drawn_documents, st.integers(2, 12))
@MANY
def test_joined_rows_are_one_document(drawn: Drawn, sequence: int) -> None:
    """Documents with learned tokens are joined end to end. All tokens but a row's first keep their labels."""
    documents = made(drawn)
    kept = [document for document in documents if document.learned[1:].any()]
    line = [(int(token), bool(flag)) for document in kept for token, flag in zip(document.ids, document.learned, strict=True)]
    rows = pack(documents, sequence, how="joined")
    wanted = [line[start : start + sequence] for start in range(0, len(line), sequence)]
    wanted = [row for row in wanted if any(flag for _, flag in row[1:])]
    assert [ids[valid].tolist() for ids, valid in zip(rows.ids, rows.valid, strict=True)] == [
        [token for token, _ in row] for row in wanted
    ]
    for row, labels in zip(wanted, rows.labels.tolist(), strict=True):
        expected_labels = [-100, *(token if flag else -100 for token, flag in row[1:])]
        assert labels == expected_labels + [-100] * (sequence - len(row))
    assert (rows.position == np.arange(sequence)).all()
    assert rows.tokens + rows.dropped == sum(map(len, documents))


def test_joined_and_packed_rows_differ_only_in_positions() -> None:
    packed, joined = (pack(made([[True] * 3, [False, True, True]]), 6, how=how) for how in ("packed", "joined"))
    assert packed.ids.tolist() == joined.ids.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert packed.position.tolist() == [[0, 1, 2, 0, 1, 2]]
    assert joined.position.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert packed.labels.tolist() == joined.labels.tolist() == [[-100, 2, 3, -100, 5, 6]]


def test_padded_rows_are_cut_from_long_documents() -> None:
    rows = pack(made([[True] * 2, [True] * 7]), 4, how="padded")
    assert rows.ids.tolist() == [[1, 2, 0, 0], [3, 4, 5, 6], [7, 8, 9, 0]]
    assert rows.labels.tolist() == [[-100, 2, -100, -100], [-100, 4, 5, 6], [-100, 8, 9, -100]]
    assert rows.position.tolist() == [[0, 1, 2, 3]] * 3
    assert (rows.tokens, rows.targets, rows.dropped) == (9, 6, 0)


def test_documents_without_targets_are_dropped_and_counted() -> None:
    rows = pack(made([[True], [True, False, False], [False, True]]), 4, how="packed")
    assert rows.ids.tolist() == [[5, 6, 0, 0]]
    assert rows.dropped == 4
    none = pack(made([[True]]), 4, how="packed")
    assert (len(none), none.tokens, none.targets, none.dropped, none.sequence) == (0, 0, 0, 1, 4)


def test_rows_of_one_token_have_no_targets() -> None:
    with pytest.raises(DataError, match="at least 2"):
        pack(made([[True] * 3]), 1, how="packed")


def test_the_hash_depends_on_the_contents() -> None:
    first, same = (pack(made([[True] * 9, [True, False, True]]), 4, how="packed") for _ in range(2))
    others = [
        pack(made([[True] * 9, [True, True, True]]), 4, how="packed"),
        pack(made([[True] * 9, [True, False, True]]), 6, how="packed"),
        pack(made([[True] * 8, [True, False, False, True]]), 4, how="packed"),
    ]
    assert first.hash == same.hash
    assert len({first.hash, *(other.hash for other in others)}) == 4


def test_batches_contain_the_selected_rows() -> None:
    rows = pack(made([[True] * 9, [False, True, True]]), 4, how="padded")
    batch = rows.batch([2, 0, 2, 1])
    for tensor, array in ((batch.ids, rows.ids), (batch.labels, rows.labels), (batch.position, rows.position)):
        assert tensor.dtype == torch.int64
        assert tensor.tolist() == [array[index].tolist() for index in (2, 0, 2, 1)]
    assert batch.valid.dtype == torch.bool
    assert batch.valid.tolist() == [rows.valid[index].tolist() for index in (2, 0, 2, 1)]
    assert len(batch) == 4
    assert batch.to("meta").ids.device.type == "meta"


def test_micro_batches_are_the_batch_in_order() -> None:
    batch = pack(made([[True] * 21]), 3, how="packed").batch(range(7))
    for count in range(1, 8):
        parts = batch.split(count)
        assert len(parts) == count
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert torch.equal(torch.cat([part.ids for part in parts]), batch.ids)
        assert torch.equal(torch.cat([part.valid for part in parts]), batch.valid)
    for count in (0, 8):
        with pytest.raises(DataError, match="1 to 7"):
            batch.split(count)


def test_masks_are_returned_only_on_request_and_for_padding() -> None:
    batch = pack(made([[True] * 6]), 4, how="packed").batch([0, 1])
    assert batch.inputs()["attention_mask"] is None
    assert batch.inputs(mask=True)["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.split(2)[0].inputs(mask=True)["attention_mask"] is None


def test_a_document_has_a_flag_for_each_token() -> None:
    with pytest.raises(ValueError, match="one length"):
        Document(np.zeros(3, np.int32), np.zeros(2, np.bool_))
