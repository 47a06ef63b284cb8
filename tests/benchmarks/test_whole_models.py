"""The benchmark of whole models runs every workload of tiny models, and computes ratios, empty cells and goals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import contestants as contestants_module
from benchmarks import whole_models
from benchmarks.contestants import BEFORE, SIZES, STUDENTS, TEACHER, Contestant, make
from benchmarks.harness import NO_ROOM, NO_TIME
from benchmarks.whole_models import Bench, Workload, check_goals, format_cell, format_columns, main
from composer.model.cache import SEEN
from tests.composer.model.recording import on_a_cpu

pytestmark = pytest.mark.usefixtures("frozen")


@pytest.fixture(scope="module")
def contestants() -> list[Contestant]:
    return make(SIZES["tiny"], "cpu", torch.float32)


def test_the_sizes_are_those_of_the_known_models() -> None:
    """The parameter counts are the published ones: 1.24 and 8.03 billion."""
    for name, billions in (("llama-3.2-1b", 1.24), ("llama-3.1-8b", 8.03)):
        size = SIZES[name]
        attention = 2 * size.hidden_size * size.head_dim * (size.num_attention_heads + size.num_key_value_heads)
        layer = attention + 3 * size.hidden_size * size.intermediate_size + 2 * size.hidden_size
        embeddings = size.vocab_size * size.hidden_size * (1 if size.tie_word_embeddings else 2)
        assert round((size.num_hidden_layers * layer + embeddings + size.hidden_size) / 1e9, 2) == billions
        assert size.build_config()._attn_implementation == "sdpa"


def test_students_share_the_teachers_weights(contestants: list[Contestant]) -> None:
    assert [contestant.name for contestant in contestants] == [TEACHER, *STUDENTS]
    weights = [contestant.model.get_submodule("model.layers.0.mlp.gate_proj").weight for contestant in contestants]
    assert len({weight.data_ptr() for weight in weights}) == 1


def test_a_cache_far_into_a_text_is_what_the_text_would_leave(contestants: list[Contestant]) -> None:
    """The synthetic cache equals the cache of a real text, except for the state. The size of the state does not depend on the
    text.
    """
    with torch.no_grad():
        for contestant in contestants[1:]:
            actual, generator = contestant.fill_cache(BEFORE + 7, 2), torch.Generator().manual_seed(BEFORE)
            last = torch.randint(256, (2, BEFORE), generator=generator)
            text = torch.cat((torch.zeros(2, 7, dtype=torch.int64), last), dim=1)
            wanted = contestant.model(text, use_cache=True).past_key_values
            assert actual.get_seq_length() == BEFORE + 7
            for layer in range(2):
                held, whole = actual.state(layer).tensors, wanted.state(layer).tensors
                assert {name: of.shape for name, of in held.items()} == {name: of.shape for name, of in whole.items()}
                for name in (SEEN, "head.window.position"):
                    if name in held:
                        torch.testing.assert_close(held[name], whole[name])
        cache = contestants[0].fill_cache(BEFORE + 7, 2)
        assert cache.get_seq_length() == BEFORE + 7
        assert cache.layers[1].keys.shape == (2, 2, BEFORE + 7, 16)


def test_it_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(whole_models, "TRAINED", 16)
    lengths = ["--rounds", "2", "--prefill", "16,24", "--decode", "513,600", "--batches", "1,2", "--train", "8"]  # fmt: skip
    main(["--sizes", "tiny", "--device", "cpu", "--seconds", "600", *lengths], tmp_path)
    result = json.loads((tmp_path / "whole_models_tiny_cpu.json").read_text())
    assert result["about"]["size"] == "tiny"
    assert result["about"]["versions"]["torch"]
    rows = result["rows"]
    assert len(rows) == (2 + 4 + 1) * (1 + len(STUDENTS))
    for row in rows:
        assert row["failure"] is None
        assert row["seconds"]["least"] > 0
        assert row["of_teacher"] == (1.0 if row["model"] == TEACHER else pytest.approx(row["of_teacher"]))
        assert row.get("finite", True)
    far = {
        row["tokens"]: row["state_bytes"]
        for row in rows
        if row["kind"] == "decode" and row["model"] == "lolcats" and row["batch"] == 1
    }
    assert far[513] == far[600]
    output = capsys.readouterr().out
    assert "not measured" in output
    assert "gated-delta" in output


def test_what_finds_no_room_is_a_cell(contestants: list[Contestant], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without enough memory has an empty cell. Other models continue, and the next workload is tried again."""
    failing = contestants[2]

    def full(ids: torch.Tensor) -> Any:
        if ids.shape[1] == 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Contestant.prefill(failing, ids)

    monkeypatch.setattr(failing, "prefill", full)
    rows = list(Bench(contestants[:3], "cpu", 60.0).run_table([Workload("prefill", 16, 1), Workload("prefill", 8, 1)]))
    assert [row["failure"] for row in rows] == [None, None, NO_ROOM, None, None, None]
    assert rows[2]["of_teacher"] is None
    assert format_cell(rows[2]) == "out of memory"
    header, lines = format_columns(rows)
    assert header[2:] == [TEACHER, "lolcats", "lawcat"]
    assert [line[1] for line in lines] == ["1 × 16", "1 × 8"]


