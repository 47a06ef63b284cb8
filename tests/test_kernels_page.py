"""The page of kernels is what `explain` says of every shipped spec; no memory of a spec with kernels of its own falls back whole."""

from __future__ import annotations

from docs.write import KERNEL_TABLE, kernels


def test_the_table_is_written_anew() -> None:
    text = KERNEL_TABLE.read_text(encoding="utf-8")
    assert kernels(text) == text, "python docs/write.py"


def test_every_recurrent_part_has_a_kernel() -> None:
    rows = [line.split(" | ") for line in KERNEL_TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    for spec, _, part, form, *_ in rows:
        if part in {"state", "delta", "latents"} and "bidirectional" not in spec:
            assert form.startswith(("fla: ", "triton: ")), (spec, part, form)
