"""All figures of a GPU, in a fixed number of seconds: kernels, calls of fla, whole models, training.

    python -m benchmarks.gpu_speed [--out FOLDER] [--earlier FOLDER] [--seconds 460] [--tables kernels,calls] [--tuned]
    python -m benchmarks.gpu_speed --device cpu --out /tmp/dry       # tiny sizes in Triton's interpreter

Each table is measured in a process of its own, and each row is written at once, as a line of FOLDER/gpu_<table>.jsonl. A run
continues with the rows that are missing there and in --earlier, the most important first. Before the tables, several processes
compile the kernels of all rows. Compiled kernels are kept in FOLDER/compiled.tar.gz for the next run. Autotuners use their first
configuration, and PyTorch compiles a function once for all lengths, unless --tuned. `make docs` writes docs/measurements.md and the
table of measured forms from benchmarks/results.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu_rows import Bench

ROOT = Path(__file__).parents[1]
TABLES = {"kernels": 0.4, "calls": 0.25, "models": 0.6, "training": 1.0}
"""The tables in the order in which they are measured. Each has this share of the seconds that are left."""
COMPILERS = {"kernels": 6, "calls": 4, "models": 3, "training": 1}
"""The processes that compile the kernels of a table, on a machine of at least so many processors."""
COMPILING = 0.3
"""The share of all seconds in which kernels are compiled, at most."""
WORKS, BROKEN = 0, 75
"""Exit codes of a table's process: that it measured what it had time for, and that the device failed."""
ARCHIVE = "compiled.tar.gz"
UNNEEDED = {".ttir", ".ttgir", ".llir", ".ptx", ".source"}
"""Files beside a compiled kernel that Triton does not load."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of results")
    parser.add_argument("--earlier", type=Path, help="folder of results of an earlier run, which are copied first")
    parser.add_argument("--seconds", type=float, default=460.0, help="for everything")
    parser.add_argument("--tables", default=",".join(TABLES), help="names, with commas between them")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a dry run")
    parser.add_argument("--tuned", action="store_true", help="try all configurations, and compile each length")
    parser.add_argument("--only", default="", help="the beginning of the names of the rows to measure")
    parser.add_argument("--table", help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--compile", help=argparse.SUPPRESS)  # PLACE/COUNT: compile this share of the rows, and write nothing
    options = parser.parse_args(arguments)
    if unknown := set(options.tables.split(",")) - set(TABLES):
        parser.error(f"--tables: {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all tables, or one in this process."""
    options = parse(arguments)
    if options.table:
        return measure(options)
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    for file in options.earlier.glob("*") if options.earlier else ():
        if not (options.out / file.name).exists():
            shutil.copyfile(file, options.out / file.name)
    with tempfile.TemporaryDirectory(prefix="gpu-speed-") as cache, keep_compiled(Path(cache), options.out / ARCHIVE) as keep:
        if options.device != "cpu":
            compile_all(options, Path(cache), time.monotonic() + COMPILING * (end - time.monotonic()))
            keep()
        for table in options.tables.split(","):
            table_end = time.monotonic() + TABLES[table] * (end - time.monotonic())
            while run_process(options, Path(cache), table, end=table_end) == BROKEN and time.monotonic() < table_end:
                print(f"{table}: the device failed; a new process continues", flush=True)
            keep()
    return 0


@contextmanager
def keep_compiled(cache: Path, archive: Path) -> Iterator[Any]:
    """Unpack the kernels that an earlier run compiled, and yield a function that packs all of them."""
    if archive.exists():
        with tarfile.open(archive) as packed:
            packed.extractall(cache, filter="data")

    def keep() -> None:
        begun = archive.with_suffix(".part")
        with tarfile.open(begun, "w:gz") as packed:
            packed.add(cache, ".", filter=lambda file: None if Path(file.name).suffix in UNNEEDED else file)
        begun.replace(archive)

    yield keep


def compile_all(options: argparse.Namespace, cache: Path, end: float) -> None:
    """Compile the kernels of all tables in several processes, until the time is over."""
    share = min(1.0, (os.cpu_count() or 1) / sum(COMPILERS.values()))
    counts = {table: max(1, round(COMPILERS[table] * share)) for table in options.tables.split(",")}
    processes = [
        start_process(options, cache, table, end, f"{place}/{count}") for table, count in counts.items() for place in range(count)
    ]
    for process in processes:
        wait(process, end)
    print(f"compiled for at most {options.seconds * COMPILING:.0f} s", flush=True)


