"""Every test runs without the Hub, on one thread, from one seed, and with the shapes that `blocks` states checked at each call."""

from __future__ import annotations

import gc
import logging
import os
import random
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of NumPy, where it is imported from here on, as in the workers of pytest-xdist
os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton; see tests/interpreter.py. make gpu: 0

import numpy
import pytest
import torch  # before blocks: only then are their tensors checked
from hypothesis import HealthCheck, settings

from tests.shapes import check_shapes

try:
    import triton  # noqa: F401
except ImportError:  # it is for Linux alone
    TRITON = False
else:
    TRITON = True

OF_KERNELS = (
    r"tests\.(blocks\.fused|compiling|interpreter|kernels|laws\.kernels)|composer\.laws\.(interpreter|kernel|operands)|triton|fla"
)
"""What tests import that run kernels in Triton's interpreter, or build them: they are marked ``kernels``."""
ON_TRITON = rf"{OF_KERNELS}|blocks\.kernels"
"""And those that take Triton to be installed."""
LONG = 0.005
"""A long test takes more than this share of the time of all tests, which does not depend on the load of the machine."""
CACHE = tempfile.TemporaryDirectory(prefix="composer-cache-")
os.environ["COMPOSER_CACHE"] = CACHE.name  # of unpacked weights, not the user's own
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start `make test &` with Ctrl-C ignored, and tests send it
gc.disable()  # until all is imported and collected, which is there to stay
check_shapes("blocks")
torch.set_num_threads(1)
# An example's duration depends on the load of the machine, so there is no deadline. The tests draw the same 10 examples at every
# run. `make fuzz` draws 200 new ones from a seed that it prints: --hypothesis-profile=search --hypothesis-seed=SEED.
settings.register_profile(
    "tests",
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.register_profile("search", settings.get_profile("tests"), max_examples=200, derandomize=False, print_blob=True)
settings.load_profile("tests")


def _not_waited_for(descriptor: int) -> None:
    """Replace ``os.fsync``, which takes minutes in all tests. Its effect would only show after a power failure."""
    os.fstat(descriptor)


os.fsync = _not_waited_for


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> None:
    """Exclude what earlier tests have imported and kept from garbage collection, too. Trainers and benches collect several times,
    and searching all objects of a worker takes half a second.
    """
    if len(gc.get_objects()) > 100_000:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def first_configuration() -> Iterator[None]:
    """On a GPU, let Triton's autotuners use their first configuration. Compiling and timing all of them takes minutes for one of
    fla's kernels and does not change results.
    """
    if not TRITON or not torch.cuda.is_available() or os.environ["TRITON_INTERPRET"] == "1":
        yield
        return
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Autotuner, "prune_configs", lambda self, arguments: prune(self, arguments)[:1])
        yield


@pytest.fixture(autouse=True)
def one_seed() -> None:
    """Seed Python, NumPy and PyTorch alike for every test, whatever ran before it."""
    random.seed(0)
    numpy.random.seed(0)
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # what the other does for devices that are not there takes a hundred times as long
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Restore the environment after every test. A command sets variables for all processes that are started after it."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@pytest.fixture(autouse=True)
def first_warnings() -> None:
    """Forget which warnings of fallbacks other tests have had."""
    if (notices := sys.modules.get("composer.system.notices")) is not None:
        notices._WARNED.clear()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every connection fail."""

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@cache
def imports(path: Path, modules: str) -> bool:
    """Return whether a test file imports one of these modules at its top level."""
    return re.search(rf"^(from|import) ({modules})\b", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip the tests of kernels without Triton, which has their interpreter."""
    if TRITON or collection_path.suffix != ".py":
        return None
    return True if imports(collection_path, ON_TRITON) else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="Run the tests marked full, too.")


def pytest_report_header() -> str | None:
    return None if TRITON else "Triton is not installed: tests of kernels in its interpreter are left out"


def pytest_collection_finish() -> None:
    """Exclude the objects from before the first test from garbage collection."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()
    # Around each test pytest puts handlers on every logger that keeps its words to itself, as sixty of torch's do.
    for name in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "torch"]:
        logging.getLogger(name).propagate = True


@pytest.hookimpl(tryfirst=True)  # before some are left out by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked full, unless they are requested. Mark tests of kernels. With a GPU, run only those marked gpu,
    compiled. Files with long tests come first, so that no worker ends with one alone.
    """
    from tests.covers import beyond_pairs

    for item in beyond_pairs(items):
        item.add_marker(pytest.mark.full)
    if not config.getoption("full") and not any("[" in argument for argument in config.args):  # a case by its name
        full = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if not item.get_closest_marker("full")]
    for item in items:
        if imports(item.path, OF_KERNELS):
            item.add_marker(pytest.mark.kernels)
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    why = "no CUDA device here" if not torch.cuda.is_available() else "Triton's kernels are the interpreter's: TRITON_INTERPRET=0"
    if not torch.cuda.is_available() or os.environ["TRITON_INTERPRET"] == "1":
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After a run of ten minutes or more, list the files that lack the mark ``long``."""
    reports = [report for group in terminalreporter.stats.values() for report in group if isinstance(report, pytest.TestReport)]
    total = sum(report.duration for report in reports)
    long = [report for report in reports if report.duration > LONG * total]
    names = sorted({report.nodeid.partition("::")[0] for report in long if "long" not in report.keywords})
    if total > 600 and names:
        terminalreporter.write_line(f"Files with long tests that lack the mark long: {', '.join(names)}")
