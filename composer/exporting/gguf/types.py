"""The types of matrices that GGUF files are written with, and the packages that files need."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from composer.errors import ExportError
from converters import gguf

TYPES: Mapping[str, float] = {
    "f32": 1e-3, "f16": 0.01, "bf16": 0.05, "q8_0": 0.1, "q5_1": 0.5, "q5_0": 0.5, "q4_1": 0.7, "q4_0": 0.7,
}  # fmt: skip
"""Types that the package ``gguf`` can write, with the largest accepted difference of logits, as a share of the largest one."""
DEFAULT_TYPE = "f16"
INSTALL = "pip install llama-cpp-python"


def name_of_file(kind: str) -> str:
    """Return the name of a GGUF file whose matrices have this type."""
    return f"model-{kind}{gguf.GGUF}"


def type_of_file(file: Path) -> str:
    """Return the type of a file's matrices, by its name."""
    return file.stem.removeprefix("model-")


def check_gguf(kind: str) -> None:
    """Raise ExportError if no matrices of this type can be written, or a package is missing."""
    if kind not in TYPES:
        raise ExportError(
            f"--quantize {kind}: the package gguf cannot write this type; expected one of {', '.join(TYPES)}. For another "
            f"type, export with --quantize f16 and run llama.cpp's program llama-quantize"
        )
    if find_spec("gguf") is None:
        raise ExportError(f"--gguf needs the package gguf: {gguf.INSTALL}")
