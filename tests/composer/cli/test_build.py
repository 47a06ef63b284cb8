"""`compose build` prints the plan and the result. --json prints the report, and --dry-run writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import composer
from composer.weights.record import RECORD, read_record
from converters.source import TOKENIZER, small_files
from tests.checkpoints import llama
from tests.composer.cli.conftest import Compose


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_printed_folder_exists(compose: Compose, teacher: Path) -> None:
    result = compose("build", "lawcat", "--from", teacher)
    assert result.exit_code == 0
    out = Path(f"lawcat-{teacher.name}")
    assert f"Built {out}" in result.stdout
    assert (out / RECORD).is_file()
    assert "untrained" in result.stdout


def test_the_plan_counts_every_tensor(compose: Compose, teacher: Path) -> None:
    result = compose("build", "lawcat", "--from", teacher, "--dry-run")
    assert result.exit_code == 0
    plan = composer.build_folder("lawcat", teacher, "anywhere", dry_run=True).plan
    words = " ".join(result.stdout.split())
    assert f"inherited {len(plan.inherited)} tensors" in words
    assert f"fresh {len(plan.fresh)} tensors" in words
    for name, entry in plan.fresh.items():
        pattern = name.replace(".layers.0.", ".layers.{0-1}.").replace(".layers.1.", ".layers.{0-1}.")
        assert f"2 × {list(entry.shape)} {pattern}" in words
    assert "dropped" not in words
    assert not list(Path().iterdir())


def test_a_student_is_a_source(compose: Compose, student: Path) -> None:
    result = compose("build", "lolcats", "--from", student, "-o", "again", "--set", "head.memory.0.weight=null")
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert "Kept of the source's own heads: 2 ×" in words
    assert "Dropped, as this spec has no such parameter: 2 × [4] model.layers.{0-1}.self_attn.composed.head.window.weight" in words
    assert "4 tensors untrained" in words, "what was random stays random, whatever it is inherited from"


def test_json_is_the_report(compose: Compose, teacher: Path) -> None:
    result = compose("build", "lawcat", "--from", teacher, "-o", "out", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    record = read_record(Path("out"))
    assert record is not None
    assert report["spec_hash"] == record.spec_hash
    assert report["plan"] == record.plan.model_dump(mode="json")
    assert report["dry_run"] is False


def test_options_reach_the_build(compose: Compose, teacher: Path) -> None:
    arguments = ["--seed", 7, "--dtype", "bfloat16", "--copy", "--set", "head.conv.kernel=3", "-o", "out"]
    assert compose("build", "lawcat", "--from", teacher, *arguments).exit_code == 0
    record = read_record(Path("out"))
    assert record is not None
    assert (record.seed, record.plan.dtype) == (7, "bfloat16")
    assert record.spec["head"]["conv"]["kernel"] == 3
    assert all(file.how in ("rewritten", "written") for file in record.files.values())
    assert compose("build", "lawcat", "--from", teacher, "-o", "copied", "--copy").exit_code == 0
    copied = read_record(Path("copied"))
    assert copied is not None
    assert {file.how for file in copied.files.values()} == {"copied", "written"}


def test_existing_outputs_are_kept_without_force(compose: Compose, teacher: Path) -> None:
    assert compose("build", "lawcat", "--from", teacher, "-o", "out").exit_code == 0
    before = contents(Path("out"))
    refused = compose("build", "lolcats", "--from", teacher, "-o", "out")
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert contents(Path("out")) == before
    assert compose("build", "lolcats", "--from", teacher, "-o", "out", "--force").exit_code == 0
    assert contents(Path("out")) != before
    assert [path.name for path in Path().iterdir()] == ["out"]


def test_revisions_need_a_hub_model(compose: Compose, teacher: Path) -> None:
    result = compose("build", "lawcat", "--from", teacher, "--revision", "main")
    assert result.exit_code == 2
    assert "revision" in result.stderr


TRUNK = "trunk: {width: 32, layers: 2, heads: 4, vocabulary: 64}\n"


@pytest.fixture
def whole(compose: Compose) -> str:
    """A spec with its own trunk."""
    Path("whole.yaml").write_text(f"compose: 1\nname: whole\nextends: lawcat\n{TRUNK}")
    return "whole.yaml"


def test_a_fresh_build_is_random_and_repeatable(compose: Compose, whole: str) -> None:
    result = compose("build", whole, "--fresh", "--seed", 5)
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert "Built whole-fresh" in words
    assert "Every parameter is random (seed 5). Train the model before use." in words
    assert "source" not in words
    assert "2 × [32, 32] model.layers.{0-1}.self_attn.q_proj.weight" in words
    assert compose("verify", "whole-fresh").exit_code == 0
    again = compose("build", whole, "--fresh", "--seed", 5, "-o", "again", "--dtype", "float32", "--json")
    assert json.loads(again.stdout)["untrained"]
    assert Path("again/model.safetensors").read_bytes() == Path("whole-fresh/model.safetensors").read_bytes()
    assert compose("build", whole, "--fresh", "-o", "planned", "--dry-run").exit_code == 0
    assert not Path("planned").exists()


def test_fresh_models_generate_with_the_named_tokenizer(compose: Compose, whole: str, teacher: Path) -> None:
    assert compose("build", whole, "--fresh", "--tokenizer", teacher, "-o", "out").exit_code == 0
    result = compose("generate", "out", "--prompt", "once upon a time", "--max-new-tokens", 3, "--json")
    assert json.loads(result.stdout)["new_tokens"] == 3
    result = compose("build", whole, "--fresh", "--tokenizer", teacher, "-o", "small", "--set", "trunk.vocabulary=10")
    assert result.exit_code == 2
    assert "has 11 tokens, and the trunk has embeddings for 10" in result.stderr


def test_a_source_without_a_tokenizer_gets_one(compose: Compose, teacher: Path) -> None:
    for folder, sizes in (("bare", {}), ("narrow", {"vocab_size": 10})):
        for name in small_files(llama(Path(folder), **sizes), TOKENIZER):
            Path(folder, name).unlink()
    assert compose("build", "lawcat", "--from", "bare", "-o", "without").exit_code == 0
    result = compose("generate", "without", "--prompt", "once upon a time")
    assert result.exit_code == 2
    assert "or build the model with --tokenizer MODEL" in " ".join(result.stderr.split())
    assert compose("build", "lawcat", "--from", "bare", "--tokenizer", teacher, "-o", "with").exit_code == 0
    assert compose("generate", "with", "--prompt", "once upon a time", "--max-new-tokens", 3).exit_code == 0
    assert Path("with/tokenizer.json").read_bytes() == (teacher / "tokenizer.json").read_bytes()
    result = compose("build", "lawcat", "--from", "narrow", "--tokenizer", teacher, "-o", "out")
    assert (result.exit_code, Path("out").exists()) == (2, False)
    assert "has 11 tokens, and the source" in " ".join(result.stderr.split())


def test_builds_require_either_a_source_or_fresh(compose: Compose, whole: str, teacher: Path) -> None:
    for arguments, message in (
        (
            [whole, "--from", teacher],
            "whole.yaml:4:8  trunk: this spec has its own trunk, which the source's would contradict",
        ),
        (["lawcat", "--fresh"], "this spec has no `trunk` to build from random weights"),
        ([whole, "--fresh", "--from", teacher], "from a source (--from) or from nothing (--fresh), not both"),
        ([whole], "no source is named: set --from SOURCE, or --fresh"),
        (["lawcat", "--from", teacher, "--tokenizer", teacher], "has its own tokenizer. Leave --tokenizer out"),
    ):
        result = compose("build", *arguments, "-o", "out")
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
        assert not Path("out").exists()
    assert compose("build", whole, "--from", teacher, "--set", "trunk=null", "-o", "out").exit_code == 0


def test_quiet_leaves_the_plan_out(compose: Compose, teacher: Path) -> None:
    """With --quiet the output folder and notes are printed. A dry run still prints its plan."""
    result = compose("build", "lawcat", "--from", teacher, "-o", "out", "--quiet")
    assert result.exit_code == 0
    assert result.stdout.startswith("Built out\n")
    assert "untrained" in result.stdout
    assert not any(word in result.stdout for word in ("Plan", "inherited", "model.safetensors"))
    assert "inherited" in compose("build", "lawcat", "--from", teacher, "--dry-run", "--quiet").stdout
