"""For every family's names of modules, adapters load and merge, and layers are streamed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import composer
from composer.training.finetune import merge_adapters
from composer.weights.verify import verify
from tests.checkpoints import logits
from tests.composer.hosts.families import HYBRIDS, is_before, small
from tests.composer.training.runs import VOCABULARY, make_student, run
from tests.composer.training.streams import STREAM, same
from tests.composer.weights.students import weights
from tests.covers import some

NAMED = ["biogpt", "gpt2", "gpt_bigcode", "gpt_neox", "modernbert-decoder", "persimmon", "phi", "phi3"]
"""The families whose projections are not all called as Llama's."""
SCALED = ["gemma", "gemma2", "gemma3_text", "vaultgemma"]
"""Those whose embedding has a scale, which is in no file."""
STREAMED = [
    *SCALED,
    "gpt2",
    "gpt_bigcode",
    "biogpt",
    "gpt_neox",
    "flint",
    "qwen3_next",
    "bamba",
    "gpt_oss",
    "deepseek_v2",
    "minicpm3",
]
"""Beside these, those whose layers take arguments by their places, which learn positions or turn, and one whose attention has
tensors of other names in files."""
UNLIKE = {
    "qwen3",
    "gpt2",
    "gpt_neox",
    "phi3",
    "gemma2",
    "flint",
    "olmo_hybrid",
    "qwen3_next",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
}
"""One family of each kind: joined projections, a scaled embedding, learned positions, other layers, sinks, latent vectors."""
IDS = torch.arange(20).view(2, 10) % 14


def student_of(family: str, teacher: Path, folder: Path) -> Path:
    """Return a student of a tiny model of the family with the tokenizer of ``teacher``."""
    small(family, vocab_size=VOCABULARY).save_pretrained(folder / "source")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(teacher / name, folder / "source" / name)
    return make_student(folder / "student", folder / "source")


@pytest.mark.filterwarnings("error:fan_in_fan_out")
@pytest.mark.parametrize("family", some(["qwen3", *NAMED, "olmo_hybrid", "nemotron_h", "deepseek_v3"], UNLIKE))
def test_adapters_are_loaded_and_merged(family: str, teacher: Path, texts: Path, tmp_path: Path) -> None:
    student = student_of(family, teacher, tmp_path)
    run(student, tmp_path / "out", texts, "recipe.finetune.steps=2", "recipe.finetune.lora.rank=4", which="finetune")
    adapted = logits(composer.load(tmp_path / "out"), IDS)
    assert (adapted - logits(composer.load(student), IDS)).abs().max() > 1e-4, "the adapters change the logits"
    assert verify(tmp_path / "out").ok
    merge_adapters(tmp_path / "out", tmp_path / "merged")
    torch.testing.assert_close(logits(composer.load(tmp_path / "merged"), IDS), adapted, rtol=0, atol=1e-4)


def test_adapters_are_loaded_for_models_saved_without_their_head(teacher: Path, texts: Path, tmp_path: Path) -> None:
    """Its tensors lack the model's prefix, as in the published first GPT-2."""
    student_of("gpt2", teacher, tmp_path)
    path = tmp_path / "source" / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    student = make_student(tmp_path / "bare", tmp_path / "source")
    run(student, tmp_path / "out", texts, "recipe.finetune.steps=2", "recipe.finetune.lora.rank=4", which="finetune")
    merge_adapters(tmp_path / "out", tmp_path / "merged")
    torch.testing.assert_close(
        logits(composer.load(tmp_path / "merged"), IDS), logits(composer.load(tmp_path / "out"), IDS), rtol=0, atol=1e-4
    )


def test_dropout_depends_only_on_the_seed_of_the_run(teacher: Path, texts: Path, tmp_path: Path) -> None:
    """Dropout depends on the run's seed alone, and the program's random state is unchanged."""
    student = student_of("gpt2", teacher, tmp_path)  # which drops a tenth
    learned = {}
    for name, seed, before in (("one", 0, 1), ("same", 0, 2), ("other", 1, 1)):
        torch.manual_seed(before)
        run(student, tmp_path / name, texts, "recipe.finetune.steps=2", which="finetune", seed=seed)
        drawn = torch.rand(2)
        torch.manual_seed(before)
        assert torch.equal(drawn, torch.rand(2))
        learned[name] = logits(composer.load(tmp_path / name), IDS)
    assert torch.equal(learned["one"], learned["same"])
    assert not torch.equal(learned["one"], learned["other"])


@pytest.mark.parametrize("family", some(STREAMED, UNLIKE))
def test_streamed_training_equals_training_in_memory(family: str, teacher: Path, texts: Path, tmp_path: Path) -> None:
    student, few = student_of(family, teacher, tmp_path), ["recipe.transfer.steps=2"]
    # Starts enlarge the rounding of hybrids' layers, in which documents of a batch run together.
    few += ["recipe.transfer.start=scaled"] if family in HYBRIDS else []
    run(student, tmp_path / "whole", texts, *few, which="transfer")
    run(student, tmp_path / "streamed", texts, *few, **STREAM)
    wanted, start = weights(tmp_path / "whole"), weights(student)
    assert any(not torch.equal(tensor, start[name]) for name, tensor in wanted.items()), "something was learned"
    # Documents of a batch run together in hybrids, by their lengths, and rounding depends on which.
    if family in HYBRIDS or is_before("5.14"):
        for name, tensor in weights(tmp_path / "streamed").items():
            torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=1e-5)
    else:
        assert same(wanted, tmp_path / "streamed")
