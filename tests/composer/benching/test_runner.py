"""A bench runs every model on every workload, reports the setting, and finds mistakes before timing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from composer.benching import runner as runner_module
from composer.benching.options import BenchOptions, BenchProgress
from composer.benching.report import BenchReport, Workload
from composer.benching.runner import BENCH, bench
from composer.errors import BenchError, ComposerError, SourceError
from tests.checkpoints import SIZES, llama
from tests.composer.evaluation.conftest import TEACHER

QUICK = {"repeats": 2, "steps": 2}


def test_the_report_has_all_settings_models_and_cells(folders: list[Path], tmp_path: Path) -> None:
    heard: list[BenchProgress] = []
    options = BenchOptions(**QUICK, batch=(2, 1), seed=5, out=tmp_path / "out", watch=heard.append)
    report = bench(folders, [32, 16, 32], [8], options)
    assert BenchReport.model_validate_json((tmp_path / "out" / BENCH).read_text()) == report
    setting = report.setting
    assert (setting.prefill, setting.decode, setting.batches) == ((16, 32), (8,), (1, 2))
    assert (setting.repeats, setting.steps, setting.seed, setting.threads, setting.peak) == (2, 2, 5, 1, None)
    assert (setting.device, bool(setting.device_name), "torch" in setting.versions) == ("cpu", True, True)
    assert [(model_report.label, model_report.attention, model_report.dtype) for model_report in setting.models] == [
        *(("teacher", "sdpa", "float32"), ("lawcat", "composed", "float32"), ("lolcats", "composed", "float32")),
    ]
    model = composer.load(folders[1])
    assert setting.models[1].parameters == sum(model_report.numel() for model_report in model.parameters())
    assert setting.models[1].weight_bytes == 4 * setting.models[1].parameters
    assert setting.models[1].spec_hash == json.loads((folders[1] / "config.json").read_text())["spec_hash"]
    workloads = [
        Workload(kind, length, batch) for batch in (1, 2) for kind, length in (("prefill", 16), ("prefill", 32), ("decode", 8))
    ]
    assert [(cell.workload, cell.model) for cell in report.cells] == [
        (workload, model_report.label) for workload in workloads for model_report in setting.models
    ]
    assert all(cell.failure is None and len(cell.seconds) == 2 and cell.speed is not None for cell in report.cells)
    assert all(cell.peak_bytes is None for cell in report.cells)
    assert report.cell("lawcat", "prefill", 32, 2).state_bytes == 2 * composer.explain("lawcat", folders[0]).state_bytes
    assert [(step.activity, step.done, step.total) for step in heard] == [
        (workload.description, done, 6) for done, workload in enumerate(workloads)
    ]


def test_lengths_beyond_the_trained_length_are_timed(folders: list[Path]) -> None:
    """Rotary positions may exceed the source's trained length. Quality is not measured here."""
    longest = 2 * SIZES["max_position_embeddings"] + 1
    report = bench(folders[:2], [longest], [longest], BenchOptions(**QUICK))
    assert [cell.failure for cell in report.cells] == [None] * 4


def test_models_may_have_custom_labels_and_occur_twice(folders: list[Path]) -> None:
    report = bench({"one": folders[0], "two": folders[0]}, [8], options=BenchOptions(**QUICK, dtype="bfloat16"))
    assert [(cell.model, cell.state_bytes) for cell in report.cells] == [("one", 8 * 2 * 2 * 2 * 8 * 2)] * 1 + [
        ("two", 8 * 2 * 2 * 2 * 8 * 2)
    ]
    assert {model_report.dtype for model_report in report.setting.models} == {"bfloat16"}
    assert report.setting.models[0].weight_bytes == 2 * report.setting.models[0].parameters


def test_parts_on_another_backend_are_reported(folders: list[Path]) -> None:
    """The report names parts that run on another backend. The teacher has no heads, and PyTorch has forms of all parts."""
    options = {"wanted": BenchOptions(**QUICK, backend="triton"), "everywhere": BenchOptions(**QUICK, backend="torch")}
    remarks_by_backend = {name: bench(folders[:2], [8], options=how).remarks for name, how in options.items()}
    assert remarks_by_backend == {
        "wanted": ("lawcat: state ran on torch, not on triton; run `compose explain --backend triton` for the reasons.",),
        "everywhere": (),
    }


def test_models_with_different_vocabularies_read_common_ids(folders: list[Path], tmp_path: Path) -> None:
    """Models with different vocabularies read ids that all of them have."""
    report = bench([llama(tmp_path / "small", vocab_size=16), folders[0]], [64], options=BenchOptions(**QUICK))
    assert [cell.failure for cell in report.cells] == [None, None]