def run_process(options: argparse.Namespace, cache: Path, table: str, end: float) -> int:
    """Measure a table in a process of its own. Return its exit code."""
    return wait(start_process(options, cache, table, end), end + 5)


def start_process(
    options: argparse.Namespace, cache: Path, table: str, end: float, compiling: str | None = None
) -> subprocess.Popen[bytes]:
    """Start the process of a table, in a group of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu_speed", "--table", table, "--device", options.device]
    command += ["--out", str(options.out), "--seconds", str(end - time.monotonic()), "--only", options.only]
    command += ["--tuned"] if options.tuned else []
    command += ["--compile", compiling] if compiling else []
    kept = {"TRITON_CACHE_DIR": str(cache / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    kept["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # the processes compile side by side
    interpreted = {"TRITON_INTERPRET": "1" if options.device == "cpu" else "0"}
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    settings = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return subprocess.Popen(command, env={**os.environ, **kept, **interpreted, **paths, **settings}, start_new_session=True)


def wait(process: subprocess.Popen[bytes], end: float) -> int:
    """Return a process's exit code. Kill its group at the end of its time: the rows that it has written are kept."""
    try:
        return process.wait(max(end - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()
    except BaseException:  # such as Ctrl-C
        os.killpg(process.pid, signal.SIGKILL)
        raise


def measure(options: argparse.Namespace) -> int:
    """Measure one table in this process, or compile its kernels."""
    end = time.monotonic() + options.seconds
    if options.device == "cpu":
        from composer.laws import interpreter  # noqa: F401
    from benchmarks.gpu_rows import Bench, measure_table, path_of

    if not options.tuned:
        use_first_configurations()
    bench = Bench(options.device, tuned=options.tuned, warm=options.compile is not None, end=end)
    with prefer_kernels(options.table, bench):
        rows = importlib.import_module(f"benchmarks.gpu_{options.table}").list_rows(bench)
        if options.compile:
            compile_rows(rows, bench, options.compile)
            return WORKS
        return WORKS if measure_table(rows, bench, path_of(options.table, options.out), options.only) else BROKEN


def compile_rows(rows: Any, bench: Bench, share: str) -> None:
    """Run one row of each kind once: this share of the kinds. Rows that differ in nothing but numbers are of one kind."""
    from benchmarks.gpu_rows import attempt

    place, count = map(int, share.split("/"))
    kinds = {" ".join(word for word in name.split() if not word.isdigit()): measure for name, measure in reversed(rows.items())}
    for measure in list(kinds.values())[::-1][place::count]:
        attempt(measure)
        bench.free()


@contextmanager
def prefer_kernels(table: str, bench: Bench) -> Iterator[None]:
    """For the block, a dry run of single heads prefers the forms that a GPU would; whole models run on PyTorch. FlexAttention is
    differentiated on a CPU, too.
    """
    from unittest.mock import patch

    import torch.nn.attention.flex_attention

    from composer.graph.lowering import PREFERRED, compile_head

    if not bench.tiny or table in ("models", "training"):
        yield
        return
    with (
        patch.dict(PREFERRED, cpu=PREFERRED["cuda"]),
        patch.object(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None),
    ):
        compile_head.cache_clear()  # pyright: ignore[reportFunctionMemberAccess] - of lru_cache
        yield
    compile_head.cache_clear()  # pyright: ignore[reportFunctionMemberAccess]


def use_first_configurations() -> None:
    """Make Triton's autotuners use the first configuration that their kernels allow. To time all of them takes minutes."""
    from triton.runtime.autotuner import Autotuner

    run = Autotuner.run

    def run_first(tuner: Any, *arguments: Any, **options: Any) -> Any:
        if len(tuner.configs) > 1:
            tuner.nargs = dict(zip(tuner.arg_names, arguments, strict=False))
            tuner.configs = tuner.prune_configs(options)[:1]
        return run(tuner, *arguments, **options)

    Autotuner.run = run_first  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    sys.exit(main())
