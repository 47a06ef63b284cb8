"""A pushed model, export or spec is downloaded byte for byte, and only files named in a record are uploaded."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from huggingface_hub import ModelCard, constants

import composer
from composer.errors import ComposerError, PushError
from composer.weights.record import read_record
from tests.composer.cli.conftest import Compose
from tests.hub_server import LocalHub

pytestmark = pytest.mark.long

REPO = "owner/mine"
ONE_STEP = ("--set", "recipe.transfer.epochs=null", "--set", "recipe.transfer.steps=1", "--set", "recipe.sequence=8")


def front_matter(card: bytes) -> dict[str, Any]:
    return yaml.safe_load(card.decode().split("---")[1])


def test_a_model_is_pushed_and_pulled_as_the_same_bytes(hub: LocalHub, compose: Compose, student: Path) -> None:
    result = compose("push", student, REPO)
    assert result.exit_code == 0, result.output
    repository = hub.repositories[REPO]
    record = read_record(student)
    assert record is not None
    assert record.documents is not None
    assert repository.private
    names = {*record.files, *record.documents, "composition.json"}
    assert repository.files().keys() == names | {".gitattributes"}
    for name in names - {"README.md"}:
        assert repository.files()[name] == (student / name).read_bytes(), name
    assert f'from_pretrained("{REPO}"' in repository.files()["README.md"].decode()
    assert f"`compose verify hub:{REPO}`" in repository.files()["README.md"].decode()
    verified = composer.verify(f"hub:{REPO}")
    assert verified.ok
    for name in names:
        assert (verified.folder / name).read_bytes() == repository.files()[name], name


@pytest.mark.usefixtures("without_comparison")
def test_every_command_on_models_takes_a_name_on_the_hub(hub: LocalHub, compose: Compose, student: Path, teacher: Path) -> None:
    commit = composer.push(student, REPO).commit
    named = f"hub:{REPO}@{commit}"
    Path("text.txt").write_text("once upon a time there was a cat and it slept\n" * 50)
    for arguments in (
        ("verify", named),
        ("explain", named),
        ("show", named),
        ("check", named, "--from", teacher),
        ("diff", named, "lolcats", "--from", teacher),
        ("draw", named, "-o", "picture.svg"),
        ("new", "copy", "--like", named),
        ("generate", named, "--prompt", "once upon", "--max-new-tokens", "2"),
        ("merge", named),
        ("export", named),
        ("build", named, "--from", teacher, "-o", "again"),
        ("build", "softmax", "--from", named, "-o", "as-source"),
        ("eval", named, "--tasks", "perplexity", "--text", "text.txt", "--lengths", "16", "--samples", "1"),
        ("bench", named, "--prefill", "16"),
        ("distill", named, "--data", "text.txt", "--teacher", teacher, "--stage", "transfer", *ONE_STEP),
    ):
        result = compose(*arguments)
        expected = 2 if arguments[0] == "merge" else 0  # it has no adapters
        assert result.exit_code == expected, (arguments, result.output)
    assert Path("mine-exported", "export.json").is_file()
    assert Path("mine-distilled", "composition.json").is_file()
    assert composer.load(named).config.spec_hash == composer.load(student).config.spec_hash
    before, after = read_record(student), read_record(Path("again"))
    assert before is not None
    assert after is not None
    assert before.spec_hash == after.spec_hash


def test_a_dry_run_lists_files_and_does_not_ask_the_hub(hub: LocalHub, compose: Compose, student: Path) -> None:
    result = compose("push", student, REPO, "--dry-run", "--json")
    report = json.loads(result.stdout)
    assert report["commit"] is None
    assert report["files"]["config.json"] == (student / "config.json").stat().st_size
    assert {path.name for path in student.iterdir()} == report["files"].keys()
    assert hub.calls == []


def test_files_that_no_record_names_are_not_uploaded(hub: LocalHub, student: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(student, tmp_path / "copy")
    (folder / "notes.txt").write_text("mine")
    report = composer.push(folder, REPO)
    assert report.left_out == ("notes.txt",)
    assert "notes.txt" not in hub.repositories[REPO].files()


@pytest.mark.parametrize("damage", ["changed", "missing", "cut"])
def test_folders_that_contradict_their_record_are_refused(hub: LocalHub, student: Path, tmp_path: Path, damage: str) -> None:
    folder = shutil.copytree(student, tmp_path / "copy")
    name = "fresh.safetensors" if damage == "cut" else "tokenizer.json"
    if damage == "missing":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    with pytest.raises(PushError, match=rf"{name}.*compose verify"):
        composer.push(folder, REPO)
    assert hub.calls == []


@pytest.mark.usefixtures("quick_comparison")
def test_an_export_is_on_a_branch_beside_its_model(hub: LocalHub, student: Path, exported: Path) -> None:
    """The weights of both are uploaded once."""
    composer.push(student, REPO, public=True)
    uploads = list(hub.uploads)
    with pytest.raises(PushError, match=r"holds a built model, and this is an export\. .*`branch=NAME`"):
        composer.push(exported, REPO)
    report = composer.push(exported, REPO, branch="export")
    files = hub.repositories[REPO].files("export")
    assert files.keys() - {".gitattributes"} == {path.name for path in exported.iterdir()}
    assert hub.uploads == uploads
    assert not report.private
    assert hub.repositories[REPO].files()["config.json"] == (student / "config.json").read_bytes()
    assert composer.verify(f"hub:{REPO}@export").ok
    assert f'from_pretrained("{REPO}"' in files["README.md"].decode()
    assert f"]({'composition.svg'})" in files["README.md"].decode()


def test_a_spec_is_pushed_and_used(hub: LocalHub, compose: Compose, teacher: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("# Mine.\n" + composer.show("lawcat").yaml.replace("name: lawcat", "name: mine"))
    composer.push(path, "owner/spec")
    assert hub.repositories["owner/spec"].files()["spec.yaml"] == path.read_bytes()
    assert hub.repositories["owner/spec"].files().keys() == {".gitattributes", "README.md", "composition.svg", "spec.yaml"}
    wanted = composer.show(path, teacher).hash
    for named in ("hub:owner/spec", "hub:owner/spec/spec.yaml", "hub:owner/spec@main"):
        assert composer.show(named, teacher).hash == wanted
    result = compose("bench", teacher, "hub:owner/spec", "--prefill", "16")
    assert result.exit_code == 0, result.output
    extending = tmp_path / "extending.yaml"
    extending.write_text("compose: 1\nname: short\nextends: mine.yaml\n")
    composer.push(extending, "owner/short")
    assert composer.show("hub:owner/short", teacher).hash == wanted


def test_a_sweep_is_pushed_and_its_variants_are_named(hub: LocalHub) -> None:
    composer.push("ablations/lawcat-rope", "owner/sweep")
    assert composer.expand("hub:owner/sweep").keys() == composer.expand("ablations/lawcat-rope").keys()
    variant = next(iter(composer.expand("ablations/lawcat-rope")))
    assert composer.load_spec(f"hub:owner/sweep:{variant}").head == composer.load_spec(f"ablations/lawcat-rope:{variant}").head


def test_a_spec_of_the_hub_is_not_extended(hub: LocalHub, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("compose: 1\nname: mine\nextends: hub:owner/spec\n")
    with pytest.raises(ComposerError, match=r"mine\.yaml:3:.*cannot be extended.*compose show hub:owner/spec > FILE\.yaml"):
        composer.load_spec(path)
    assert hub.calls == []


def test_files_of_others_are_not_replaced(hub: LocalHub, student: Path) -> None:
    other = hub.create(REPO, {"pytorch_model.bin": b"theirs", "config.json": b"{}"})
    with pytest.raises(PushError, match=r"did not write \(config\.json, pytorch_model\.bin\).*force"):
        composer.push(student, REPO)
    assert other.files()["config.json"] == b"{}"
    composer.push(student, REPO, force=True)
    assert other.files()["pytorch_model.bin"] == b"theirs"
    assert other.files()["config.json"] == (student / "config.json").read_bytes()


def test_files_of_an_earlier_push_are_removed(hub: LocalHub, student: Path, teacher: Path, tmp_path: Path) -> None:
    trained = shutil.copytree(student, tmp_path / "trained")
    document = json.loads((trained / "composition.json").read_text())
    (trained / "NOTICE").write_text("terms")
    document["documents"]["NOTICE"] = hashlib.sha256(b"terms").hexdigest()
    (trained / "composition.json").write_text(json.dumps(document))
    composer.push(trained, REPO)
    assert "NOTICE" in hub.repositories[REPO].files()
    report = composer.push(student, REPO)
    assert report.removed == ("NOTICE",)
    assert "NOTICE" not in hub.repositories[REPO].files()


def test_the_card_names_the_origin_of_the_weights(hub: LocalHub, teacher: Path, tmp_path: Path) -> None:
    hub.create("owner/teacher", {path.name: path.read_bytes() for path in teacher.iterdir()})
    built = composer.build_folder("lolcats", "hub:owner/teacher", tmp_path / "built").out
    composer.push(built, REPO)
    card = hub.repositories[REPO].files()["README.md"]
    record = read_record(built)
    assert record is not None
    front = front_matter(card)
    assert front["base_model"] == "owner/teacher"
    assert {"composed", "linear-attention"} <= set(front["tags"])
    for part in (record.spec_hash, hub.repositories["owner/teacher"].branches["main"], "composition.svg", "## Spec"):
        assert part in card.decode()


def test_results_of_an_evaluation_become_the_model_index(hub: LocalHub, student: Path, teacher: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("once upon a time there was a cat and it slept " * 40)
    scored = composer.evaluate([student], "perplexity", 16, samples=2, text=text, out=tmp_path / "eval")
    composer.push(student, REPO, metrics=tmp_path / "eval")
    card = ModelCard(hub.repositories[REPO].files()["README.md"].decode())
    (result,) = cast("Any", card.data).eval_results
    assert (result.metric_type, result.dataset_type) == ("perplexity", "perplexity")
    assert result.metric_value == pytest.approx(scored.cells[0].perplexity)
    assert front_matter(hub.repositories[REPO].files()["README.md"])["model-index"][0]["name"] == "mine"
    other = composer.build_folder("lola", teacher, tmp_path / "other").out
    with pytest.raises(PushError, match=r"scored lolcats.*none of them has the spec and the weights.*compose eval"):
        composer.push(other, REPO, metrics=tmp_path / "eval")
    with pytest.raises(PushError, match=r"has no results\.json"):
        composer.push(student, REPO, metrics=tmp_path)


def test_failures_explain_what_to_do(hub: LocalHub, student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    with pytest.raises(PushError, match=r"does not let you write to owner/mine.*`hf auth login`"):
        composer.push(student, REPO)
    monkeypatch.undo()
    hub.create("owner/empty")
    with pytest.raises(ComposerError, match=r"no spec\.yaml, and no built model"):
        composer.load_spec("hub:owner/empty")
    with pytest.raises(ComposerError, match="the Hub has no such model"):
        composer.verify("hub:owner/nothing")
    with pytest.raises(ComposerError, match=r"has no composition\.json and no export\.json"):
        composer.verify("hub:owner/empty")


def test_a_hub_that_does_not_answer_is_named(hub: LocalHub, student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(PushError, match=r"The Hub cannot be reached for the push to owner/mine: .*push again\.$"):
            composer.push(student, REPO)


def test_concurrent_commits_are_reported(hub: LocalHub, student: Path) -> None:
    hub.refuse_commits_with = 412
    with pytest.raises(PushError, match="was changed while this was pushed. Push again"):
        composer.push(student, REPO)


@pytest.mark.parametrize("named", ["mine", "owner/mine@main", "a/b/c", "hub:owner/mine", ""])
def test_only_owner_and_name_are_a_repository(student: Path, named: str) -> None:
    with pytest.raises(PushError, match="expected OWNER/NAME"):
        composer.push(student, named)


def test_errors_in_offline_mode_name_its_setting(student: Path, tmp_path: Path) -> None:
    """In offline mode, a push and a pull give a clear error."""
    with pytest.raises(PushError, match="HF_HUB_OFFLINE is set"):
        composer.push(student, REPO)
    for call in (composer.load_spec, composer.verify, composer.export):
        with pytest.raises(ComposerError, match=r"'owner/never-pushed' is not a folder here.*HF_HUB_OFFLINE is set"):
            call("hub:owner/never-pushed")
    with pytest.raises(PushError, match="is on the Hub already"):
        composer.push(f"hub:{REPO}", REPO)
    with pytest.raises(PushError, match=r"has no composition\.json and no export\.json"):
        composer.push(tmp_path, REPO)
