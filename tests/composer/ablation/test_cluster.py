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

pytestmark = pytest.mark.long


def test_a_cluster_equals_one_process(ablation_request: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths of the caller are found by the workers, and a failure has the same message."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    assert ablation_request.source is not None
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "teacher").symlink_to(ablation_request.source)
    monkeypatch.chdir(tmp_path / "here")
    for name in ("random", "tempfile", "torch", "pydantic"):
        Path(f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    request = replace(ablation_request, source="teacher")
    softmax = {"compose": 1, "name": "softmax", "head": {"position": "rope", "memory": ["full"]}}
    failing = write_spec(tmp_path / "f.yaml", softmax, recipe={"sequence": 16, "transfer": {"lr": 1e-2, "steps": 1}})
    specs = [write_spec(tmp_path / "s.yaml"), failing]
    alone = ablate(specs, request, tmp_path / "alone")
    messages: list[Any] = []
    try:
        spread = ablate(
            specs,
            request,
            tmp_path / "spread",
            workers=ray_workers("local"),
            tell=lambda step, *_: step is not None and messages.append(step),
        )
    except AblationError as error:
        if "Ray did not start here" not in str(error):
            raise
        pytest.skip("this machine is too busy for the 15 seconds in which Ray's server waits for its own agent")
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
    assert not (tmp_path / "ran").exists(), "a file of the current folder has run"


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_slow_clusters_are_waited_for(failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine, on which Ray raises Exception itself. Its workers do not import from the caller's folder."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    folders: list[Path] = []

    def init(**_: Any) -> None:
        folders.append(Path.cwd())
        if len(folders) <= failures:
            raise Exception("The current node timed out during startup.\nThis could happen")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "remote", lambda **_: lambda function: function)
    monkeypatch.chdir(tmp_path)
    if failures < 3:
        with ray_workers("local")():
            assert Path.cwd() == tmp_path
    else:
        with (
            pytest.raises(AblationError, match=r"^Ray did not start here in 3 tries: .* timed out during startup\.$"),
            ray_workers("local")(),
        ):
            pass
    assert len(folders) == min(failures + 1, 3)
    assert tmp_path not in folders


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "somewhere"])
def test_unknown_clusters_are_refused(address: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    with pytest.raises(AblationError, match=f"There is no Ray cluster at {address} .*: expected HOST:PORT"), ray_workers(address)():
        pass


def test_a_missing_ray_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(AblationError, match=r"pip install '\.\[ray\]' in Composer's checkout, or leave --ray out"):
        ray_workers("auto")


def test_machines_without_the_folder_are_reported(
    ablation_request: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (chain,) = chains_of([write_spec(tmp_path / "s.yaml")], ablation_request, tmp_path).values()
    folder, step = tmp_path / STEPS, chain.steps[0]
    assert f"{folder} is not there on " in run_on_machine(step, folder, tmp_path)[FAILURE]
    folder.mkdir()
    (folder / MARK).touch()
    assert f"{tmp_path / 'elsewhere'} is not there on " in run_on_machine(step, folder, tmp_path / "elsewhere")[FAILURE]
    monkeypatch.chdir(tmp_path)
    assert FAILURE not in run_on_machine(step, folder, tmp_path)
