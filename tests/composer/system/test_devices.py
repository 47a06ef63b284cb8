"""Memory needs are compared with the limits of the machine, the container and the process before they are allocated."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil
import pytest

import composer
from composer.errors import BuildError, ComposerError
from composer.system import devices
from composer.system.devices import check_memory, free_memory, processes_started

ROOT = Path(__file__).parents[3]


def test_too_large_models_are_refused_before_writing() -> None:
    check_memory(1, "one byte")
    with pytest.raises(
        BuildError, match=r"Not enough memory for all of it: it needs 1,152,921,504,606,846,976 bytes, and [\d,]+ are free"
    ):
        check_memory(2**60, "all of it")
    assert 0 < free_memory() <= psutil.virtual_memory().total + psutil.swap_memory().total


def test_missing_devices_can_be_described() -> None:
    """A device that this machine lacks can be described. An unknown device is rejected."""
    teacher = ROOT / "examples" / "teacher"
    of_one, of_any = (composer.explain("lolcats", teacher, sequence=512, device=device) for device in ("cuda:1", "cuda"))
    assert of_one == of_any != composer.explain("lolcats", teacher, sequence=512)
    assert composer.code("lolcats", teacher, device="cuda:0").text == composer.code("lolcats", teacher, device="cuda").text
    for describe in (composer.explain, composer.code):
        with pytest.raises(ComposerError, match="a model runs on cpu or cuda, not on 'tpu'"):
            describe("lolcats", teacher, device="tpu")


@pytest.mark.parametrize("size", ["", "two", "0", "-1"])
def test_a_wrong_number_of_processes_is_an_error_with_the_variable(monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(BuildError, match=f'WORLD_SIZE is "{size}": expected a number of processes, as torchrun sets it'):
        processes_started()


def test_the_limit_of_a_process_is_respected() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    room = 2**28
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + room, before[1]))
    try:
        assert room / 2 < free_memory() <= room
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(("most", "left"), [("1000\n", 1000 - 700 + 50 + 25), ("max\n", None)])
def test_the_limit_of_a_container_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str, left: int | None
) -> None:
    """Memory of cached files in the container counts as free."""
    (tmp_path / "memory.max").write_text(most)
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 50\nactive_file 25\n")
    monkeypatch.setattr(devices, "_GROUP", tmp_path)
    assert free_memory() == left if left is not None else free_memory() > 1000
