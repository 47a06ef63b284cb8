"""Commands that only read and print, and every mistake without a model, answer before torch and transformers are imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import composer

ROOT = Path(composer.__file__).parents[1]


@pytest.fixture
def tiny_source(tmp_path: Path) -> Path:
    """Write a model's config, which is enough to read, resolve and explain a spec."""
    folder = tmp_path / "source"
    folder.mkdir()
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 8}
    config = {"model_type": "llama", **sizes, "num_key_value_heads": 4, "hidden_act": "silu", "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_commands_that_read_specs_only_import_neither_torch_nor_transformers(tmp_path: Path, tiny_source: Path) -> None:
    commands = [
        ["check", "lawcat", "lolcats", "--from", str(tiny_source)],
        ["show", "lolcats", "--from", str(tiny_source)],
        ["show", "ablations/lawcat-rope", "--expand", "--from", str(tiny_source)],
        ["diff", "lawcat", "lolcats", "--from", str(tiny_source)],
        ["explain", "lawcat", "--from", str(tiny_source)],
        ["new", str(tmp_path / "mine")],
        ["diff", "lawcat", "lolcats", "--draw", str(tmp_path / "both.svg")],
        ["draw", "lola", "--from", str(tiny_source)],
        ["parts", "hedgehog"],
        ["schema"],
        ["tasks"],
        ["tasks", "passkey"],
        ["build", "--help"],
        ["show", str(tmp_path / "built")],
        ["check", str(tmp_path / "built"), "--set", "recipe=null"],
        ["explain", str(tmp_path / "built")],
    ]
    composer.build_folder("softmax", ROOT / "examples" / "teacher", tmp_path / "built")
    composer.build_folder("lolcats", ROOT / "examples" / "teacher", tmp_path / "learner")
    refused = [
        ["distill", str(tiny_source), "--data", "texts"],
        ["distill", str(tmp_path / "built"), "--data", "texts"],
        ["train", str(tmp_path / "built"), "--data", "texts"],
        ["distill", str(tmp_path / "learner"), "--data", "stoires"],
        ["distill", str(tmp_path / "learner"), "--data", "stories", "--held-out", "nowhere.txt"],
        ["ablate", "lolcats", "--from", str(tiny_source), "--data", "nowhere.txt", "-o", str(tmp_path / "out")],
        ["build", "nothing", "--from", str(tiny_source)],
        ["build", "lawcat", "--from", str(tmp_path / "nowhere")],
        ["generate", str(tmp_path / "nowhere"), "--prompt", "Once"],
        ["eval", str(tmp_path / "nowhere"), "--tasks", "passkey", "--lengths", "128"],
        ["eval", str(tmp_path / "built"), "--tasks", "nothing"],
        ["bench", str(tmp_path / "nowhere"), "--prefill", "1k"],
        ["merge", str(tmp_path / "nowhere")],
        ["sample", str(tmp_path / "nowhere"), "-o", str(tmp_path / "texts")],
        ["verify", str(tmp_path / "nowhere")],
    ]
    script = (
        "import json, sys\nfrom typer.testing import CliRunner\nfrom composer.cli.main import app\n"
        "codes = [CliRunner().invoke(app, command).exit_code for command in json.loads(sys.argv[1])]\n"
        "print(json.dumps([codes, sorted({'torch', 'transformers'} & set(sys.modules))]))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands + refused)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    codes, heavy = json.loads(run.stdout)
    assert codes == [0] * len(commands) + [2] * len(refused)
    assert heavy == []
