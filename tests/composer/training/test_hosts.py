"""Students of other families learn the same in memory and streamed, experts included, and a kill changes no bit."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import torch

from composer.training import checkpoint, streamed
from tests.composer.hosts.families import small
from tests.composer.training.processes import ending, forked, killed_at
from tests.composer.training.runs import make_student, run
from tests.composer.training.streams import STREAM, same
from tests.composer.weights.students import weights


@pytest.fixture(scope="module", params=["qwen3", "mixtral"])
def hosted(request: pytest.FixtureRequest, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    small(request.param, vocab_size=64).save_pretrained(folder / "source")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(teacher / name, folder / "source" / name)
    return make_student(folder / "student", folder / "source")


@pytest.fixture(scope="module")
def wanted(hosted: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights after attention transfer and LoRA in memory."""
    out = tmp_path_factory.mktemp("wanted") / "out"
    run(hosted, out, texts)
    return weights(out)


def test_streamed_training_equals_training_in_memory(
    hosted: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed while the first layer is written, and continued."""
    run(hosted, tmp_path / "whole", texts, which="transfer")

    def child() -> None:
        killed_at(monkeypatch, streamed, "_write_finished", 1, behind=True)
        run(hosted, tmp_path / "out", texts, **STREAM)

    assert ending(forked(child)) == -signal.SIGKILL
    run(hosted, tmp_path / "out", texts, resume=True, **STREAM)
    learned, trained, start = weights(tmp_path / "whole"), weights(tmp_path / "out"), weights(hosted)
    assert any(not torch.equal(tensor, start[name]) for name, tensor in learned.items()), "something was learned"
    assert learned.keys() == trained.keys()
    # What an expert computes of a token is rounded as the tokens beside it have it, and those are others here.
    close = 1e-5 if any("expert" in name for name in learned) else 0
    for name, tensor in learned.items():
        torch.testing.assert_close(trained[name], tensor, rtol=0, atol=close)


def test_the_trunk_is_trained(hosted: Path, texts: Path, tmp_path: Path) -> None:
    """The matrices of each expert stay separate in the files, and have changed."""
    trunk = ("recipe.finetune.lora=null", "recipe.finetune.trunk=true", "recipe.finetune.steps=1")
    run(hosted, tmp_path / "out", texts, *trunk, which="finetune")
    start, trained = weights(hosted), weights(tmp_path / "out")
    assert trained.keys() == start.keys()
    assert not any(torch.equal(tensor, start[name]) for name, tensor in trained.items() if ".mlp." in name)


def test_a_run_killed_in_finetuning_resumes_to_the_same_output(
    hosted: Path,
    texts: Path,
    tmp_path: Path,
    wanted: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run is killed in fine-tuning."""

    def child() -> None:
        killed_at(monkeypatch, checkpoint, "_write", 9, behind=True)
        run(hosted, tmp_path / "out", texts, checkpoint_seconds=0.0)

    assert ending(forked(child)) == -signal.SIGKILL
    run(hosted, tmp_path / "out", texts, resume=True)
    assert same(wanted, tmp_path / "out")