def test_memory_figures_come_from_child_processes(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of child processes are in the cells, and their failures in the remarks."""

    def peaks(folder: Path, options: BenchOptions, trial: Any, tell: Any) -> dict[Workload, int | None]:
        known = list(trial.workloads())[: 1 if folder.name == "lawcat" else 2]
        for workload in known:
            tell(workload)
        return {workload: 1000 * workload.length for workload in known}

    heard: list[BenchProgress] = []
    monkeypatch.setattr(runner_module, "peaks_of", peaks)
    report = bench(folders[:2], [8], [16], BenchOptions(**QUICK, memory=True, watch=heard.append))
    assert report.setting.peak == "resident"
    assert [cell.peak_bytes for cell in report.cells] == [8000, 8000, 16000, None]
    assert report.remarks == ("lawcat: the system ended the process that measures its memory, at decode 16.",)
    assert [(step.activity, step.done, step.total) for step in heard] == [
        *(("memory of teacher, prefill 8", 0, 6), ("memory of teacher, decode 16", 1, 6), ("memory of lawcat, prefill 8", 2, 6)),
        *(("prefill 8", 4, 6), ("decode 16", 5, 6)),
    ]


def test_the_number_of_threads_is_restored(folders: list[Path]) -> None:
    before, during = torch.get_num_threads(), []
    options = BenchOptions(**QUICK, threads=before + 1, watch=lambda _: during.append(torch.get_num_threads()))
    report = bench(folders[:1], [8], options=options)
    assert (during, torch.get_num_threads(), report.setting.threads) == ([before + 1], before, before + 1)


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("something was loaded")


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module.Opened, "load", never)


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("prefill", "decode", "changes", "message"),
    [
        ([], [], {}, "There is nothing to time"),
        ([0], [], {}, "--prefill: expected a whole number of at least 1, got 0"),
        ([], [8, -1], {}, "--decode: expected a whole number of at least 1, got -1"),
        ([8], [], {"batch": (0,)}, "batch: expected a whole number of at least 1, got 0"),
        ([8], [], {"batch": ()}, "--batch is empty"),
        ([8], [], {"repeats": 0}, "repeats: expected"),
        ([8], [], {"steps": 0}, "steps: expected"),
        ([8], [], {"threads": 0}, "threads: expected"),
        ([8], [], {"seed": -1}, "seed: expected"),
        ([8], [], {"seed": 2**63}, "seed: expected a whole number of at most 9,223,372,036,854,775,807, got 9223372036854775808"),
        ([2**60], [], {}, "--prefill: expected a whole number of at most"),
        ([8], [], {"device": "abacus"}, 'no device "abacus"'),
    ],
)
def test_invalid_requests_are_refused(
    folders: list[Path], tmp_path: Path, prefill: list[int], decode: list[int], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ComposerError, match=message):
        bench(folders, prefill, decode, BenchOptions(**changes, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("nothing_is_loaded")
def test_unsupported_models_are_refused(tmp_path: Path) -> None:
    def refused(*models: Path) -> str:
        with pytest.raises((BenchError, SourceError)) as caught:
            bench(models, [8], options=BenchOptions(out=tmp_path / "out"))
        assert not (tmp_path / "out").exists()
        return str(caught.value)

    assert "name at least one" in refused()
    assert "nowhere" in refused(tmp_path / "nowhere")
    composer.build_folder("latte-bidirectional", TEACHER, tmp_path / "both")
    assert "both is bidirectional" in refused(TEACHER, tmp_path / "both")
    trunk = {"width": 32, "layers": 2, "heads": 4, "vocabulary": 64, "labels": 2}
    composer.build_folder({"compose": 1, "name": "judge", "extends": "lawcat", "trunk": trunk}, out=tmp_path / "judge", fresh=True)
    assert "judge is a classifier" in refused(tmp_path / "judge")


def test_lengths_beyond_learned_positions_are_refused(tmp_path: Path) -> None:
    trunk = {"width": 32, "layers": 1, "heads": 4, "vocabulary": 64, "embedding": "learned", "length": 32}
    spec = {"compose": 1, "name": "short", "extends": "lawcat", "trunk": trunk}
    folder = tmp_path / "short"
    composer.build_folder(spec, out=folder, fresh=True)
    options = BenchOptions(**QUICK)
    with pytest.raises(
        BenchError, match="--prefill: .*short has learned 32 positions, too few for 33 tokens: the largest possible value is 32"
    ):
        bench([folder], [8, 33], options=options)
    with pytest.raises(
        BenchError, match="--decode: .*too few for 30 tokens, with 3 more for what is decoded there: .* value is 29"
    ):
        bench([folder], [], [30], options)
    report = bench([folder], [32], [29], options)
    assert [cell.failure for cell in report.cells] == [None, None]


def test_unknown_memory_is_reported(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "can_tell_resident", lambda: False)
    with pytest.raises(BenchError, match="--memory: this system does not report"):
        bench(folders, [8], options=BenchOptions(memory=True))


def test_models_without_memory_for_a_few_tokens_are_reported(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(runner_module, "warm", full)
    with pytest.raises(BenchError, match="The memory of cpu is too small for all models.*Bench fewer"):
        bench(folders, [8], options=BenchOptions())


def test_an_interrupted_bench_keeps_the_earlier_results(folders: list[Path], tmp_path: Path) -> None:
    bench(folders[:1], [8], options=BenchOptions(**QUICK, out=tmp_path))
    before = (tmp_path / BENCH).read_bytes()

    def interrupted(_: BenchProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(folders[:1], [16], options=BenchOptions(**QUICK, out=tmp_path, force=True, watch=interrupted))
    assert (tmp_path / BENCH).read_bytes() == before
