"""No code in a model's folder runs, whatever the user answers. Files that need code are rejected."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from jinja2.exceptions import SecurityError
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import composer
from composer.building.rewrite import Adapter, Trained, write_trained
from composer.cli.main import app
from composer.errors import ComposerError, SourceError
from composer.system.trust import load_tokenizer
from converters.bounded import MOST_BESIDE
from tests.checkpoints import edit_config

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
EVIL = """
from pathlib import Path
Path({mark!r}).write_text("ran")
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class EvilConfig(LlamaConfig):
    model_type = "evil"
class EvilModel(LlamaForCausalLM): pass
class EvilTokenizer(PreTrainedTokenizerFast): pass
def generate(model, **options): return options["input_ids"]
"""
OURS: dict[str, Any] = {"auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", None]}, "tokenizer_class": "EvilTokenizer"}
LEGACY: dict[str, Any] = {"auto_map": ["evil.EvilTokenizer", None], "tokenizer_class": "EvilTokenizer"}
KNOWN: dict[str, Any] = {"auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", None]}}
MODEL = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel", "AutoModelForCausalLM": "evil.EvilModel"}
LORA: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
WRITE = ("--max-new-tokens", "2", "--prompt", "Once")
FRESH = ("latte", "--fresh", "--set", "trunk={width: 64, layers: 1, heads: 4, vocabulary: 600}", "--dry-run")


class Yes:
    """A user who answers yes to everything, and code that creates a file if it runs."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "RAN"

    def poison(self, folder: Path, tokenizer: dict[str, Any] | None = None) -> Path:
        """Put code beside a model in all places where it may be looked for, and reference it in the tokenizer."""
        for place in (folder / "evil.py", folder / "custom_generate" / "generate.py"):
            place.parent.mkdir(exist_ok=True)
            place.write_text(EVIL.format(mark=str(self.mark)))
        config = folder / "tokenizer_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | (tokenizer or {})))
        return folder

    def __call__(self, *arguments: object) -> Any:
        answer = CliRunner().invoke(app, list(map(str, arguments)), input="y\n" * 99, prog_name="compose")
        assert not self.mark.exists()
        assert "Do you wish to run" not in answer.output
        return answer


