"""If a file is a pipe, a device, a folder, a link or unreadable, every command rejects it at once with a message."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import save
from typer.testing import CliRunner

from composer.cli.main import app
from converters.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from converters.source import INDEX
from tests.checkpoints import edit_config, llama
from tests.composer.cli.conftest import Compose
from tests.composer.training.runs import write_texts
from tests.covers import cover, in_turns, some
from tests.damage import DAMAGE, IRREGULAR, damage, no_waiting

SPEC = "compose: 1\nname: {}\nhead: {{position: rope, memory: [full]}}\n"
CHILD = "compose: 1\nname: child\nextends: spec.yaml\n"


@pytest.fixture(scope="module")
def originals(teacher: Path, student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source in one file, a source in shards, a student, a student with adapters, specs and a text, to copy."""
    folder = tmp_path_factory.mktemp("originals")
    shutil.copytree(teacher, folder / "source")
    llama(folder / "sharded", sharded=True)
    index = json.loads((folder / "sharded" / INDEX).read_text())
    file = index["weight_map"]["model.norm.weight"]
    (folder / "sharded" / file).rename(folder / "sharded" / "SHARD")
    index["weight_map"] = {name: "SHARD" if own == file else own for name, own in index["weight_map"].items()}
    (folder / "sharded" / INDEX).write_text(json.dumps(index))
    shutil.copytree(student, folder / "student")
    shutil.copytree(student, folder / "adapted")
    (folder / "adapted" / "adapter").mkdir()
    settings = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM").to_dict() | {"target_modules": ["q_proj"]}
    (folder / "adapted" / "adapter" / ADAPTER_CONFIG).write_text(json.dumps(settings))
    names = [f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_" for layer in range(2)]
    weights = {f"{name}{side}.weight": torch.ones(shape) for name in names for side, shape in (("A", (2, 32)), ("B", (32, 2)))}
    (folder / "adapted" / "adapter" / ADAPTER_WEIGHTS).write_bytes(save(weights))
    edit_config(folder / "adapted", adapter="adapter")
    (folder / "spec.yaml").write_text(SPEC.format("spec"))
    (folder / "child.yaml").write_text(CHILD)
    (folder / "text.txt").write_text("once upon a time there was a cat and it slept " * 20)
    (folder / "text.state").write_bytes(b"of a model")
    return folder


READS = {
    "spec.yaml": (
        "check spec.yaml",
        "check child.yaml",
        "show spec.yaml",
        "explain child.yaml --from source",
        "new b --like spec.yaml",
    ),
    "source/config.json": ("explain lolcats --from source", "build lolcats --from source -o out"),
    "source/model.safetensors": ("build lolcats --from source -o out", "sample source -o out.jsonl --texts 1 --length 4"),
    "source/generation_config.json": ("build lolcats --from source -o out",),
    "source/tokenizer.json": ("build lolcats --from source -o out", "generate source --prompt once"),
    "source/tokenizer_config.json": ("generate source --prompt once",),
    f"sharded/{INDEX}": ("build lolcats --from sharded -o out",),
    "sharded/SHARD": ("build lolcats --from sharded -o out",),
    "student/config.json": ("generate student --prompt once",),
    "student/composition.json": ("verify student", "check student", "distill student --data text.txt -o out"),
    "student/fresh.safetensors": ("generate student --prompt once", "inspect student --text text.txt --length 8 --alone"),
    f"student/{INDEX}": ("generate student --prompt once",),
    "student/tokenizer.json": ("generate student --prompt once", "eval student --tasks passkey --lengths 64"),
    f"adapted/adapter/{ADAPTER_CONFIG}": ("generate adapted --prompt once",),
    f"adapted/adapter/{ADAPTER_WEIGHTS}": ("generate adapted --prompt once",),
    "text.txt": (
        "inspect student --text text.txt --length 8 --alone",
        "eval student --tasks perplexity,text=text.txt --lengths 8",
        "read student --text text.txt -o out.state",
    ),
    "text.state": ("generate student --prompt once --state text.state",),
}
"""Commands by the file that each of them reads."""
PRODUCT = [(name, command, kind) for name, commands in READS.items() for command in commands for kind in DAMAGE]
PAIRS: dict[tuple[str, str, str], set[Any]] = {
    (name, command, kind): {(name, kind), (name, command), (command.split()[0], kind)} for name, command, kind in PRODUCT
}
"""What each case shows: of a file and of a command with each damage, and of a command with each file."""


def refused(result: Any, name: str) -> str:
    """Return the message of a command that rejected a file."""
    assert result.exit_code == 2, (result.exit_code, result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert Path(name).name in result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(("name", "command", "kind"), some(PRODUCT, cover(PAIRS)))
def test_damaged_files_are_refused_by_every_command_that_reads_them(
    compose: Compose, originals: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str, kind: str
) -> None:
    shutil.copytree(originals, ".", dirs_exist_ok=True)
    damage(Path(name), kind, monkeypatch)
    before = sorted(Path().rglob("*"))
    with no_waiting():
        message = refused(compose(*command.split()), name)
    assert "USER=" not in message, "nothing of the file that a link leads to is shown"
    assert sorted(Path().rglob("*")) == before, "nothing is written"


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.parametrize("name", ["fresh.safetensors", "tokenizer.json", "config.json", "generation_config.json"])
def test_verify_finds_that_a_file_is_another(
    compose: Compose, originals: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    shutil.copytree(originals / "student", "student")
    damage(Path("student", name), kind, monkeypatch)
    with no_waiting():
        result = compose("verify", "student")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "failed" in result.stdout


@pytest.mark.parametrize("name", ["fresh.safetensors", "tokenizer.json"])
def test_verify_cannot_say_of_an_unreadable_file_whether_it_matches(
    compose: Compose, originals: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copytree(originals / "student", "student")
    damage(Path("student", name), "unreadable", monkeypatch)
    refused(compose("verify", "student"), name)


@pytest.mark.parametrize("origin", ["pipe", "/dev/zero", "/proc/kmsg", "/proc/kcore", "/proc/self/environ", ".", "nowhere", "a\0b"])
def test_the_origin_in_a_record_may_be_any_path(
    compose: Compose, originals: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    shutil.copytree(originals / "student", "student")
    damage(Path("pipe"), "pipe", monkeypatch)
    record = json.loads(Path("student/composition.json").read_text())
    linked = next(name for name, file in record["files"].items() if file["how"] != "written")
    record["files"][linked] |= {"sha256": None, "origin": origin, "how": "copied", "inode": 1}
    Path("student/composition.json").write_text(json.dumps(record))
    with no_waiting():
        result = compose("verify", "student", "--json")
    (check,) = [entry for entry in json.loads(result.stdout)["checks"] if (entry["what"], entry["subject"]) == ("contents", linked)]
    assert check["outcome"] == "unknown"
    assert "no longer the file that was linked" in check["detail"]


def test_an_origin_is_not_read(compose: Compose, originals: Path) -> None:
    shutil.copytree(originals / "student", "student")
    with Path("large").open("wb") as stream:
        stream.truncate(2**42)
    record = json.loads(Path("student/composition.json").read_text())
    linked = next(name for name, file in record["files"].items() if file["how"] != "written")
    record["files"][linked] |= {"sha256": None, "origin": "large", "how": "copied", "inode": 1}
    Path("student/composition.json").write_text(json.dumps(record))
    with no_waiting():
        result = compose("verify", "student")
    assert result.exit_code == 0
    assert "1 could not be checked" in " ".join(result.stdout.split())


def test_a_tokenizer_has_a_bounded_size(compose: Compose, originals: Path) -> None:
    shutil.copytree(originals / "source", "source")
    with Path("source/tokenizer.json").open("wb") as stream:
        stream.truncate(2**40)
    assert "larger than" in refused(compose("build", "lolcats", "--from", "source", "-o", "out"), "tokenizer.json")


def test_unsearchable_folders_are_refused(compose: Compose, originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in an unsearchable folder fails in an unexpected place, and still gives a message."""
    shutil.copytree(originals / "student", "student")

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert "Permission denied" in refused(compose("generate", "student", "--prompt", "once"), "config.json")


Damaged = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def stopped(originals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return stopped runs of stage 1, in memory and layer by layer, with their data."""
    from composer.training import checkpoint, streamed

    folder = tmp_path_factory.mktemp("stopped")
    write_texts(folder / "texts.jsonl")
    save, finished = checkpoint.save, streamed._write_finished

    def stop(target: Path, step: int, *arguments: Any) -> None:
        save(target, step, *arguments)
        raise KeyboardInterrupt

    def stop_between(target: Path, *arguments: Any) -> None:
        finished(target, *arguments)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(checkpoint, "save", stop)
            assert run("plain", originals).exit_code == 130
        patch.setattr(streamed, "_write_finished", stop_between)
        assert run("streamed", originals, "--stream").exit_code == 130
    return folder


def run(out: str, originals: Path, *options: str) -> Any:
    sizes = ("recipe.sequence=16", "recipe.transfer.steps=2", "recipe.transfer.batch=2")
    settings = [word for setting in sizes for word in ("--set", setting)]
    arguments = ["distill", originals / "student", "--data", "texts.jsonl", "--stage", "transfer", "-o", out, *settings, *options]
    return CliRunner().invoke(app, list(map(str, arguments)))


FILES_OF_RUNS = {
    "plain.run/run.json": True,
    "plain.run/log.jsonl": True,
    "plain.run/transfer/step-00000002/facts.json": True,
    "plain.run/transfer/step-00000002/process-0.safetensors": True,
    "streamed.run/run.json": True,
    "streamed.run/layer-0.safetensors": False,
    "streamed.run/rows-0.hidden": False,
}
"""Files of stopped runs, and whether the run cannot go on without them: it makes the others anew."""


@pytest.mark.parametrize(("name", "kind"), in_turns(FILES_OF_RUNS, DAMAGE))
def test_resumed_runs_refuse_or_replace_damaged_files(
    compose: Compose, originals: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    shutil.copytree(stopped, ".", dirs_exist_ok=True)
    damage(Path(name), kind, monkeypatch)
    out = name.partition(".")[0]
    with no_waiting():
        result = run(out, originals, "--resume", *(["--stream"] if out == "streamed" else []))
    if FILES_OF_RUNS[name] or result.exit_code:
        refused(result, name)
        assert not Path(out).exists()


def test_undamaged_stopped_runs_resume(compose: Compose, originals: Path, stopped: Path) -> None:
    shutil.copytree(stopped, ".", dirs_exist_ok=True)
    for out, options in (("plain", ()), ("streamed", ("--stream",))):
        result = run(out, originals, "--resume", *options)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ["run.json", "samples.jsonl"])
def test_resumed_evaluations_refuse_irregular_files(
    compose: Compose, originals: Path, evaluated: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    shutil.copytree(evaluated, "out")
    damage(Path("out", name), kind, monkeypatch)
    with no_waiting():
        refused(evaluation(originals, "out"), "out" if name == "run.json" else name)


@pytest.fixture(scope="module")
def evaluated(originals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluations") / "out"
    result = evaluation(originals, str(folder))
    assert result.exit_code == 0, result.output
    return folder


def evaluation(originals: Path, out: str) -> Any:
    arguments = ["--tasks", f"perplexity,text={originals / 'text.txt'}", "--lengths", "8", "--samples", "2", "-o", out]
    return CliRunner().invoke(app, ["eval", str(originals / "student"), *arguments])
