"""What a build did not write, or somebody has changed since, `--force` never deletes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from composer.errors import BuildError
from composer.weights.card import PICTURE
from composer.weights.record import RECORD
from composer.weights.verify import verify
from tests.checkpoints import llama
from tests.composer.weights.students import LAWCAT, build


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return llama(tmp_path / "source", sharded=True)


@pytest.mark.parametrize("file", ["tokenizer.model", "added_tokens.json", "LICENSE", "notes/mine.txt", "chat_template.jinja"])
def test_force_deletes_no_file_of_anybodys(source: Path, tmp_path: Path, file: str):
    """Nor one whose name a build might have given."""
    out = tmp_path / "out"
    build(source, out)
    (out / file).parent.mkdir(exist_ok=True)
    (out / file).write_text("mine")
    with pytest.raises(BuildError, match=rf"no build wrote \({re.escape(file)}\)"):
        build(source, out, force=True)
    assert (out / file).read_text() == "mine"


@pytest.mark.parametrize("file", ["tokenizer.json", "README.md", "config.json", "fresh.safetensors"])
def test_force_does_not_replace_what_somebody_has_changed(source: Path, tmp_path: Path, file: str):
    out = tmp_path / "out"
    build(source, out, LAWCAT)
    content = bytearray((out / file).read_bytes())
    content[-2] ^= 1
    (out / file).write_bytes(content)
    with pytest.raises(BuildError, match=rf"somebody has changed since its build \({file}\)"):
        build(source, out, LAWCAT, force=True)
    assert (out / file).read_bytes() == content


def test_force_over_what_an_earlier_version_built(source: Path, tmp_path: Path):
    """Its record names weights alone: what else is the source's is the build's, and nothing more."""
    out = tmp_path / "out"
    build(source, out)
    record = json.loads((out / RECORD).read_text())
    del record["documents"]
    (out / RECORD).write_text(json.dumps(record))
    (out / PICTURE).unlink()  # of which earlier versions knew nothing
    (out / "tokenizer.model").write_text("mine")
    with pytest.raises(BuildError, match=r"no build wrote \(tokenizer\.model; its record, of an earlier version"):
        build(source, out, force=True)
    (out / "tokenizer.model").unlink()
    build(source, out, force=True)
    assert not verify(out).unchecked