def test_other_errors_are_not_taken_for_a_lack_of_room(contestants: list[Contestant], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(ids: torch.Tensor) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(contestants[1], "prefill", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        list(Bench(contestants[:2], "cpu", 60.0).run_table([Workload("prefill", 8, 1)]))


def test_what_finds_no_time_says_so(contestants: list[Contestant]) -> None:
    rows = list(Bench(contestants[:2], "cpu", -1.0).run_table([Workload("decode", 600, 1)]))
    assert [row["failure"] for row in rows] == [NO_TIME, NO_TIME]


def test_a_prompt_that_would_take_too_long_is_not_begun(contestants: list[Contestant]) -> None:
    """The expected time is extrapolated from the last prompt: quadratic in the length for a teacher, linear for a student."""
    bench = Bench(contestants[:2], "cpu", 60.0)
    bench.expected = {(TEACHER, "prefill"): (8, 2.0), ("lolcats", "prefill"): (8, 2.0)}
    assert bench.expect_seconds(contestants[0], Workload("prefill", 32, 1)) == 32.0
    assert bench.expect_seconds(contestants[1], Workload("prefill", 32, 1)) == 8.0
    rows = list(bench.run_table([Workload("prefill", 32, 1)]))
    assert [row["failure"] for row in rows] == [NO_TIME, None]
    assert rows[1]["of_teacher"] is None


def row(
    model: str, kind: str, tokens: int, batch: int, seconds: float | None, teacher: float | None, **more: Any
) -> dict[str, Any]:
    figures = None if seconds is None else {"least": seconds}
    ratio = teacher / seconds if seconds and teacher else None
    return {
        "model": model,
        "kind": kind,
        "tokens": tokens,
        "batch": batch,
        "seconds": figures,
        "of_teacher": ratio,
        "failure": None,
    } | more


def verdicts(rows: list[dict[str, Any]], word: str) -> list[str]:
    return [goal.verdict for goal in check_goals(rows) if word in goal.says]


def test_goals_are_read_off_the_rows() -> None:
    def prefill(tokens: int, teacher: float | None, own: float | None, **more: Any) -> list[dict[str, Any]]:
        gone = {} if teacher else {"failure": NO_ROOM}
        return [
            row(TEACHER, "prefill", tokens, 1, teacher, teacher, **gone),
            row("lawcat", "prefill", tokens, 1, own, teacher, **more),
        ]

    slow, fast = prefill(1024, 1.0, 2.0), prefill(4096, 2.0, 1.0)
    assert verdicts(slow + fast, "prefill of lawcat") == ["met"]  # below 4,096 tokens it may be slower
    assert verdicts(fast + prefill(8192, 1.0, 2.0), "prefill of lawcat") == ["not met"]
    assert verdicts(fast + prefill(8192, None, 2.0), "prefill of lawcat") == ["met"]  # the teacher had no room
    assert verdicts(fast + prefill(8192, 1.0, None, failure=NO_ROOM), "prefill of lawcat") == ["not met"]
    assert verdicts(fast + prefill(8192, 1.0, None, failure=NO_TIME), "prefill of lawcat") == ["not measured"]
    for finite, verdict in ((True, "met"), (False, "not met")):
        assert verdicts(prefill(131_072, 2.0, 1.0, finite=finite), "logits of lawcat") == [verdict]

    def decode(tokens: int, teacher: float, own: float) -> list[dict[str, Any]]:
        return [row(TEACHER, "decode", tokens, 64, teacher, teacher), row("lola", "decode", tokens, 64, own, teacher)]

    rows = decode(2048, 1.0, 1.0) + decode(32_768, 3.0, 1.05)
    assert verdicts(rows, "decode of lola, 64 rows") == ["not met"]
    assert verdicts(rows, "decode of lola, slowest") == ["met"]
    rows = decode(2048, 1.0, 1.0) + decode(32_768, 9.0, 1.2)
    assert verdicts(rows, "decode of lola, 64 rows") == ["met"]
    assert verdicts(rows, "decode of lola, slowest") == ["not met"]


@pytest.mark.parametrize(("wrong", "message"), [(["--sizes", "huge"], "huge"), (["--decode", "512"], "512")])
def test_mistakes_are_told(wrong: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--device", "cpu", *wrong], tmp_path)
    assert message in capsys.readouterr().err


def test_warming_up_runs_each_kind_once(contestants: list[Contestant]) -> None:
    bench = Bench(contestants[:2], "cpu", 0.0)
    whole_models.warm(bench, [Workload("prefill", 8, 1), Workload("decode", 513, 1), Workload("train", 8, 1)])
    assert bench.expected == {}
    assert all(weight.grad is None for contestant in contestants for weight in contestant.model.parameters())


def test_students_decode_by_what_is_recorded(contestants: list[Contestant], monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_cpu(monkeypatch, contestants_module)
    rows = list(Bench(contestants, "cpu", 600.0, max_rounds=2).run_table([Workload("decode", 600, 2)]))
    assert [row["replayed"] for row in rows] == [False, *[True] * len(STUDENTS)]
