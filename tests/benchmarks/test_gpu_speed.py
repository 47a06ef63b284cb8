"""`make gpu-speed` on a CPU: every row of every table runs with tiny sizes, a run continues, and the page and the table of measured
forms follow from its files. What only a GPU runs is replaced.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.autotuner import Autotuner

import tests.interpreter  # noqa: F401
from benchmarks import gpu_kernels, gpu_models, gpu_rows, gpu_speed
from benchmarks.gpu_rows import Bench, attempt, measure_table, path_of, read_rows
from benchmarks.gpu_speed import ARCHIVE, TABLES, compile_rows, keep_compiled, main
from blocks.operation import TRITON
from composer.graph.measured import MeasuredForm
from pages.measured import BEGIN, END, build_measured_forms, measurements

pytestmark = pytest.mark.long

CPU = ("--device", "cpu", "--seconds", "600")


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a dry run of all tables, in this process, which has compiled the same heads for PyTorch before."""
    folder = tmp_path_factory.mktemp("dry")
    assert_pytorch_runs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Autotuner, "run", Autotuner.run)  # put back afterwards
        for table in TABLES:
            assert main([*CPU, "--table", table, "--out", str(folder)]) == 0
    assert_pytorch_runs()
    return folder


def assert_pytorch_runs() -> None:
    """Compile the heads of the benchmark without its preferences, and keep them in this process."""
    for case in gpu_kernels.CASES.values():
        subject = gpu_kernels.Subject(Bench("cpu"), case.spec, (*case.overrides, *case.small), "1b", "forward", 40, 1)
        assert subject.find_form(case.part).backend != TRITON


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_measured(table: str, dry: Path) -> None:
    rows = read_rows(path_of(table, dry))
    assert len(rows) == {"kernels": 9, "calls": 15, "models": 16, "training": 9}[table]
    for row in rows:
        assert "failure" not in json.dumps(row)
        assert row["about"]["versions"]["torch"]
        assert row.get("finite", True)
    apart = [row["apart"] for row in rows if "apart" in row]
    assert all(0 <= far < 1e-5 for far in apart if not isinstance(far, dict))
    assert all(far < 1e-5 for each in apart if isinstance(each, dict) for far in each.values())


def test_each_kernel_is_compared_with_its_alternatives(dry: Path) -> None:
    rows = {row["row"]: row for row in read_rows(path_of("kernels", dry))}
    for name, case in gpu_kernels.CASES.items():
        row = rows[f"{name} 1b forward 40"]
        assert {"own", *(title for title, _ in case.alternatives)} == set(row.get("kernel", {"own": 0}))
        assert {"own", "without it", "SDPA", *(other[0] for other in case.others)} == set(row["head"])
    assert {row["form"] for row in rows.values() if row["call"] == "decode"} != {rows["lolcats 1b forward 40"]["form"]}


