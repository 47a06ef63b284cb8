"""An exported folder loads without this package, and is checked, replaced and refused like other outputs."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

import composer
from composer.errors import ComposerError, ExportError
from composer.exporting.comparison import sample_of
from composer.exporting.folder import text_of
from composer.exporting.modeling import Exported
from composer.weights.verify import Check
from tests.composer.exporting.models import LENGTH, generated, padded, randomised, texts
from tests.composer.programs import LOADER, printed_behind

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
TEACHER = ROOT / "examples" / "teacher"
LOADS = """
import torch
from transformers import AutoModelForCausalLM
transformers.dynamic_module_utils.HF_MODULES_CACHE = "modules"
model = AutoModelForCausalLM.from_pretrained({folder!r}, trust_remote_code=True, dtype=torch.float32).eval()
tokens, mask = torch.load("inputs.pt")
with torch.no_grad():
    logits = model(tokens, attention_mask=mask).logits[mask.bool()]
text = model.generate(tokens[2:, : tokens.shape[1] // 2], max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
model.save_pretrained("again")
saved = AutoModelForCausalLM.from_pretrained("again", trust_remote_code=True).eval()
with torch.no_grad():
    assert torch.equal(saved(tokens, attention_mask=mask).logits[mask.bool()], logits)
eager = AutoModelForCausalLM.from_pretrained({folder!r}, trust_remote_code=True, attn_implementation="eager").eval()
with torch.no_grad():
    assert torch.equal(eager(tokens, attention_mask=mask).logits[mask.bool()], logits)
torch.save((logits, text), "answers.pt")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a LoLCATs model whose heads have random weights."""
    folder = tmp_path_factory.mktemp("built") / "model"
    randomised(composer.build("lolcats", TEACHER)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "lolcats"
    report = composer.export(model, out)
    assert (out / report.file).is_file()
    return out


def test_the_model_card_contains_the_command_with_the_output_folder(model: Path, exported: Path) -> None:
    assert f"Written by `compose export {model} -o {exported}`." in (exported / "README.md").read_text()


def test_exports_load_and_save_without_this_package(model: Path, exported: Path, tmp_path: Path) -> None:
    tokens, mask = texts(507, LENGTH)
    torch.save((tokens, mask), tmp_path / "inputs.pt")
    printed_behind(LOADER, "import transformers.dynamic_module_utils\n" + LOADS.format(folder=str(exported)), tmp_path)
    logits, text = torch.load(tmp_path / "answers.pt")
    own = composer.load(model, dtype="float32")
    with torch.no_grad():
        theirs = padded(own, tokens, mask)
    torch.testing.assert_close(logits, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))
    assert torch.equal(text, generated(own, tokens[2:].expand(2, -1), mask[2:].expand(2, -1))[:1])


@pytest.mark.usefixtures("quick_comparison")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("return output.contiguous(), None", "return 2 * output.contiguous(), None"), "its logits differ from the model's by"),
        (("import torch\n", "import torch\nimport blocks\n"), "it does not load: .*blocks"),
        (("return output.contiguous(), None", "return output.missing, None"), "it does not compute a text: AttributeError"),
    ],
)
def test_exports_that_differ_from_their_model_are_not_written(
    change: tuple[str, str], problem: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_changed(*arguments: Any, **options: Any) -> Exported:
        exported = text_of(*arguments, **options)
        assert change[0] in exported.text
        return replace(exported, text=exported.text.replace(*change))

    monkeypatch.setattr("composer.exporting.folder.text_of", write_changed)
    with pytest.raises(ExportError, match=problem):
        composer.export(model, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.usefixtures("without_comparison")
@pytest.mark.parametrize(("spec", "tokens"), [("lolcats", 96), ("lolcats-terraced", 160), ("lola", 224)])
def test_the_compared_text_reaches_the_last_memory(spec: str, tokens: int, model: Path) -> None:
    """32 tokens more than the windows and caches hold: a terraced window holds two chunks of 64, LoLA's cache 64 pairs more."""
    assert sample_of(composer.build(spec, composer.load(model))).tokens.shape[1] == tokens


@pytest.mark.usefixtures("quick_comparison")
def test_named_chat_templates_are_exported(model: Path, tmp_path: Path) -> None:
    templates = "additional_chat_templates/tool_use.jinja", "chat_template.jinja"
    shutil.copytree(model, tmp_path / "model")
    for name in templates:
        (tmp_path / "model" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_text(f"{{# {name} #}}", encoding="utf-8")
    composer.export(tmp_path / "model", tmp_path / "out")
    for name in templates:
        assert (tmp_path / "out" / name).read_text(encoding="utf-8") == f"{{# {name} #}}"
    record = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))
    assert set(templates) <= set(record["files"])
    (tmp_path / "out" / templates[0]).write_text("changed", encoding="utf-8")
    with pytest.raises(ComposerError, match=templates[0]):
        composer.export(tmp_path / "model", tmp_path / "out", force=True)


@pytest.mark.usefixtures("without_comparison")
def test_weights_are_linked_unless_copy_is_set(model: Path, exported: Path, tmp_path: Path) -> None:
    composer.export(model, tmp_path / "copied", copy=True)
    for path in model.glob("*.safetensors"):
        assert (exported / path.name).samefile(path)
        assert not (tmp_path / "copied" / path.name).samefile(path)


@pytest.mark.usefixtures("quick_comparison")
def test_verify_checks_files_code_and_logits(exported: Path, model: Path, tmp_path: Path) -> None:
    report = composer.verify(exported)
    assert report.ok
    assert {check.what for check in report.checks} == {"contents", "code", "logits"}
    out = tmp_path / "changed"
    shutil.copytree(exported, out)
    file = next(out.glob("modeling_*.py"))
    file.write_text(file.read_text(encoding="utf-8") + "\nopen('ran', 'w')\n", encoding="utf-8")
    assert [check.subject for check in composer.verify(out).failed] == [file.name]
    stated = json.loads((out / "export.json").read_text(encoding="utf-8"))
    stated["files"][file.name] = composer.system.files.sha256(file)
    (out / "export.json").write_text(json.dumps(stated), encoding="utf-8")
    (failed,) = composer.verify(out).failed
    assert (failed.what, failed.subject) == ("code", file.name), "a file that differs from what is written does not run"


@pytest.mark.usefixtures("quick_comparison")
def test_verify_reports_broken_weights_and_configs(exported: Path, tmp_path: Path) -> None:
    """Its record agrees with its files."""

    def verify_changed(name: str, contents: bytes) -> Check:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.copytree(exported, tmp_path / "out")
        (tmp_path / "out" / name).write_bytes(contents)
        stated = json.loads((exported / "export.json").read_text(encoding="utf-8"))
        stated["files"][name] = hashlib.sha256(contents).hexdigest()
        (tmp_path / "out" / "export.json").write_text(json.dumps(stated), encoding="utf-8")
        (failed,) = composer.verify(tmp_path / "out").failed
        assert failed.what in ("code", "logits")
        return failed

    weights = load_file(exported / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    assert verify_changed("model.safetensors", save(weights, {"format": "pt"})).detail == (
        "its weights do not fit its class (missing keys): model.layers.1.mlp.up_proj.weight"
    )
    config = (exported / "config.json").read_bytes()
    assert (
        "it does not load"
        in verify_changed("config.json", config.replace(b'"num_hidden_layers": 2', b'"num_hidden_layers": "two"')).detail
    )
    assert verify_changed("config.json", b"[").detail.startswith("it is no JSON object")


@pytest.mark.usefixtures("without_comparison")
def test_force_replaces_only_unchanged_exports(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    composer.export(model, out)
    with pytest.raises(ComposerError, match="exists already"):
        composer.export(model, out)
    composer.export(model, out, force=True)
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ComposerError, match=r"notes\.txt"):
        composer.export(model, out, force=True)
    assert (out / "notes.txt").read_text(encoding="utf-8") == "mine"
    (out / "export.json").write_text("{", encoding="utf-8")
    with pytest.raises(ComposerError, match="is damaged"):
        composer.export(model, out, force=True)


@pytest.mark.usefixtures("without_comparison")
def test_a_failed_export_keeps_the_existing_export(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    composer.export(model, out)
    before = (out / "export.json").read_bytes()

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("composer.exporting.folder.link_or_copy", fails)
    with pytest.raises(ComposerError, match="No space left"):
        composer.export(model, out, force=True)
    assert (out / "export.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == ["out"]


@pytest.mark.usefixtures("quick_comparison")
def test_exports_of_models_with_adapters_are_verified(tmp_path: Path) -> None:
    texts_file = tmp_path / "texts.txt"
    texts_file.write_text("the little dog sat in the sun and it was happy. " * 60, encoding="utf-8")
    composer.build_folder("lolcats", TEACHER, tmp_path / "built")
    steps = ["recipe.transfer=null", "recipe.finetune.steps=2", "recipe.finetune.epochs=null", "recipe.sequence=32"]
    composer.distill(tmp_path / "built", str(texts_file), out=tmp_path / "trained", overrides=steps, progress=False)
    assert (tmp_path / "trained" / "adapter").is_dir()
    composer.export(tmp_path / "trained", tmp_path / "out")
    assert composer.verify(tmp_path / "out").ok


def test_bidirectional_models_are_refused(tmp_path: Path) -> None:
    composer.build_folder("latte-bidirectional", TEACHER, tmp_path / "built", overrides=["trunk=null"])
    with pytest.raises(ComposerError, match="bidirectional"):
        composer.export(tmp_path / "built", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_build_and_load_refuse_exports_with_a_remedy(exported: Path, tmp_path: Path) -> None:
    for call in (lambda: composer.build_folder("lolcats", exported, tmp_path / "out"), lambda: composer.load(exported)):
        with pytest.raises(ComposerError, match=r"is an exported model \(export\.json\).* names its folder"):
            call()
