"""Windows have exactly the requested length, do not overlap, and are spread over the whole text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.errors import TaskError
from composer.evaluation.arguments import Perplexity
from composer.tasks.writer import Writer


def starts(task: Perplexity, tokenizer: Any, length: int) -> list[int]:
    """Return the start of each window after checking that its tokens are the text's."""
    text = tokenizer(task.text.read_text(), add_special_tokens=False).input_ids
    every, starts_of = task.windows(Writer(tokenizer), length), []
    for index in range(every.count):
        sample = every.draw(index)
        assert len(sample.ids) == len(sample.answer) == length
        assert not any(sample.answer)
        assert sample.ids[0] == tokenizer.bos_token_id
        after = starts_of[-1] + 1 if starts_of else 0
        size = length - 1
        starts_of.append(next(place for place in range(after, len(text)) if tuple(text[place : place + size]) == sample.ids[1:]))
    return starts_of


def test_windows_cover_the_whole_text(tokenizer: Any, book: Path) -> None:
    tokens = len(tokenizer(book.read_text(), add_special_tokens=False).input_ids)
    assert starts(Perplexity(text=book), tokenizer, 101) == list(range(0, tokens - 99, 100))


def test_sampled_windows_are_spread_over_the_text(tokenizer: Any, book: Path) -> None:
    tokens = len(tokenizer(book.read_text(), add_special_tokens=False).input_ids)
    starts_of = starts(Perplexity(text=book, samples=5), tokenizer, 101)
    assert len(starts_of) == 5
    assert all(second - first >= 100 for first, second in pairwise(starts_of))
    assert starts_of[-1] >= tokens * 3 // 5


class Letters:
    """A tokenizer without BOS with one token per letter."""

    is_fast, bos_token_id, eos_token_id = True, None, None

    def __call__(self, text: str, **_: Any) -> Any:
        return type("Encoded", (), {"input_ids": list(map(ord, text))})

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))


@given(st.integers(1, 300), st.integers(2, 40), st.integers(1, 30))
def test_windows_do_not_overlap(tmp_path_factory: pytest.TempPathFactory, tokens: int, length: int, samples: int) -> None:
    path = tmp_path_factory.getbasetemp() / f"letters-{tokens}.txt"
    path.write_text("".join(chr(0x4E00 + place) for place in range(tokens)), encoding="utf-8")
    task = Perplexity(text=path, samples=samples)
    if tokens < length:
        with pytest.raises(TaskError, match=f"has {tokens} tokens, too few for one window of {length}"):
            task.windows(Writer(Letters()), length)
        return
    every = task.windows(Writer(Letters()), length)
    seen = [token for index in range(every.count) for token in every.draw(index).ids]
    assert every.count == min(samples, tokens // length)
    assert seen == sorted(set(seen)), "in order, and none twice"
    assert len(seen) == every.count * length


def test_unreadable_texts_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    for name in ("nowhere.txt", "bytes.txt"):
        with pytest.raises(TaskError, match=f"{name} cannot be read as text"):
            Perplexity(text=tmp_path / name).windows(Writer(tokenizer), 16)


def test_changed_texts_are_read_again(tmp_path: Path) -> None:
    path, writer = tmp_path / "text.txt", Writer(Letters())
    for text in ("abcd", "wxyz "):
        path.write_text(text)
        assert Perplexity(text=path).windows(writer, 4).draw(0).text == text[:4]
