"""What a killed build has left beside its output goes with the next build of it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from composer.weights.output import whole_or_nothing
from tests.composer.training.processes import ending, forked


def test_what_a_killed_build_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """And nothing else: no build that goes on beside it, and nothing of another name."""
    out, begun = tmp_path / "out[1]", tmp_path / "begun"

    def child() -> None:
        with whole_or_nothing(out) as folder:
            (folder / "half").touch()
            begun.touch()
            time.sleep(60)

    def build_beside() -> set[str]:
        with whole_or_nothing(out) as folder:
            (folder / "whole").touch()
        return {path.name for path in tmp_path.iterdir()} - {begun.name}

    others = {".out[1].more.0123abcd.partial", ".out[1].run.partial", ".out1.0123abcd.partial", ".out[1].0123abcd.replaced"}
    for name in others:
        (tmp_path / name).mkdir()
    process = forked(child)
    while not begun.exists():
        time.sleep(0.01)
    (going,) = build_beside() - {*others, out.name}
    assert (tmp_path / going / "half").exists()
    os.kill(process, signal.SIGKILL)
    assert ending(process) == -signal.SIGKILL
    assert (tmp_path / going / "half").exists()
    assert build_beside() == {*others, out.name}
    assert [path.name for path in out.iterdir()] == ["whole"]
