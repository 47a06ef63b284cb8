"""An evaluation can be extended by models, tasks and lengths, and an impossible cell gives its reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from composer.errors import EvaluationError
from composer.evaluation.folder import RESULTS, SAMPLES, TABLE
from composer.evaluation.options import EvaluationOptions
from composer.evaluation.report import EvaluationReport
from composer.evaluation.runner import evaluate
from tests.composer.evaluation.conftest import TEACHER
from tests.composer.evaluation.test_runner import learned, timeless, watch_loading


def test_lengths_that_a_task_does_not_support_are_reported_in_their_cell(tmp_path: Path, book: Path) -> None:
    models = {"teacher": TEACHER, "learned": learned(tmp_path / "learned")}
    options = EvaluationOptions(samples=2, out=tmp_path / "out", text=book)
    report = evaluate(models, ["recall", "perplexity"], [64, 128, 4000], options)
    failures = {cell.key: cell.failure for cell in report.cells if cell.failure is not None}
    too_long = "learned has learned 128 positions, too few for 4,000 tokens: the largest possible length is 128"
    assert {key: failure.replace(f"{tmp_path}/", "") for key, failure in failures.items()} == {
        ("teacher", "recall", 64): "recall of 32 pairs needs at least 67 tokens, not 64",
        ("teacher", "perplexity", 4000): failures["teacher", "perplexity", 4000],
        ("learned", "recall", 64): "recall of 32 pairs needs at least 67 tokens, not 64",
        ("learned", "recall", 4000): too_long,
        ("learned", "perplexity", 4000): too_long,
    }
    assert "too few for one window of 4,000" in failures["teacher", "perplexity", 4000]
    assert report.cell("teacher", "recall", 4000).samples == 2
    assert "recall of 32 pairs needs at least 67 tokens, not 64" in (tmp_path / "out" / TABLE).read_text()


def test_added_models_tasks_and_lengths_keep_earlier_results(
    folders: dict[str, Path], tmp_path: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier results are kept and not computed again. Combinations that were not requested are a dash."""
    out = tmp_path / "out"
    options = EvaluationOptions(samples=3, out=out)
    first = evaluate([TEACHER], ["passkey"], [128], options)
    loaded = watch_loading(monkeypatch)
    second = evaluate([folders["lawcat"]], ["passkey,recall"], [128, 200], options)
    assert loaded == ["lawcat"]
    assert second.cell("teacher", "passkey", 128) == first.cell("teacher", "passkey", 128)
    assert [cell.key for cell in second.cells] == [
        ("teacher", "passkey", 128),
        *(("lawcat", task, length) for task in ("passkey", "recall") for length in (128, 200)),
    ]
    assert second.setting.models[0].reference == str(TEACHER)
    text = (out / TABLE).read_text()
    assert re.search(r"\| teacher \| \S+ \[[^|]*\] \| – \|", text)
    assert EvaluationReport.model_validate_json((out / RESULTS).read_text()) == second
    # All of it at once is the same, in another folder; and here the rest alone is computed.
    loaded.clear()
    whole = evaluate([TEACHER, folders["lawcat"]], ["passkey,recall"], [128, 200], options)
    assert loaded == ["teacher"]
    anew = evaluate([TEACHER, folders["lawcat"]], ["passkey,recall"], [128, 200], EvaluationOptions(samples=3))
    assert timeless(whole.model_dump(mode="json")) == timeless(anew.model_dump(mode="json"))
    with pytest.raises(EvaluationError, match=r"\n  samples: was 3, now 4\n"):
        evaluate([TEACHER], ["passkey"], [128], EvaluationOptions(samples=4, out=out))
    # Another task, of one model; then a call that is stopped in the midst of a third.
    evaluate([TEACHER], ["stories"], [128], options)
    (out / SAMPLES).write_text(
        "".join(line for line in (out / SAMPLES).open() if '"index": 2' not in line or "stories" not in line)
    )
    (out / RESULTS).unlink()
    again = evaluate([TEACHER], ["passkey"], [128], options)
    assert again.cell("teacher", "stories", 128).failure == "not finished: run the command again to finish it"
    # Its last sample is scored by a call that is stopped before it writes a report: the log has all of them.
    log = (out / SAMPLES).read_text()
    scored = evaluate([TEACHER], ["stories"], [128], options).cell("teacher", "stories", 128)
    assert (out / SAMPLES).read_text().startswith(log)
    (out / RESULTS).write_text(again.model_dump_json())
    assert evaluate([TEACHER], ["passkey"], [128], options).cell("teacher", "stories", 128) == scored
