"""Forms whose speed was measured on GPUs. ``make docs`` writes ``measured.json`` from benchmarks/results, with a row for each form,
device and size. It has no rows until ``make gpu-speed`` has run on a GPU. Without a row, the order of the backends decides.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

from blocks.operation import Form, Setting
from blocks.part import Closed

TABLE = Path(__file__).with_name("measured.json")


class MeasuredForm(Closed):
    """The measured speed of a form in a setting."""

    form: str
    """Its description."""
    device: str
    """The GPU's name."""
    head_dim: int
    tokens: int
    """The tokens of the call, or before it in decode."""
    one_token: bool
    gradients: bool
    speed: float
    """The seconds of the head without this form, over its seconds with it."""

    def __str__(self) -> str:
        return f"measured on {self.device} at {self.tokens:,} tokens: {self.speed:.2f} times the speed of the head without it"


@cache
def read_table(path: Path = TABLE) -> tuple[MeasuredForm, ...]:
    """Return all rows. The table is empty until something has been measured."""
    return tuple(MeasuredForm(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"])


def find_measured(form: Form, setting: Setting) -> MeasuredForm | None:
    """Return the row for a form in a setting: of this machine's GPU, or else of another one, at the nearest size of the heads. Of
    several, the one with the lowest speed."""
    call = setting.one_token, setting.gradients
    rows = [row for row in read_table() if row.form == form.description and (row.one_token, row.gradients) == call]
    if setting.device != "cuda" or not rows:
        return None
    name, head_dim = _name_device(), setting.shape.head_dim if setting.shape else 0
    return min(rows, key=lambda row: (row.device != name, abs(row.head_dim - head_dim), row.speed))


def _name_device() -> str | None:
    """Return the name of this machine's GPU. A process that has not imported torch, such as ``compose explain``, uses none."""
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None