@pytest.fixture
def yes(tmp_path: Path) -> Yes:
    return Yes(tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "student"
    composer.build_folder("lolcats", TEACHER, out)
    return out


@pytest.fixture
def student(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "student")


@pytest.mark.parametrize("tokenizer", [OURS, LEGACY, KNOWN], ids=["its own", "as a list", "beside a known one"])
def test_a_tokenizers_code_does_not_run_and_is_named(yes: Yes, student: Path, tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    yes.poison(student, tokenizer)
    teacher = yes.poison(shutil.copytree(TEACHER, tmp_path / "teacher"), tokenizer)
    for command in (
        ("generate", student, *WRITE),
        ("eval", student, "--tasks", "passkey", "--lengths", "64", "--out", tmp_path / "scores"),
        ("eval", teacher, "--tasks", "passkey", "--lengths", "64", "--out", tmp_path / "scores"),
        ("sample", teacher, "--out", tmp_path / "texts.jsonl", "--texts", "1", "--length", "8"),
        ("distill", student, "--data", tmp_path, "-o", tmp_path / "distilled"),
        ("build", *FRESH, "--tokenizer", teacher, "-o", tmp_path / "fresh"),
    ):
        answer = yes(*command)
        assert answer.exit_code == 2, (command, answer.output)
        words = " ".join(answer.stderr.split())
        assert "needs its own code" in words, (command, words)
        assert "tokenizer_config.json" in words
        assert "Nothing in a folder is ever run here" in words


def test_code_of_a_model_does_not_run_if_composers_code_is_used(yes: Yes, student: Path, tmp_path: Path) -> None:
    edit_config(yes.poison(student), auto_map=MODEL)
    teacher = yes.poison(shutil.copytree(TEACHER, tmp_path / "teacher"))
    edit_config(teacher, auto_map=MODEL)
    assert yes("generate", student, *WRITE).exit_code == 0
    assert yes("sample", teacher, "--out", tmp_path / "texts.jsonl", "--texts", "1", "--length", "8").exit_code == 0
    answer = yes("build", "lolcats", "--from", teacher, "-o", tmp_path / "out")
    assert answer.exit_code == 0
    assert "names its own code (auto_map); it was not run" in " ".join(answer.stdout.split())
    assert type(AutoModelForCausalLM.from_pretrained(student, trust_remote_code=True)).__name__ == "ComposedForCausalLM"
    assert not yes.mark.exists()


def test_families_with_custom_code_are_refused(yes: Yes, student: Path) -> None:
    edit_config(yes.poison(student), model_type="evil", auto_map=MODEL)
    for command in (
        ("generate", student, *WRITE),
        ("sample", student, "--out", student / "x"),
        ("build", "lolcats", "--from", student),
    ):
        assert yes(*command).exit_code == 2


@pytest.mark.parametrize("key", ["attn_implementation", "experts_implementation"])
def test_kernels_of_the_hub_are_not_loaded(yes: Yes, student: Path, key: str) -> None:
    edit_config(student, **{key: "somebody/kernels"})
    answer = yes("generate", student, *WRITE)
    assert answer.exit_code == 2
    assert f"needs its own code ({key}: somebody/kernels)" in answer.stderr


def with_adapter(student: Path, out: Path, **config: Any) -> Path:
    names = [f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora" for layer in range(2)]
    tensors = {f"{name}_{which}.weight": torch.ones(*size) for name in names for which, size in (("A", (2, 128)), ("B", (128, 2)))}
    write_trained(student, out, Trained({}, Adapter(LORA | config, tensors), (), {}))
    return out


@pytest.mark.parametrize(
    "config",
    [{"megatron_config": {"x": 1}, "megatron_core": "evil"}, {"auto_mapping": {"parent_library": "evil"}}, {"peft_type": "XLORA"}],
    ids=["megatron", "auto_mapping", "another kind"],
)
def test_adapters_import_no_code(
    yes: Yes, student: Path, tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = with_adapter(student, tmp_path / "out", **config)
    yes.poison(out)
    monkeypatch.syspath_prepend(str(out))
    answer = yes("generate", out, *WRITE)
    assert answer.exit_code == 2
    assert "adapter_config.json" in answer.stderr
    with pytest.raises(ValueError, match="ever run here"):
        AutoModelForCausalLM.from_pretrained(out)
    assert not yes.mark.exists()


def test_adapters_are_safetensors_of_the_models_own_folder(yes: Yes, student: Path, tmp_path: Path) -> None:
    out = with_adapter(student, tmp_path / "out")
    composer.load(out)
    for place in ("../out/adapter", str(out / "adapter"), "..", ""):
        edit_config(out, adapter=place)
        with pytest.raises(SourceError, match="expected the name of a folder beside it"):
            composer.load(out)
    edit_config(out, adapter="adapter")
    torch.save({}, out / "adapter" / "adapter_model.bin")
    (out / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(SourceError, match=r"adapter_model\.safetensors"):
        composer.load(out)


def test_adapters_beside_the_weights_are_ignored(yes: Yes, student: Path) -> None:
    (student / "adapter_config.json").write_text(json.dumps(LORA))
    with pytest.raises(SourceError, match="adapters at its top"):
        composer.load(student)


def test_custom_generation_code_is_not_fetched(yes: Yes, student: Path) -> None:
    """Of a folder's generation settings, only the end tokens are used."""
    plain = yes("generate", student, *WRITE)
    (student / "generation_config.json").write_text('{"penalty_alpha": 0.6, "top_k": 4}')
    answer = yes("generate", student, *WRITE)
    assert (answer.exit_code, answer.stdout) == (0, plain.stdout)


@pytest.mark.parametrize("template", [5, True, [1, 2], [{"name": "default"}], [{"name": 3, "template": "x"}], {"a": 1}], ids=str)
def test_chat_templates_are_read_as_text(student: Path, template: Any) -> None:
    path = student / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    with pytest.raises(
        ComposerError, match=r"no \(tokenizer_config\.json: chat_template is .*; expected text, or a list of objects"
    ):
        load_tokenizer(student, ComposerError, "no")


def test_chat_templates_run_in_a_sandbox(student: Path) -> None:
    (student / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    tokenizer = load_tokenizer(student, ComposerError, "")
    with pytest.raises(SecurityError):
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "special_tokens_map.json"])
def test_a_tokenizers_files_are_regular_and_its_own(student: Path, tmp_path: Path, name: str) -> None:
    def message_of_loading() -> str:
        with pytest.raises(ComposerError) as caught:
            load_tokenizer(student, ComposerError, "no tokenizer")
        return str(caught.value)

    path = student / name
    content = path.read_bytes() if path.exists() else b"{}"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert f"{path} cannot be read: no regular file" in message_of_loading()
    path.unlink()
    (tmp_path / "else").write_bytes(content)
    path.symlink_to(tmp_path / "else")
    assert f"{path} cannot be read: it leads out of its folder" in message_of_loading()
    path.unlink()
    with path.open("wb") as stream:
        stream.truncate(MOST_BESIDE + 1)
    assert f"{path} cannot be read: larger than" in message_of_loading()


@pytest.mark.parametrize("key", ["vocab_file", "fast_tokenizer_files"])
def test_a_tokenizer_names_no_files_of_other_places(student: Path, tmp_path: Path, key: str) -> None:
    (student / "tokenizer.json").rename(tmp_path / "tokenizer.4.0.0.json")
    value: Any = str(tmp_path / "tokenizer.4.0.0.json")
    config = student / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: [value] if key.endswith("s") else value}))
    with pytest.raises(ComposerError, match="expected files of its folder only"):
        load_tokenizer(student, ComposerError, "no tokenizer")


def test_a_tokenizer_that_fails_at_unknown_words_is_refused(student: Path) -> None:
    path = student / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["unk_token"] = ""
    path.write_text(json.dumps(document))
    with pytest.raises(ComposerError, match=r"no tokenizer \(its token for unknown words, '', is not in its vocabulary\)"):
        load_tokenizer(student, ComposerError, "no tokenizer")
