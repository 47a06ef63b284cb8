"""Parts from outside in tests: the example package, and a registry that is restored after each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blocks import external_parts
from blocks.catalogue import CATALOGUE, PATTERNS
from blocks.registry import rebuild_schemas

EXAMPLE = Path(__file__).parents[1] / "examples" / "own-part"
"""The folder of the package own_part."""
GATE = '''\
from typing import ClassVar, Literal

from blocks.gates.base import DecayRank, Gate
from blocks.legend import Float, Shape, Tensor
from blocks.part import Parameters


class Slow(Gate):
    """The same decay everywhere."""

    equation: ClassVar[str] = "log α = -rate"
    source: ClassVar[str] = "this test"
    rank_of_decay: ClassVar[DecayRank] = "head"
    kind: Literal["mine.slow"] = "mine.slow"
    rate: float = 0.1
    """What a state forgets at a token."""

    def log_decay(self, parameters: Parameters, inputs: Tensor, shape: Shape) -> Float[Tensor, "B T N"]:
        return inputs.new_full((*inputs.shape[:2], shape.state_heads), -self.rate)
'''
"""A file with one gate."""


@contextmanager
def restored() -> Iterator[None]:
    """For the block, an empty registry. Then the registry and the imported modules are what they were before."""
    states = (
        external_parts._ORIGINS,
        external_parts._NAMED,
        external_parts._BROKEN,
        *(role.outside for role in CATALOGUE.values()),
    )
    before = [dict(state) for state in states]
    patterns, path, modules = PATTERNS.outside, list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        for state, contents in zip(states, before, strict=True):
            state.clear()
            state.update(contents)  # pyright: ignore[reportArgumentType, reportCallIssue]
        PATTERNS.outside, sys.path[:] = patterns, path
        for name in set(sys.modules) - modules:
            if name.partition(".")[0] in ("own_part", "faked") or name.startswith(external_parts.FILES):
                del sys.modules[name]
        rebuild_schemas()


def fake_distribution(folder: Path, name: str, module: str, contents: str, version: str = "1.2") -> None:
    """Write an installed package of one module into a folder: the module, and the metadata with its entry point."""
    (folder / f"{module}.py").write_text(contents, encoding="utf-8")
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(f"[{external_parts.GROUP}]\n{name} = {module}\n", encoding="utf-8")
    (metadata / "RECORD").write_text(f"{module}.py,,\n", encoding="utf-8")
    (metadata / "top_level.txt").write_text(f"{module}\n", encoding="utf-8")
