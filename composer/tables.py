"""Tables of reports, and how Markdown writes them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """One table of a report. Rows are as long as the headers. figures: the columns that are aligned on the right."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: range = range(0)

    def markdown(self) -> str:
        """With its title above it."""
        return f"### {self.title}\n\n{markdown_table(self.headers, self.rows, self.figures)}\n"


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]], figures: Container[int] = ()) -> str:
    """A line for the headers, one below them, and one for each row."""
    ruler = ["---:" if column in figures else "---" for column in range(len(headers))]
    return "\n".join(map(_line, (headers, ruler, *rows)))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"
