"""A missing or failing kernel is reported with its reason, and the next form runs in its place with one warning."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import blocks.kernels
from blocks.kernels import FLASH_LINEAR_ATTENTION, TRITON_PACKAGE, Kernel, Package, Refused, gpu_obstacle
from blocks.operation import Form, Setting
from blocks.recurrences import additive
from composer.graph.lowering import list_forms
from composer.system.notices import FallsBack
from tests.composer.graph.backends import forget
from tests.composer.graph.heads import SIZE, graph_of, resolved
from tests.laws.cases import Inputs, build_head, inputs, run

ROOT = Path(__file__).parent.parent.parent
LINEAR = {"feature_map": "elu", "memory": ["state"]}
NOWHERE = Package("no-such-package-anywhere", ">=1")
OLD = Package("numpy", ">=9999")


@pytest.fixture
def no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the failures of earlier tests."""
    monkeypatch.setattr(blocks.kernels, "_failed", {})


@pytest.mark.parametrize("package", [FLASH_LINEAR_ATTENTION, TRITON_PACKAGE])
def test_version_ranges_match_pyproject_and_the_installed_packages(package: Package) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in ("gpu", "dev"):
        assert f"{package.name}{package.versions}; sys_platform == 'linux'" in project[extra]
    assert package.missing() is None


def test_missing_or_old_packages_are_reported_with_the_install_command() -> None:
    assert NOWHERE.missing() == "no-such-package-anywhere is not installed: pip install '.[gpu]' in Composer's checkout"
    old = OLD.missing()
    assert old is not None
    assert old.startswith("numpy ")
    assert old.endswith("is installed, and >=9999 is needed: pip install '.[gpu]' in Composer's checkout")


def test_kernels_raise_refused_with_the_reason(no_failures: None) -> None:
    assert Kernel("math", "sqrt", TRITON_PACKAGE)(4.0) == 2.0
    with pytest.raises(Refused, match=r"sqrt refused \(ValueError: .*\)"):
        Kernel("math", "sqrt", TRITON_PACKAGE)(-1.0)
    gone = Kernel("math", "no_such_function", TRITON_PACKAGE)
    assert gone.missing() is None
    for _ in range(2):
        with pytest.raises(Refused, match="math has no no_such_function that could be imported"):
            gone()
    assert gone.missing() is not None
    with pytest.raises(Refused, match="is not installed"):
        Kernel("math", "sqrt", NOWHERE)(4.0)


def test_out_of_memory_errors_of_kernels_are_not_caught() -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("math.sqrt", full)
        with pytest.raises(torch.OutOfMemoryError):
            Kernel("math", "sqrt", TRITON_PACKAGE)(4.0)


def test_kernels_are_launched_on_the_gpu_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are launched on the GPU of their tensors, which may not be the current GPU of a model on several."""
    seen: list[Any] = []

    class Current:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            seen.append(self.device)

        def __exit__(self, *_: object) -> None:
            seen.append("left")

    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr("math.sqrt", lambda *_, **__: seen.append("runs"))
    kernel = Kernel("math", "sqrt", TRITON_PACKAGE)
    with FakeTensorMode():
        on_gpu, elsewhere = torch.empty(1, device="cuda:1"), torch.empty(1)
    expected = [torch.device("cuda:1"), "runs", "left"]
    for positional, named in (((on_gpu,), {}), ((elsewhere, None, on_gpu), {}), ((), {"q": on_gpu})):
        kernel(*positional, **named)
        assert seen == expected
        seen.clear()
    kernel(elsewhere, 1.0)
    assert seen == ["runs"]


def test_triton_runs_on_a_gpu_or_in_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_obstacle(Setting("cuda", "bfloat16")) is None
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert gpu_obstacle(Setting("cpu", "float32")) is None
    assert gpu_obstacle(Setting("cuda", "float64")) == "Triton's kernels do not support float64"
    monkeypatch.delenv("TRITON_INTERPRET")
    assert str(gpu_obstacle(Setting("cpu", "float32"))).startswith("Triton runs on a GPU")


def _broken(error: Exception) -> Any:
    def run(*_: Any) -> Any:
        raise error

    return run


def _in_pieces(data: Inputs, bounds: tuple[int, ...]) -> torch.Tensor:
    head, state, outputs = build_head(resolved(LINEAR).heads["head"], SIZE.shape(4)), None, []
    for start, stop in itertools.pairwise(bounds):
        output, state = run(head, data.cut(slice(start, stop)), state, "own")
        outputs.append(output)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("bounds", [(0, 12), (0, 11, 12)])
def test_the_next_form_runs_with_one_warning_if_a_form_refuses(
    no_failures: None, bounds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = inputs(SIZE.shape(4), 2, 12)
    expected, _ = run(build_head(resolved(LINEAR).heads["head"], SIZE.shape(4)), data)
    first = Form("own", "one that refuses", _broken(Refused("no such kernel")), refuses=True)
    monkeypatch.setattr(additive, "FORMS", (first, *additive.FORMS))
    forget()
    try:
        with pytest.warns(FallsBack) as warned:
            actual = _in_pieces(data, bounds)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
        (only,) = [str(warning.message) for warning in warned]
        assert only.startswith("no such kernel. In its place: chunks of 64")
    finally:
        forget()


def test_missing_packages_are_explained_and_reported_once(no_failures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Form("own", "of a package", _broken(AssertionError()), missing=NOWHERE.missing)
    monkeypatch.setattr(additive, "FORMS", (first, *additive.FORMS))
    forget()
    try:
        (state,) = [lowered_part for lowered_part in list_forms(graph_of(LINEAR), "own", Setting()) if lowered_part.part == "state"]
        assert state.backend == "torch"
        assert state.why_this_form.startswith("no-such-package-anywhere is not installed: pip install")
        with pytest.warns(FallsBack, match="no-such-package-anywhere is not installed") as warned:
            _in_pieces(inputs(SIZE.shape(4), 2, 12), (0, 5, 11, 12))
        assert len(warned) == 1
    finally:
        forget()


def test_explain_for_a_gpu_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys; from pathlib import Path; from composer.spec.explain import explain_resolved\n"
        "from composer.spec.loading import load_spec; from composer.spec.resolve import Dimensions, resolve\n"
        "size = Dimensions(hidden_size=64, layers=4, heads=8, key_heads=4, head_dim=8, rope_theta=1e4)\n"
        "answer = explain_resolved(resolve(load_spec('gla'), size), device='cuda', dtype='bfloat16')\n"
        "assert not {'torch', 'triton', 'fla', 'transformers'} & set(sys.modules)"
    )
    around = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run((sys.executable, "-c", code), env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
