"""The header of a safetensors file is valid or rejected, in linear time."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from converters.errors import WeightsError
from converters.shard import MOST_TENSORS, read_shard

FILE = "model.safetensors"


def refusal(file: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        read_shard(file)
    return str(caught.value)


ENTRY = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    ("stated", "instead"),
    [
        (b"[1]", b"[Infinity]"),
        (b"[1]", b"[1.0]"),
        (b"[1]", b"[-1]"),
        (b"[1]", b"[true]"),
        (b"[1]", b"[" + b",".join([b"9223372036854775807"] * 100_000) + b"]"),
        (b"4]", b"1e999]"),
        (b"4]", b"NaN]"),
        (b"4]", b'4],"more":NaN'),
        (b"0,4]", b"0]"),
        (b'"F32"', b'["F32"]'),
        (b'"F32"', b"{}"),
        (b'"F32"', b'"U8"'),
        (b'"a"', b'"' + b"a" * 5000 + b'"'),
        (b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}', b"[" * 500_000 + b"]" * 500_000),
        (b'{"a"', b'{"__metadata__":{"format":["pt"]},"a"'),
        (b'{"a"', b' {"a"'),
    ],
)
def test_invalid_header_entries_are_refused(tmp_path: Path, stated: bytes, instead: bytes):
    assert stated in ENTRY
    text = ENTRY.replace(stated, instead)
    (tmp_path / FILE).write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    message = refusal(tmp_path / FILE)
    assert "damaged header" in message
    assert len(message) < 500


def test_headers_are_read_in_linear_time(tmp_path: Path):
    """One of many names occurs twice, at the end."""
    text = ",".join(f'"{number}":0' for number in [*range(MOST_TENSORS - 1), MOST_TENSORS - 2])
    text = f"{{{text}}}".encode()
    (tmp_path / FILE).write_bytes(struct.pack("<Q", len(text)) + text)
    began = time.process_time()
    assert "twice in its header" in refusal(tmp_path / FILE)
    assert time.process_time() - began < 10
    text = text.replace(b"{", b'{"one":0,"more":0,')
    (tmp_path / FILE).write_bytes(struct.pack("<Q", len(text)) + text)
    assert f"more than {MOST_TENSORS:,} tensors" in refusal(tmp_path / FILE)


def test_headers_above_the_size_limit_are_refused(tmp_path: Path):
    with (tmp_path / FILE).open("wb") as stream:
        stream.write(struct.pack("<Q", 2**30))
        stream.truncate(2**31)
    assert "at most 33,554,432 are read" in refusal(tmp_path / FILE)


def test_masks_are_ignored_and_quantised_weights_are_not(tmp_path: Path):
    text = ENTRY.replace(b'"F32"', b'"U8"').replace(b"[1]", b"[4]")
    (tmp_path / FILE).write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    assert read_shard(tmp_path / FILE).masks == {"a"}
    text = text.replace(b'"a"', b'"q_proj.weight"')
    (tmp_path / FILE).write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    assert "Convert a quantised checkpoint" in refusal(tmp_path / FILE)
