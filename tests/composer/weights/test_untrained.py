"""A rebuild does not launder random values: they count as untrained until their file changes."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from composer.weights.record import read_record
from tests.composer.weights.students import LOLCATS, SOFTMAX, build


def untrained(folder: Path) -> set[str]:
    record = read_record(folder)
    assert record is not None
    return set(record.untrained)


def test_what_is_fresh_is_untrained_and_stays_so_through_rebuilds(source: Path, tmp_path: Path) -> None:
    folders = [source, *(tmp_path / name for name in "abc")]
    for start, end in itertools.pairwise(folders):
        build(start, end, LOLCATS)
        assert untrained(end) == set(load_file(tmp_path / "a" / "fresh.safetensors"))
        assert "untrained" in (end / "README.md").read_text()


def test_what_was_trained_is_not(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "a", LOLCATS)
    file = tmp_path / "a" / "fresh.safetensors"
    save_file({name: tensor + torch.ones_like(tensor) for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    build(tmp_path / "a", tmp_path / "b", LOLCATS)
    assert untrained(tmp_path / "b") == set()
    assert "was trained in it" in (tmp_path / "b" / "README.md").read_text()


def test_a_model_without_fresh_parameters_has_none(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "a", SOFTMAX)
    assert untrained(tmp_path / "a") == set()
