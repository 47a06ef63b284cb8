"""The header of a GGUF file is read within bounds: any damage gives a one-sentence error at once, without large allocations."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from gguf import GGUFReader

from converters.errors import WeightsError
from converters.gguf import LONGEST_TOKEN, MOST_ELEMENTS, MOST_HEADER, MOST_KEYS, read_gguf
from converters.shard import MOST_TENSORS
from tests.gguf_files import TOKENS, gguf_model, write_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", gguf_model("llama"), "Q4_0").read_bytes()


def refusal(file: Path, content: bytes | None = None) -> str:
    """Return the message after less than a second of work."""
    if content is not None:
        file.write_bytes(content)
    began = time.process_time()
    with pytest.raises(WeightsError) as caught:
        read_gguf(file)
    assert time.process_time() - began < 1
    return str(caught.value)


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def header(tensors: int, *entries: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(entries)) + b"".join(entries)


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, *shape: int, kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


LIST = 9, struct.pack("<IQ", 0, 2**16 + 1) + bytes(2**16 + 1)
NAMED = entry(b"general.architecture", 8, text(b"llama"))


def test_the_header_table_equals_that_of_the_gguf_package(tmp_path: Path, whole: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(whole)
    table, reader = read_gguf(file), GGUFReader(file)
    assert [(entry.name, list(entry.shape), entry.type, entry.start, entry.end - entry.start) for entry in table.tensors] == [
        (entry.name, list(reversed(entry.shape.tolist())), entry.tensor_type.name, entry.data_offset, entry.n_bytes)
        for entry in reader.tensors
    ]
    assert table.architecture == "llama"
    assert table.metadata["llama.embedding_length"] == 64
    assert table.metadata["llama.rope.freq_base"] == 5000.0
    assert table.lists["tokenizer.ggml.tokens"] >= len(TOKENS)
    assert table.has_tokenizer
    assert table.quantisation == "GGUF Q4_0, F32"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no GGUF file: it begins with b''"),
        (b"PK\x03\x04 and more", r"is no GGUF file: it begins with b'PK\\x03\\x04'; expected b'GGUF'"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer"),
        (b"GGUF\x03", "ends within its header, at 5 bytes"),
        (header(1, NAMED, version=1), "of version 1; versions 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "of a machine with another byte order"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 1), f"claims {2**63:,} tensors; at most {MOST_TENSORS:,}"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**64 - 1), f"entries of metadata; at most {MOST_KEYS:,}"),
        (header(0, NAMED), "has no tensors"),
        (header(1), "has no general.architecture"),
        (header(1, entry(b"general.architecture", 4, bytes(4))), "has no general.architecture"),
        (header(1, NAMED, NAMED), "'general.architecture' is there twice"),
        (header(1, struct.pack("<Q", 2**62)), "a string of 4,611,686,018,427,387,904 bytes; at most 1,000"),
        (header(1, entry(b"key", 8, struct.pack("<Q", 2**40))), "a string of 1,099,511,627,776 bytes"),
        (header(1, entry(b"key", 8, struct.pack("<Q", 2**20))), "ends within its header"),
        (header(1, entry(b"key", 8, text(b"\xff"))), "a string that is not UTF-8, at byte 0"),
        (header(1, entry(b"key", 13, b"")), "'key' has the unknown type 13"),
        (header(1, entry(b"key", 9, struct.pack("<IQ", 4, 2**60))), f"more than {MOST_ELEMENTS:,} elements, 'key'"),
        (header(1, entry(b"key", 9, struct.pack("<IQ", 4, 2**20))), "ends within its header"),
        (header(1, entry(b"key", 9, struct.pack("<IQ", 9, 1))), "a list of elements of type 9; expected numbers or strings"),
        (
            header(1, entry(b"key", 9, struct.pack("<IQ", 8, 1) + text(b"a" * (LONGEST_TOKEN + 1)))),
            f"'key' has a string of 1,025 bytes; at most {LONGEST_TOKEN:,}",
        ),
        (header(1, NAMED, entry(b"general.type", 8, text(b"adapter"))), "holds no model: its general.type is 'adapter'"),
        (header(1, NAMED, entry(b"split.count", 2, struct.pack("<H", 3))), "is one of 3 parts"),
        (header(1, NAMED, entry(b"general.alignment", 4, struct.pack("<I", 0))), "general.alignment: 0; expected a power of 2"),
        (header(1, NAMED, entry(b"general.alignment", 4, struct.pack("<I", 24))), "general.alignment: 24"),
        (header(1, NAMED) + tensor(b"a"), "'a' has 0 dimensions"),
        (header(1, NAMED) + tensor(b"a", 1, 1, 1, 1, 1), "'a' has 5 dimensions"),
        (header(1, NAMED) + text(b"a") + struct.pack("<I", 2**31), "'a' has 2,147,483,648 dimensions"),
        (header(2, NAMED) + tensor(b"a", 8) + tensor(b"a", 8), "the tensor 'a' is there twice"),
        (header(1, NAMED) + tensor(b"a", 8, kind=200), "in the type 200"),
        (header(1, NAMED) + tensor(b"a", 0), r"'a' of type F32 has the shape \[0\] at 0"),
        (header(1, NAMED) + tensor(b"a", 33, kind=2), r"'a' of type Q4_0 has the shape \[33\]"),
        (header(1, NAMED) + tensor(b"a", 8, offset=3), r"has the shape \[8\] at 3"),
        (header(2, NAMED) + tensor(b"a", 8) + tensor(b"b", 8) + bytes(1000), "the tensor 'b' lies over another one"),
        (header(1, NAMED) + tensor(b"a", 2**40, 2**40), "is truncated"),
        (
            header(1, NAMED, entry(b"key", *LIST)) + tensor(b"a", 8) + bytes(64),
            "'key' has 65,537 elements; at most 65,536",
        ),
        (
            header(1, NAMED, entry(b"tokenizer.ggml.scores", *LIST)) + tensor(b"token_embd.weight", 8, 8) + bytes(300),
            "'tokenizer.ggml.scores' has 65,537 elements; at most 65,536 are read for 8 embeddings",
        ),
        (header(1, NAMED) + tensor(b"a", 8, offset=2**62), "is truncated"),
    ],
)  # fmt: skip
def test_invalid_headers_are_refused_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        read_gguf(file)
    refusal(file)


def test_truncated_files_are_refused(tmp_path: Path, whole: bytes) -> None:
    for length in (*range(0, len(whole), 997), len(whole) - 1):
        assert "Fetch it again" in refusal(tmp_path / "model.gguf", whole[:length]) or length == 0


def test_damaged_bytes_are_read_or_refused(tmp_path: Path, whole: bytes) -> None:
    """Each byte at the start, where counts and lengths are, is tested with two wrong values."""
    file = tmp_path / "model.gguf"
    for place in range(4, 600):
        for value in (0, 0xFF):
            file.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            with suppress(WeightsError):
                read_gguf(file)


def test_endless_headers_are_refused_early(tmp_path: Path) -> None:
    with (tmp_path / "model.gguf").open("wb") as stream:
        stream.write(header(1, entry(b"key", 8, struct.pack("<Q", MOST_HEADER))))
        stream.truncate(2**33)
    assert f"a header of more than {MOST_HEADER:,} bytes" in refusal(tmp_path / "model.gguf")


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    assert "no regular file" in refusal(tmp_path / "model.gguf")
    assert "is missing" in refusal(tmp_path / "other.gguf")


def test_a_missing_package_is_reported_with_the_install_command(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf.constants", None)
    message = refusal(tmp_path / "model.gguf", whole)
    assert message.endswith("needs the package gguf: pip install '.[gguf]' in Composer's checkout")


def test_reading_a_header_imports_no_torch(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(whole)
    script = (
        "import sys; from pathlib import Path; from converters.gguf import read_gguf; read_gguf(Path(sys.argv[1])); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "model.gguf")], check=True)
