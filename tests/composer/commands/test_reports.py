"""Results of functions can be read as text, and in a notebook as HTML in which users' text is escaped."""

from __future__ import annotations

import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.commands.generate import Generated
from composer.reporting.tables import Readable
from tests.composer.benching import made_up

SCRIPT = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """The open tags, and all tags so far."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.all: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.all.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def looked_at(report: Readable) -> str:
    """Return the text. The HTML is well-formed and has all words of the text."""
    text, html = repr(report), report._repr_html_()
    tags = Tags(html)
    assert not tags.open
    assert tags.all <= {"div", "p", "b", "pre", "table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert str(report) == text
    assert max(len(line) for line in text.splitlines()) < 1000
    return text


def test_reports_on_specs_are_shown_as_text_and_html(teacher: Path) -> None:
    assert "name: lawcat\n" in looked_at(composer.show("lawcat"))
    assert str(composer.show("lawcat", teacher).hash) in looked_at(composer.show("lawcat", teacher))
    assert "def head(parts, call, hidden, query, key, value):" in looked_at(composer.code("lawcat", teacher))
    assert re.search(r"ok +lawcat +[0-9a-f]{12}… +head: state", looked_at(composer.check(["lawcat"], teacher)))
    shown = looked_at(composer.diff("lolcats", "lola", teacher))
    assert "lolcats → lola" in shown
    assert "head.memory" in shown
    assert looked_at(composer.diff("lolcats", "lolcats")).endswith("\n\nthe same meaning on every source")
    shown = looked_at(composer.explain("lolcats", teacher))
    assert "Why this form:" in shown
    assert "The whole model" in shown


def test_one_part_or_task_shows_itself_in_full_and_several_are_listed() -> None:
    assert re.search(r"feature map +hedgehog +\S", looked_at(composer.parts("feature_map")))
    shown = looked_at(composer.parts("delta"))
    assert shown.startswith("delta (memory)\n")
    assert re.search(r"\n  rate +learned +learned \| fixed +The write strength β of each pair\.\n", shown)
    assert re.search(r"passkey +written +form, depth\n", looked_at(composer.known_tasks()))
    shown = looked_at(composer.known_tasks("passkey"))
    assert shown.startswith("passkey, scored by written\n")
    assert re.search(r"\n  depth +null +a number ≥ 0, ≤ 1 +Share of the filler", shown)
    assert looked_at(composer.known_tasks("stories")).count("\n\n") == 1, "it has no options"


def test_mistakes_of_a_spec_are_listed_not_raised() -> None:
    report = composer.check({"compose": 1, "name": "wrong", "head": {"memory": [SCRIPT]}})
    assert not report.ok
    assert report.mistakes
    assert "1 spec of 1 cannot be used" in looked_at(report)


def test_texts_of_users_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "paper.yaml"
    path.write_text(f"compose: 1\nname: mine\npaper: {SCRIPT}\nextends: lawcat\n")
    shown = composer.show(path)
    assert SCRIPT in looked_at(shown)
    assert SCRIPT not in shown._repr_html_()
    written = Generated(prompt=SCRIPT, text=f"{SCRIPT} & more", new_text=" & more", prompt_tokens=1, new_tokens=2, seconds=0.5)
    assert "1 + 2 tokens" in looked_at(written)
    assert "&lt;/script&gt;<b> &amp; more</b>" in written._repr_html_()


def test_reports_on_models_are_shown_as_text_and_html(teacher: Path, tmp_path: Path) -> None:
    planned = composer.build_folder("lolcats", teacher, tmp_path / "student", dry_run=True)
    assert "Nothing was written" in looked_at(planned)
    built = composer.build_folder("lolcats", teacher, tmp_path / "student")
    assert re.search(r"fresh +\d+ tensors +[\d,]+ numbers", looked_at(built))
    assert "untrained" in repr(built)
    assert "matches its record" in looked_at(composer.verify(built.out))
    (built.out / "generation_config.json").write_text("{}")
    report = composer.verify(built.out)
    assert not report.ok
    assert "1 check failed" in looked_at(report)
    written = composer.generate(teacher, "once upon", max_new_tokens=3)
    assert looked_at(written).startswith("once upon")


def test_evaluations_and_benches_are_shown_as_text_and_html(teacher: Path, student: Path) -> None:
    scores = composer.evaluate({"first": teacher, "second": student}, "mqar,pairs=2", 12, samples=2)
    shown = looked_at(scores)
    assert re.search(r"^  first +0\.\d{3} \[0\.\d{3}, \d\.\d{3}\]$", shown, re.MULTILINE)
    assert "of 2 samples, seed 0" in shown
    assert [cell.model for cell in scores.cells] == ["first", "second"]
    times = composer.bench([teacher, student], prefill=8, repeats=1, steps=1)
    assert re.search(r"prefill, batch 1", looked_at(times))
    assert times.cell(student.name, "prefill", 8).seconds


def test_a_bench_shows_its_failed_cells() -> None:
    assert "out of memory" in looked_at(made_up.report())


def test_messages_are_those_of_a_log(student: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Doubts about a run are warnings, progress is information, and neither is printed if the caller has set up logging."""
    caplog.set_level(logging.INFO, "composer")
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "once upon a time there was a cat and it slept"}\n' * 2)
    few = ["recipe.sequence=16", "recipe.transfer.epochs=null", "recipe.transfer.steps=30", "recipe.transfer.batch=1"]
    few.append("recipe.transfer.start=scaled")  # two texts are too few for more
    report = composer.distill(student, str(texts), tmp_path / "out", share=0.5, stage="transfer", overrides=few)
    (doubted,) = [record for record in caplog.records if "it may memorise them" in record.message]
    assert doubted.levelno == logging.WARNING
    assert all(record.levelno == logging.INFO for record in caplog.records if "Evaluating on" in record.message)
    caplog.clear()
    messages: list[str] = []
    composer.distill(student, str(texts), tmp_path / "again", share=0.5, stage="transfer", overrides=few, tell=messages.append)
    assert any("it may memorise them" in message for message in messages)
    assert not [record for record in caplog.records if record.name == "composer"]
    assert "transfer" in looked_at(report)
    assert report.stages[0].steps == 30
