"""The page shows the same for a text as the commands, or its mistakes with their lines, and never fails."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.drawing.picture import TYPICAL
from composer.reporting.words import size
from composer.spec.code import code_of
from composer.spec.explain import explain_resolved
from composer.spec.loading import load_spec
from composer.spec.resolve import resolve
from composer.spec.shipped import shipped_specs
from composer.viewing.page import answer
from composer.viewing.reading import TYPED, EditorContext

SIZES = tuple(getattr(TYPICAL, name) for name in TYPED)
LOLCATS = shipped_specs()["lolcats"].read_text(encoding="utf-8")
SINGLE = sorted(name for name in shipped_specs() if load_spec(name).vary is None)


@pytest.mark.parametrize("name", SINGLE)
def test_shipped_specs_are_shown_as_by_the_commands(name: str) -> None:
    text = shipped_specs()[name].read_text(encoding="utf-8")
    shown = answer(text, EditorContext(), SIZES, 4096, "float32")
    resolved = resolve(load_spec(name), None if load_spec(name).trunk else TYPICAL)
    assert resolved.hash[:12] in shown.status
    assert shown.picture is not None
    assert shown.picture.startswith("<svg")
    assert shown.costs is not None
    assert size(explain_resolved(resolved).state_bytes) in shown.costs or "none: every token" in shown.costs
    assert shown.program is not None
    groups = re.findall(r"^# \d+ query heads? ", shown.program, flags=re.MULTILINE)
    assert len(groups) == len({(group.head, group.heads) for layer in resolved.layers for group in layer})


def test_a_mistake_is_shown_with_its_line() -> None:
    wrong = LOLCATS.replace("feature_map:", "feature_mop:")
    line = 1 + wrong[: wrong.index("feature_mop")].count("\n")
    shown = answer(wrong, EditorContext(), SIZES, 4096, "float32")
    assert f"<b>line {line}</b>" in shown.status
    assert "did you mean &quot;feature_map&quot;?" in shown.status
    assert "feature_mop: {kind: hedgehog" in shown.status
    assert (shown.picture, shown.costs, shown.program) == (None, None, None)


def test_every_mistake_has_its_line() -> None:
    wrong = LOLCATS.replace("feature_map:", "feature_mop:").replace("read: shared", "read: shard")
    assert len(re.findall(r"<b>line \d+</b>", answer(wrong, EditorContext(), SIZES, 4096, "float32").status)) == 2


def test_sizes_change_the_state() -> None:
    states = []
    for window in (64, 256):
        shown = answer(LOLCATS.replace("size: 64", f"size: {window}"), EditorContext(), SIZES, 4096, "bfloat16")
        states += re.findall(r"State ([\d.]+ \w+)", shown.picture or "")
    assert len(set(states)) == 2
    for sizes, dtype in ((SIZES, "float32"), ((2, *SIZES[1:]), "bfloat16")):
        states += re.findall(r"State ([\d.]+ \w+)", answer(LOLCATS, EditorContext(), sizes, 4096, dtype).picture or "")
    assert len(set(states)) == 4


@pytest.mark.parametrize(
    ("sizes", "tokens", "dtype", "expected"),
    [
        ((16, 2048, 32, 5, 64), 4096, "float32", "32 query heads cannot share 5 key heads evenly"),
        ((0, 2048, 32, 8, 64), 4096, "float32", "layers: 0; expected a whole number from 1 to 512"),
        ((16, 2048, None, 8, 64), 4096, "float32", "heads: nothing; expected a whole number"),
        ((16, 2048, 1e30, 8, 64), 4096, "float32", "heads: 1e+30; expected"),
        ((16, 2048, 32, 8, 1.5), 4096, "float32", "head dim: 1.5; expected"),
        (SIZES, 0, "float32", "tokens: 0; expected"),
        (SIZES, float("inf"), "float32", "tokens: inf; expected"),
        (SIZES, float("nan"), "float32", "tokens: nan; expected"),
        (SIZES, 4096, "<b>", "&lt;b&gt;&quot; is unknown"),
    ],
)
def test_impossible_sizes_are_reported(sizes: tuple[float | None, ...], tokens: float, dtype: str, expected: str) -> None:
    shown = answer(LOLCATS, EditorContext(), sizes, tokens, dtype)
    assert expected in shown.status
    assert shown.picture is None


def test_typed_text_is_escaped() -> None:
    shown = answer(LOLCATS.replace("arXiv:2410.10254", '"<script>alert(1)</script>"'), EditorContext(), SIZES, 4096, "float32")
    assert shown.picture is not None
    assert "<script" not in shown.picture
    assert "&lt;script&gt;" in shown.picture
    wrong = answer("compose: 1\nname: <script>alert(1)</script>\n", EditorContext(), SIZES, 4096, "float32")
    assert "<script" not in wrong.status


PIECES = st.sampled_from(
    ["head:", "memory", "[", "]", "{", "}", "state", "\n", "  ", "- ", ": ", "&a", "*a", "!!python/object", "1e999", "\x00"]
)


@given(at=st.integers(0, len(LOLCATS)), cut=st.integers(0, 40), typed=st.lists(PIECES, max_size=4))
def test_any_text_gives_a_page(at: int, cut: int, typed: list[str]) -> None:
    """Parts of a spec are replaced by other text, as while typing."""
    shown = answer(LOLCATS[:at] + "".join(typed) + LOLCATS[at + cut :], EditorContext(), SIZES, 64, "float32")
    assert ('class="wrong"' in shown.status) == (shown.picture is None)


@pytest.mark.parametrize(
    ("name", "function"),
    [("lolcats", "head(parts, call, hidden, query, key, value)"), ("rglru-window", "head(parts, call, hidden, query, key, value)")],
)
def test_the_program_equals_that_of_compose_show(name: str, function: str) -> None:
    shown = answer(shipped_specs()[name].read_text(encoding="utf-8"), EditorContext(), SIZES, 4096, "float32")
    assert shown.program == code_of(resolve(load_spec(name), TYPICAL), "these sizes").text
    assert "\n# 32 query heads (8 key heads) in layers 0 to 15\n" in str(shown.program)
    assert f"\ndef {function}:\n" in str(shown.program)
