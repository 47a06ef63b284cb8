"""A record names every file of its build, so `--force` deletes no other or changed file, and lists untrained parameters. In a
rebuild they stay untrained until their file changes.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from composer.errors import BuildError
from composer.weights.record import read_record
from tests.composer.weights.students import LAWCAT, LOLCATS, SOFTMAX, build


def untrained(folder: Path) -> set[str]:
    record = read_record(folder)
    assert record is not None
    return set(record.untrained)


def test_fresh_parameters_are_recorded_as_untrained_through_rebuilds(source: Path, tmp_path: Path) -> None:
    folders = [source, *(tmp_path / name for name in "abc")]
    for start, end in itertools.pairwise(folders):
        build(start, end, LOLCATS)
        assert untrained(end) == set(load_file(tmp_path / "a" / "fresh.safetensors"))
        assert "untrained" in (end / "README.md").read_text()


def test_trained_parameters_are_not_recorded_as_untrained(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "a", LOLCATS)
    file = tmp_path / "a" / "fresh.safetensors"
    save_file({name: tensor + torch.ones_like(tensor) for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    build(tmp_path / "a", tmp_path / "b", LOLCATS)
    assert untrained(tmp_path / "b") == set()
    assert "was trained in it" in (tmp_path / "b" / "README.md").read_text()


def test_a_model_without_fresh_parameters_has_none(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "a", SOFTMAX)
    assert untrained(tmp_path / "a") == set()


@pytest.mark.parametrize("file", ["tokenizer.model", "added_tokens.json", "LICENSE", "notes/mine.txt", "chat_template.jinja"])
def test_force_deletes_no_other_files(sharded: Path, tmp_path: Path, file: str):
    """This includes files with the names of a build."""
    out = tmp_path / "out"
    build(sharded, out)
    (out / file).parent.mkdir(exist_ok=True)
    (out / file).write_text("mine")
    with pytest.raises(BuildError, match=rf"no build wrote \({re.escape(file)}\)"):
        build(sharded, out, force=True)
    assert (out / file).read_text() == "mine"


@pytest.mark.parametrize("file", ["tokenizer.json", "README.md", "config.json", "fresh.safetensors"])
def test_force_does_not_replace_changed_models(sharded: Path, tmp_path: Path, file: str):
    out = tmp_path / "out"
    build(sharded, out, LAWCAT)
    content = bytearray((out / file).read_bytes())
    content[-2] ^= 1
    (out / file).write_bytes(content)
    with pytest.raises(BuildError, match=rf"somebody has changed since its build \({file}\)"):
        build(sharded, out, LAWCAT, force=True)
    assert (out / file).read_bytes() == content
