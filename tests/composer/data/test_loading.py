"""Loading loses no text, keeps training and evaluation separate, and reports data that cannot be trained on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from composer.data.loading import held_out, load_rows
from composer.data.packing import DataReport, PackedRows
from composer.data.references import SHARE
from composer.errors import DataError
from tests.composer.data.conftest import Write
from tests.composer.data.templates import tokenizer_with

BOS, EOS = 1, 2
WORDS = ("child", "river", "house", "letter", "teacher", "old", "funny", "time")


def load(tokenizer: PreTrainedTokenizerBase, *references: str, **options: Any) -> PackedRows:
    return load_rows(references, tokenizer, **{"sequence": 16, "split": "train", "vocabulary": 507} | options)


def message_of(tokenizer: PreTrainedTokenizerBase, *references: str, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(tokenizer, *references, **options)
    return str(caught.value)


def report_of(rows: PackedRows) -> DataReport:
    assert rows.report is not None
    return rows.report


def texts(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return records with different texts."""
    numbers = range(first, first + count)
    return [{"text": " ".join(WORDS[number // 8**place % 8] for place in range(4))} for number in numbers]


def documents(rows: PackedRows) -> list[tuple[int, ...]]:
    """Return the documents of rows in which no document was cut."""
    ids = rows.ids[rows.valid].tolist()
    ends = [index + 1 for index, token in enumerate(ids) if token == EOS]
    return [tuple(ids[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


@given(st.integers(1, 500), st.floats(0.01, 0.5))
def test_the_requested_share_is_held_out(count: int, share: float) -> None:
    held = [held_out(index, share) for index in range(count)]
    assert held[0]
    assert abs(sum(held) - count * share) < 1.1
    assert not any(held_out(index, 0) for index in range(count))


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_documents_of_a_conversation_are_in_the_same_split(share: float, write: Write) -> None:
    """Each document of a conversation repeats the turns before it, so all are in training or all in evaluation."""
    tokenizer = tokenizer_with("qwen")
    records = [
        {"messages": [{"role": role, "content": f"{number} {turn}"} for turn in (1, 2, 3) for role in ("user", "assistant")]}
        for number in range(100, 140)
    ]
    path = write("a.jsonl", records)
    sides = []
    for split in ("train", "evaluation"):
        rows = load(tokenizer, path, share=share, split=split, sequence=512, how="padded", vocabulary=len(tokenizer))
        assert report_of(rows).references[0].documents == len(rows)
        numbers = [re.findall(r"\d{3}", str(tokenizer.decode(ids))) for ids in rows.ids]
        assert all(len(set(sides_of)) == 1 for sides_of in numbers)
        sides.append([sides_of[0] for sides_of in numbers])
    assert all(side.count(number) == 3 for side in sides for number in side)
    assert len(set(sides[0])) + len(set(sides[1])) == len({*sides[0], *sides[1]}) == 40


def test_a_single_conversation_is_split_between_training_and_evaluation(write: Write) -> None:
    tokenizer = tokenizer_with("qwen")
    path = write("a.jsonl", [{"messages": [{"role": role, "content": "once"} for _ in range(3) for role in ("user", "assistant")]}])
    counts = [
        len(load(tokenizer, path, split=split, sequence=256, how="padded", vocabulary=len(tokenizer)))
        for split in ("train", "evaluation")
    ]
    assert counts == [2, 1]


@pytest.mark.parametrize("share", [4e-5, 1e-5, 3.3e-7])
def test_a_small_share_of_many_documents(share: float) -> None:
    assert held_out(0, share)
    block = round(1 / share)
    assert not any(held_out(index, share) for index in range(1, min(block, 1000)))


def test_the_split_is_pinned() -> None:
    assert [index for index in range(120) if held_out(index, 0.05)] == [0, 31, 55, 70, 95, 117]
    assert [index for index in range(40) if held_out(index, 1 / 11)] == [0, 17, 23, 38]


def test_held_out_documents_are_spread() -> None:
    places = {index % 20 for index in range(2000) if held_out(index, SHARE)}
    assert len(places) > 15


def test_training_and_evaluation_share_no_document(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    path = write("a.jsonl", texts(200))
    whole = set(documents(load(tokenizer, path, share=0)))
    train, evaluation = (set(documents(load(tokenizer, path, split=split))) for split in ("train", "evaluation"))
    assert len(whole) == 200
    assert len(evaluation) == 200 * SHARE
    assert not train & evaluation
    assert train | evaluation == whole
    assert set(documents(load(tokenizer, path, split="evaluation", share=0))) == whole
    more = write("b.jsonl", texts(260))
    assert evaluation <= set(documents(load(tokenizer, more, split="evaluation")))
    assert set(documents(load(tokenizer, f"{more},limit=200", split="evaluation"))) == evaluation


def test_few_documents_leave_one_to_evaluate_on(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    path = write("a.jsonl", texts(3))
    assert report_of(load(tokenizer, path)).references[0].documents == 2
    assert report_of(load(tokenizer, path, split="evaluation")).references[0].documents == 1


def test_a_single_text_is_divided_for_evaluation(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    path = write("a.txt", " ".join(record["text"] for record in texts(100)))
    whole = [*tokenizer(Path(path).read_text(), verbose=False).input_ids, EOS]
    train, evaluation = (load(tokenizer, path, split=split) for split in ("train", "evaluation"))
    tokens = [*train.ids[train.valid], *evaluation.ids[evaluation.valid]]
    assert tokens == whole
    assert evaluation.tokens == round(SHARE * len(whole))
    assert load(tokenizer, path, share=0).tokens == len(whole)
    assert "too few to hold out a share for evaluation" in message_of(tokenizer, write("b.txt", "child"))


def test_rows_of_several_references_are_mixed(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    first, second = write("a.jsonl", texts(60)), write("b.jsonl", texts(60, first=60))
    rows = load(tokenizer, first, second, sequence=32, how="whole", share=0)
    of_first = set(documents(load(tokenizer, first, share=0)))
    mixed = [document in of_first for document in documents(rows)]
    assert len(mixed) == 120
    assert sum(mixed) == 60
    assert np.count_nonzero(np.diff(mixed)) > 30
    told_of = report_of(rows).references
    assert [(reference.reference, reference.records, reference.documents) for reference in told_of] == [
        (first, 60, 60),
        (second, 60, 60),
    ]


def test_the_same_seed_gives_the_same_rows(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    path = write("a.jsonl", texts(40))
    hashes = [load(tokenizer, path, seed=seed).hash for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert load(tokenizer, path, seed=0).hash == report_of(load(tokenizer, path, seed=0)).hash


def test_the_report_counts(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    path = write("a.jsonl", [*texts(10), {"text": ""}, {"text": None}])
    rows = load(tokenizer, f"{path},empty=skip", share=0, sequence=7)
    report = report_of(rows)
    (counts,) = report.references
    assert (counts.records, counts.empty, counts.documents) == (12, 2, 10)
    assert (
        counts.tokens == report.tokens + report.dropped == sum(map(len, documents(load(tokenizer, f"{path},empty=skip", share=0))))
    )
    assert counts.targets == counts.tokens - 10
    assert (report.rows, report.tokens, report.targets) == (len(rows), rows.tokens, rows.targets)
    assert (report.how, report.sequence, report.split) == ("packed", 7, "train")
    assert DataReport.model_validate_json(report.model_dump_json()) == report


def test_progress_is_reported(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    path, moved = write("a.jsonl", texts(3)), []
    load(tokenizer, path, "echo,samples=2", share=0, progress=lambda *update: moved.append(update))
    assert moved == [(path, 1), (path, 2), (path, 3), ("echo,samples=2", 1), ("echo,samples=2", 2)]


def test_tasks_are_loaded_for_training_and_evaluation(tokenizer: PreTrainedTokenizerBase) -> None:
    train = load(tokenizer, "echo,samples=6,length=8", how="whole")
    assert (len(train), train.targets) == (3, 6)
    assert len(load(tokenizer, "echo,samples=6,length=8", split="evaluation", share=0.4, how="padded")) == 3  # 2.4 of 6, rounded up
    fewer = load(tokenizer, "echo,samples=6,length=8,skip=1,limit=2", split="evaluation", share=0.5, how="padded")
    assert len(fewer) == 1, "half of the two that are trained on"
    evaluation = load(tokenizer, "echo,samples=6,skip=1,limit=4", split="evaluation", share=0)
    assert (len(evaluation), evaluation.targets) == (4, 4)
    assert train.ids.max() < 200 < evaluation.ids[:, 1].min()
    assert "samples of 32 tokens do not fit into rows of 16" in message_of(tokenizer, "echo,length=32")


def test_chats_and_completions_are_loaded_together(chatty: PreTrainedTokenizerBase, write: Write) -> None:
    talk = [{"role": "user", "content": "old house"}, {"role": "assistant", "content": "funny child"}]
    chat = write("a.jsonl", [{"messages": talk}] * 2)
    file = write("b.jsonl", [{"prompt": "old house", "completion": " river"}] * 2)
    rows = load(chatty, chat, file, share=0, how="padded", sequence=64)
    assert len(rows) == 4
    assert 0 < rows.targets < rows.tokens / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": 1}, "rows of 1 tokens: .* at least 2"),
        ({"sequence": 2048, "longest": 1024}, "rows of 2,048 tokens: the source supports at most 1,024 tokens"),
        ({"share": 0.7}, "a share of 0.7 held out for evaluation: expected 0"),
        ({"share": -1}, "a share of -1"),
        ({"vocabulary": 100}, r"token \d+ is not among the model's 100: the tokenizer \(507 tokens\) does not fit the model"),
    ],
)
def test_invalid_options_are_refused(
    tokenizer: PreTrainedTokenizerBase, write: Write, options: dict[str, Any], message: str
) -> None:
    assert re.search(message, message_of(tokenizer, write("a.jsonl", texts(3)), **options))


def test_rows_have_at_most_the_length_of_the_source(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    assert load(tokenizer, write("a.jsonl", texts(3)), sequence=64, longest=64).sequence == 64


def test_data_without_targets_are_refused(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    assert "no data: name at least one" in message_of(tokenizer)
    path = write("a.jsonl", texts(2))
    assert "nothing is left of its 0 records after `skip=2` for train" in message_of(tokenizer, f"{path},skip=2")
    blank = write("b.jsonl", [{"text": " "}])
    assert "nothing is left of its 1 records for evaluation" in message_of(tokenizer, f"{blank},empty=skip", split="evaluation")
    assert "none of them has a token to predict" in message_of(tokenizer, "echo,length=1")


def test_missing_files_are_reported_before_any_file_is_read(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    moved: list[tuple[str, int]] = []
    message = message_of(tokenizer, write("a.jsonl", texts(3)), "lost.txt", progress=lambda *update: moved.append(update))
    assert 'no file, folder or task "lost.txt"' in message
    assert not moved


def test_a_wrong_record_is_named(tokenizer: PreTrainedTokenizerBase, write: Write) -> None:
    path = write("a.jsonl", [*texts(2), {"text": ""}])
    assert message_of(tokenizer, path) == f"{path}, record 3: text is blank; fix the record, or skip such records: empty=skip"
