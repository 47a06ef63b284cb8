"""An ablation on a local Ray gives the results of one process, leaves nothing behind, and reports what is missing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer.ablation.ablate import STEPS, ablate
from composer.ablation.cluster import ray_workers, run_on_machine
from composer.ablation.options import Request
from composer.ablation.steps import FAILURE, MARK
from composer.errors import AblationError
from tests.composer.ablation.variants import chains_of, stored, write_spec


def test_the_same_as_in_one_process(ablation_request: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths of the caller are found by the workers, and a failure has the same message."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    assert ablation_request.source is not None
    monkeypatch.chdir(Path(ablation_request.source).parent)
    request = replace(ablation_request, source=Path(ablation_request.source).name)
    softmax = {"compose": 1, "name": "softmax", "head": {"position": "rope", "memory": ["full"]}}
    failing = write_spec(tmp_path / "f.yaml", softmax, recipe={"sequence": 16, "transfer": {"lr": 1e-2, "steps": 1}})
    specs = [write_spec(tmp_path / "s.yaml"), failing]
    alone = ablate(specs, request, tmp_path / "alone")
    messages: list[Any] = []
    spread = ablate(
        specs,
        request,
        tmp_path / "spread",
        workers=ray_workers("local"),
        tell=lambda step, *_: step is not None and messages.append(step),
    )
    assert stored(tmp_path / "spread") == stored(tmp_path / "alone")
    assert (spread.failed, alone.failed) == (True, True)
    assert [step.kind for step in messages if step.variant.name == "tiny"] == [
        "build",
        "transfer",
        "compare",
        "finetune",
        "evaluate",
    ]
    assert not ray.is_initialized()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "somewhere"])
def test_no_such_cluster(address: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    with pytest.raises(AblationError, match=f"There is no Ray cluster at {address} .*: expected HOST:PORT"), ray_workers(address)():
        pass


def test_ray_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(AblationError, match=r"pip install '\.\[ray\]' in Composer's checkout, or leave --ray out"):
        ray_workers("auto")


def test_a_machine_that_does_not_see_the_folder(ablation_request: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (chain,) = chains_of([write_spec(tmp_path / "s.yaml")], ablation_request, tmp_path).values()
    folder, step = tmp_path / STEPS, chain.steps[0]
    assert f"{folder} is not there on " in run_on_machine(step, folder, tmp_path)[FAILURE]
    folder.mkdir()
    (folder / MARK).touch()
    assert f"{tmp_path / 'elsewhere'} is not there on " in run_on_machine(step, folder, tmp_path / "elsewhere")[FAILURE]
    monkeypatch.chdir(tmp_path)
    assert FAILURE not in run_on_machine(step, folder, tmp_path)
