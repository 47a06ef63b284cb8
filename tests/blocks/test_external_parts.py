"""Parts of files, modules and installed packages are registered. Faulty parts are refused, with the reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest

from blocks import external_parts
from blocks.catalogue import CATALOGUE
from blocks.external_parts import PartOrigin, list_named_parts, origin_of, register_parts
from blocks.gates import GATES, GateConfig
from blocks.memories import MEMORIES
from blocks.memories.state import StateMemory
from blocks.part import Closed
from blocks.registry import RegistrationError, rebuild_schemas
from tests.outside import EXAMPLE, GATE, fake_distribution, restored


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    with restored():
        yield


def written(path: Path, text: str = GATE) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_parts_of_a_file_are_registered(tmp_path: Path) -> None:
    """Parts of a file are in the catalogue, and fields of their role accept them, also in schemas that were used before."""

    class Holder(Closed):
        gates: tuple[Annotated[GateConfig, "beside"], ...]

    assert Holder.model_validate({"gates": ("none",)})
    assert StateMemory.model_validate({"gate": "head"})
    path = written(tmp_path / "mine.py")
    assert register_parts([path]) == (str(path),) == list_named_parts()
    (part,) = GATES.outside.values()
    assert (GATES["mine.slow"], CATALOGUE["gate"]["mine.slow"]) == (part, part)
    (gate,) = Holder.model_validate({"gates": ({"kind": "mine.slow", "rate": 0.5},)}).gates
    assert type(gate) is part
    assert StateMemory.model_validate({"gate": "mine.slow"}).gate == part()
    origin = origin_of(part)
    assert origin is not None
    assert (origin.module, origin.path, origin.package) == ("mine.py", str(path), None)
    assert len(origin.sha256 or "") == 64


def test_a_file_twice_is_registered_once(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py")
    register_parts([path])
    part = GATES["mine.slow"]
    register_parts([path, str(path)])
    assert GATES["mine.slow"] is part
    assert list_named_parts() == (str(path),)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py")
    register_parts([path])
    written(path, GATE.replace("0.1", "0.2"))
    with pytest.raises(RegistrationError, match="has changed since its parts were registered"):
        register_parts([path])


def test_parts_of_a_module_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    register_parts(["own_part"])
    assert {"own_part.between"} == GATES.outside.keys()
    assert {"own_part.strided"} == MEMORIES.outside.keys()
    origin = origin_of(MEMORIES["own_part.strided"])
    assert origin is not None
    assert origin.module == "own_part.strided"
    assert origin.path == str(EXAMPLE / "own_part" / "strided.py")


def test_parts_of_an_installed_package_are_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_distribution(tmp_path, "faked-gates", "faked", GATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    external_parts._INSTALLED.clear()
    assert "mine.slow" in GATES
    assert origin_of(GATES["mine.slow"]) == PartOrigin("faked", "faked-gates", "1.2")
    register_parts(["faked"])  # the same module, by its name
    assert list_named_parts() == ("faked",)


def test_a_damaged_installed_package_does_not_stop_other_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged installed package does not stop commands that do not need it, and the reason is kept."""
    fake_distribution(tmp_path, "faked-gates", "faked", f"{GATE}\nraise RuntimeError('no such device')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    external_parts._INSTALLED.clear()
    assert GATES.built_in.keys() == set(GATES)
    assert f"{tmp_path / 'faked.py'}, line 21: RuntimeError: no such device" in external_parts.find_broken_packages()["faked-gates"]
    assert "faked-gates is installed" in external_parts.remedy("faked_gates.slow")


FAULTS = {
    "no kind with a dot": (GATE.replace("mine.slow", "slow"), "has the kind `slow`; expected one with a dot"),
    "a capital": (GATE.replace("mine.slow", "Mine.slow"), "expected one with a dot, in lower-case letters"),
    "an inherited kind": ("from blocks.gates import PerHead\nclass Other(PerHead):\n    pass\n", "has the kind `head`"),
    "no equation": (GATE.replace("equation:", "other:"), "has no `equation`"),
    "no part": ("x = 1\n", "has no parts. Expected public classes"),
    "a private part alone": (GATE.replace("class Slow", "class _Slow"), "has no parts"),
    "parts of this project alone": ("from blocks.gates import PerHead\n", "has no parts"),
    "syntax": ("class :\n", r"mine.py, line 1: invalid syntax"),
    "an error": (f"{GATE}\n1 / 0\n", r"mine.py, line 21: ZeroDivisionError: division by zero"),
    "an exit": ("import sys\nsys.exit(3)\n", r"mine.py, line 2: SystemExit: 3"),
    "a missing module": ("import no_such_module\n", r"mine.py, line 1: ModuleNotFoundError: No module named 'no_such_module'"),
    "another role's base": (
        GATE.replace("    rank_of_decay", '    role: ClassVar[str] = "memory"\n    rank_of_decay'),
        "has the role `memory` and does not extend blocks.memories.base.Memory",
    ),
    "no role": (
        GATE.replace("    rank_of_decay", '    role: ClassVar[str] = "tap"\n    rank_of_decay'),
        "has the role `tap`; expected one of mix input",
    ),
    "two of a kind": (f"{GATE}\nclass Other(Slow):\n    pass\n", "the kind `mine.slow` is registered already"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_file_is_refused_and_registers_no_part(tmp_path: Path, fault: str) -> None:
    text, message = FAULTS[fault]
    with pytest.raises(RegistrationError, match=message) as raised:
        register_parts([written(tmp_path / "mine.py", text)])
    assert "mine.py" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not any(role.outside for role in CATALOGUE.values())
    assert not list_named_parts()
    register_parts([written(tmp_path / "mine.py")])  # the mended file


def test_a_kind_that_another_file_registered_is_refused(tmp_path: Path) -> None:
    register_parts([written(tmp_path / "mine.py")])
    with pytest.raises(RegistrationError, match=r"`mine\.slow` is registered already, by Slow in composer_parts_mine_.*another"):
        register_parts([written(tmp_path / "other.py")])
    assert len(list_named_parts()) == 1


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module.parts", "no module `no_such_module.parts` here. Install its package"),
        ("no such module", "is no name of a module"),
        ("missing.py", "missing.py is no file"),
        ("./folder", "is no file"),
    ],
)
def test_references_without_file_or_module_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(RegistrationError, match=message):
        register_parts([reference])


def test_pipes_are_refused(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(RegistrationError, match="is no file"):
        register_parts([tmp_path / "pipe.py"])


def test_a_file_is_importable_by_the_name_of_its_module(tmp_path: Path) -> None:
    """Objects of its classes can be sent to another process that has registered the file."""
    register_parts([written(tmp_path / "my mine.py")])
    module = GATES["mine.slow"].__module__
    assert __import__(module) is sys.modules[module]


def test_a_role_with_one_part_takes_a_mapping_without_a_kind(tmp_path: Path) -> None:
    """A role with one part still accepts a mapping without a kind after another part is registered."""
    from composer.graph.composition import HeadSpec

    text = (
        "from typing import ClassVar, Literal\nfrom blocks.convolution import Convolution\n"
        'class Wide(Convolution):\n    """A wide one."""\n    source: ClassVar[str] = "this test"\n'
        '    kind: Literal["mine.wide"] = "mine.wide"\n    kernel: int = 8\n'
    )
    head = {"memory": ("full",), "conv": {"kernel": 3}}
    plain = HeadSpec.model_validate(head).conv
    register_parts([written(tmp_path / "mine.py", text)])
    rebuild_schemas()
    assert HeadSpec.model_validate(head).conv == plain
    built_in = HeadSpec.model_validate({"memory": ("full",), "conv": "mine.wide"}).conv
    assert built_in is not None
    assert (built_in.kind, built_in.kernel) == ("mine.wide", 8)