def test_the_page_and_the_table_of_measured_forms_follow_from_the_results(dry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.measured.AT", 40)
    page = measurements(f"before\n{BEGIN}old\n{END}after\n", dry)
    assert "not measured yet" not in page
    for words in (
        "### Whole models",
        "FlexAttention and chunk_simple_gla ",
        " tokens/s, ",
        "| lora teacher (PEFT) |",
        " %",
        "kda-hybrid",
    ):
        assert words in page
    rows = [MeasuredForm(**row) for row in json.loads(build_measured_forms(dry))["rows"]]
    assert len(rows) == 9
    assert {row.head_dim for row in rows} == {16}


def test_a_stopped_run_measures_only_missing_rows(dry: Path, tmp_path: Path) -> None:
    """Rows that are kept are not measured again, and a line that was cut off is."""
    lines = path_of("calls", dry).read_text().splitlines()
    path = path_of("calls", tmp_path)
    path.write_text("\n".join([*lines[:3], lines[3][:20]]) + "\n")
    names = [json.loads(line)["row"] for line in lines[1:4]]
    measured: list[str] = []

    def measure(name: str) -> dict[str, Any]:
        measured.append(name)
        return {"tokens": 1}

    assert measure_table({name: lambda name=name: measure(name) for name in names}, Bench("cpu"), path, tell=measured.append)
    assert measured[0] == names[2]
    assert [row["row"] for row in read_rows(path)] == names
    assert measure_table({name: lambda: pytest.fail("measured again") for name in names}, Bench("cpu"), path)


def test_failures_are_kept_and_a_broken_device_ends_the_process(tmp_path: Path) -> None:
    path, messages = tmp_path / "table.jsonl", list[str]()

    def fail(error: Exception) -> Any:
        raise error

    rows = {
        "error": ValueError("of a\nrow"),
        "memory": torch.OutOfMemoryError("CUDA out of memory"),
        "last": torch.AcceleratorError("lost"),
    }
    runs = {name: lambda error=error: fail(error) for name, error in rows.items()}
    assert not measure_table(runs | {"never": lambda: {}}, Bench("cpu"), path, tell=messages.append)
    failures = [row["failure"] for row in read_rows(path)]
    assert failures == ["ValueError: of a row", "out of memory", "the device failed: lost"]
    assert measure_table(runs | {"never": lambda: {}}, Bench("cpu", end=0.0), path, tell=messages.append)
    assert messages[-1] == "table: no time left for 1 of 4 rows"


def test_a_failing_function_does_not_stop_the_others() -> None:
    def fail() -> None:
        raise MemoryError

    figures = Bench("cpu").time_in_turn({"works": lambda: None, "fails": fail})
    assert figures["fails"] == {"failure": "out of memory"}
    assert figures["works"]["rounds"] == 1


class Event:
    """A CUDA event on a CPU."""

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


def test_a_device_is_timed_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[int] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    monkeypatch.setattr(gpu_rows, "FLUSHED", 16)
    monkeypatch.setattr(Bench, "tiny", False)
    bench = Bench("cpu", end=time.monotonic() + 0.05)
    figures = bench.time_in_turn({"run": lambda: time.sleep(0.002)})
    assert figures["run"]["least"] >= 0.002
    assert figures["run"]["rounds"] >= 2
    assert slept[0] == 0 < slept[1]


def test_functions_without_dynamic_lengths_are_compiled_for_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_static(function: Any, dynamic: bool) -> Any:
        def refuse(*_: Any) -> None:
            raise RuntimeError("dynamic")

        return refuse if dynamic else function

    monkeypatch.setattr(torch, "compile", compile_static)
    assert Bench("cuda").compile(abs)(-3) == 3
    with pytest.raises(TypeError):
        Bench("cuda", tuned=True).compile(abs)("text")


def test_the_teachers_step_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("cpu")
    models = gpu_models.Models(bench)
    model = models.load("teacher")
    with torch.no_grad():
        cache = models.fill_cache(model, 12, 1)
        ids = models.draw_ids(model, 1, 1)

        def run() -> Any:
            return model(ids, past_key_values=cache, use_cache=True)

        first = run().logits
        assert cache.layers[0].keys.shape[2] == cache.get_seq_length() + 1 == 13
        assert torch.equal(run().logits, first)  # the step is the same at every repetition
        monkeypatch.setattr(Bench, "tiny", False)
        monkeypatch.setattr(gpu_models, "capture", lambda step: step)
        replay, replayed = models.record(model, cache, run)
        assert replayed
        assert torch.equal(replay(), first)  # pyright: ignore[reportArgumentType]
        monkeypatch.setattr(gpu_models, "capture", lambda step: 1 / 0)
        assert models.record(model, cache, run) == (run, False)


def test_kinds_of_rows_are_compiled_once_each() -> None:
    ran: list[str] = []
    rows = {
        name: lambda name=name: ran.append(name) for name in ("a 1b forward 8", "b 1b forward 8", "a 1b forward 2", "c decode 16")
    }
    for share in ("0/2", "1/2"):
        compile_rows(rows, Bench("cpu", warm=True), share)
    assert sorted(ran) == ["a 1b forward 8", "b 1b forward 8", "c decode 16"]


def test_only_files_that_triton_loads_are_kept_of_compiled_kernels(tmp_path: Path) -> None:
    archive = tmp_path / ARCHIVE
    for place, expected in (("first", []), ("second", ["kernel.cubin"])):
        cache = tmp_path / place
        cache.mkdir()
        with keep_compiled(cache, archive) as keep:
            assert [path.name for path in cache.rglob("*.*")] == expected
            for name in ("kernel.cubin", "kernel.ttir"):
                (cache / "triton").mkdir(exist_ok=True)
                (cache / "triton" / name).write_text(name)
            keep()


def test_a_process_that_is_out_of_time_is_killed() -> None:
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    assert gpu_speed.wait(process, time.monotonic() + 0.2) < 0
    assert time.monotonic() - began < 30


def test_each_table_runs_in_a_separate_process(tmp_path: Path, dry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table whose device fails is continued by a new process. Results of an earlier run are copied first."""
    started: list[tuple[str, str | None]] = []
    codes = iter([gpu_speed.BROKEN, 0, 0])

    def start(
        options: argparse.Namespace, cache: Path, table: str, end: float, compiling: str | None = None
    ) -> tuple[str, str | None]:
        started.append((table, compiling))
        return table, compiling

    monkeypatch.setattr(gpu_speed, "start_process", start)
    monkeypatch.setattr(gpu_speed, "wait", lambda process, end: 0 if process[1] else next(codes))
    out = tmp_path / "out"
    assert main(["--out", str(out), "--earlier", str(dry), "--tables", "calls,models"]) == 0
    assert [table for table, compiling in started if compiling is None] == ["calls", "calls", "models"]
    assert {table for table, compiling in started if compiling} == {"calls", "models"}
    assert read_rows(path_of("kernels", out)) == read_rows(path_of("kernels", dry))
    assert (out / ARCHIVE).exists()
    assert not gpu_speed.compile_all(argparse.Namespace(tables="kernels", seconds=1.0), tmp_path, 0.0)


@pytest.mark.full  # its start alone takes as long as all other tests of the file
def test_a_real_process_writes_its_rows(tmp_path: Path) -> None:
    assert main([*CPU, "--out", str(tmp_path), "--tables", "calls", "--only", "gla 1b decode"]) == 0
    assert [row["row"] for row in read_rows(path_of("calls", tmp_path))] == ["gla 1b decode 1"]


def test_unknown_tables_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--tables", "kernels,all"])
    assert "--tables: all; there are kernels, calls, models, training" in capsys.readouterr().err
    assert attempt(lambda: 1) == (1, {})
