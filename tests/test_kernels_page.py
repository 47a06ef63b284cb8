"""The page of kernels equals `explain` for every shipped spec."""

from __future__ import annotations

from pages.write import KERNEL_TABLE, list_kernels


def test_the_kernel_table_is_up_to_date() -> None:
    text = KERNEL_TABLE.read_text(encoding="utf-8")
    assert list_kernels(text) == text, "make docs"
