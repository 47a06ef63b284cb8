"""Any contents of a state file or a record are used for a continuation or a push, or rejected with a message."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load, save

import composer
from composer.model.cache import new_cache
from composer.model.state_file import METADATA, load_cache, save_cache
from composer.publishing.contents import contents_of
from composer.weights.record import RECORD
from composer.weights.verify import verify
from tests.checkpoints import llama
from tests.composer.model.models import student as small_student
from tests.composer.model.models import tokens
from tests.composer.model.test_state_file import OWNER
from tests.fuzz.mutations import CUTS, EDITS, as_json, cut, edited
from tests.fuzz.outcomes import fuzz, outcome

READ = 20
VALUES = st.sampled_from([float("nan"), float("inf"), -float("inf"), -1000.0, -1.0, 0.0, 19.0, 1000.0])
TENSORS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10**4), VALUES | st.none()), min_size=1, max_size=4)
HOW = (
    st.sampled_from(["header", "record"]).flatmap(lambda where: st.tuples(st.just(where), EDITS))
    | st.tuples(st.just("bytes"), CUTS)
    | st.tuples(st.just("tensors"), TENSORS)
    | st.tuples(st.just("tokens"), st.integers(-1, 2**40))
)
"""Damage to a state: edits of its header or record, cuts, other values of tensors (None: shifted by one), another number of tokens.
The last two have the right hash."""


@cache
def model() -> Any:
    return small_student("lolcats")


@cache
def state() -> bytes:
    """The file of a state."""
    path, cache_of_text = Path(tempfile.mkdtemp(), "state"), new_cache(model().config)
    with torch.no_grad():
        model()(tokens(1, READ), past_key_values=cache_of_text)
    save_cache(path, cache_of_text, model(), OWNER)
    assert load_cache(path, model(), OWNER).get_seq_length() == READ
    return path.read_bytes()


def damaged_state(content: bytes, how: tuple[str, Any]) -> bytes:
    """Return the file with this damage, as ``HOW`` describes it."""
    where, changes = how
    if where == "bytes":
        return cut(content, changes)
    if where in ("tensors", "tokens"):
        return forged_state(content, where, changes)
    (length,) = struct.unpack("<Q", content[:8])
    header, tensors = json.loads(content[8 : 8 + length]), content[8 + length :]
    if where == "record":
        record = json.loads(header["__metadata__"][METADATA])
        header["__metadata__"][METADATA] = as_json(edited(record, changes)).decode(errors="replace")
        text = json.dumps(header).encode()
    else:
        text = as_json(edited(header, changes))
    return struct.pack("<Q", len(text)) + text + tensors


def forged_state(content: bytes, where: str, changes: Any) -> bytes:
    """Return the file with other tensors, and their hash."""
    tensors = load(content)
    record = json.loads(json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])["__metadata__"][METADATA])
    if where == "tokens":
        tensors["seen"].fill_(changes)
        record["tokens"] = changes
    for number, place, value in changes if where == "tensors" else ():
        entries = tensors[sorted(tensors)[number % len(tensors)]]
        if value is None:
            entries.copy_(entries.roll(1, dims=-1))
        elif entries.is_floating_point() or math.isfinite(value):
            entries.view(-1)[place % entries.numel()] = value
    digest = hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors)))
    return save(tensors, metadata={METADATA: json.dumps({**record, "sha256": digest.hexdigest()})})


@cache
def student() -> Path:
    """The folder of a model."""
    folder = Path(tempfile.mkdtemp())
    llama(folder / "source")
    return composer.build_folder("lolcats", folder / "source", folder / "built", copy=True).out


@fuzz(HOW, examples=160)
def test_damaged_states_are_loaded_or_refused(how: Any, folder: Path) -> None:
    """An accepted state has the bytes of its hash, and continues with finite logits."""
    path = folder / "state"
    path.write_bytes(damaged_state(state(), how))
    continued = outcome(lambda: load_cache(path, model(), OWNER))
    if continued is not None:
        with torch.no_grad():
            assert bool(model()(tokens(1, 2), past_key_values=continued).logits.isfinite().all())


PUSHED = (
    "composition.json",
    "README.md",
    "config.json",
    "tokenizer.json",
    "source-1-of-1.safetensors",
    "model.safetensors.index.json",
)


@fuzz(
    st.tuples(st.tuples(st.just("tree"), EDITS) | st.tuples(st.just("bytes"), CUTS), st.sampled_from((None, *PUSHED))), examples=40
)
def test_damaged_folders_are_pushed_without_foreign_files_or_refused(example: Any, folder: Path) -> None:
    """Of a folder with a damaged record, or with a link in place of a file, nothing from elsewhere is uploaded."""
    (kind, changes), linked = example
    model, secret = folder / "model", folder / "secret"
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(student(), model)
    record = model / RECORD
    if linked is not None and (model / linked).is_file():
        secret.write_bytes((model / linked).read_bytes())
        (model / linked).unlink()
        (model / linked).symlink_to(secret)
    if linked != RECORD:
        content = record.read_bytes()
        record.write_bytes(as_json(edited(json.loads(content), changes)) if kind == "tree" else cut(content, changes))
    contents = outcome(lambda: contents_of(model, "owner/name"))
    outcome(lambda: verify(model))
    if contents is not None:
        paths = [file for file in contents.files.values() if isinstance(file, Path)]
        assert all(file.resolve().is_relative_to(model.resolve()) for file in paths)
        assert linked is None or not (model / linked).is_symlink()
