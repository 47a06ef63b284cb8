"""Tables of reports, as Markdown, plain text and HTML write them, and objects whose ``repr`` is such tables."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from composer.reporting.escape import escape_html, escape_markdown, escape_message, escape_text

if TYPE_CHECKING:
    from rich.console import Console

Cell = TypeVar("Cell")
UNBOUNDED = 10_000
"""Columns of a screen on which nothing wraps."""


class Table(NamedTuple):
    """One table of a report. Rows are as long as the headers. figures: the columns that are aligned on the right. under: it belongs
    to the table above, and is indented below it."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: range = range(0)
    under: bool = False

    def markdown(self) -> str:
        """With its title above it."""
        title = f"### {escape_markdown(self.title)}\n\n" if self.title else ""
        return f"{title}{markdown_table(self.headers, self.rows, self.figures)}\n"

    def text(self, screen: Console | None = None) -> str:
        """For a terminal, its title above it."""
        lines = text_table(self.rows, headers=self.headers, right=self.figures, indent=4 if self.under else 2, screen=screen)
        title = f"  {escape_message(self.title)}" if self.under else _bold(self.title, screen)
        return f"{title}\n{lines}" if self.title else lines

    def html(self) -> str:
        """For a notebook, its title above it."""
        title = f"<caption>{escape_html(self.title)}</caption>" if self.title else ""
        head = f"<thead>{_html_row(self.headers, self.figures, 'th')}</thead>" if any(self.headers) else ""
        body = "".join(_html_row(row, self.figures, "td") for row in self.rows)
        return f"<table>{title}{head}<tbody>{body}</tbody></table>"


class View(NamedTuple):
    """The view of an object for people: a title, tables, verbatim text, and notes below."""

    title: str
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    verbatim: str = ""

    def text(self, screen: Console | None = None) -> str:
        """For a terminal: blocks with an empty line between them. screen: whose width lines wrap at; None: they do not wrap."""
        tables = "".join(("\n" if table.under else "\n\n") + table.text(screen) for table in self.tables)
        notes = escape_message("\n".join(self.notes))
        blocks = [_bold(self.title, screen), escape_text(self.verbatim), tables.lstrip("\n"), notes]
        return "\n\n".join(block.rstrip("\n") for block in blocks if block)

    def markdown(self) -> str:
        """For a file: the tables, and the notes below them."""
        tables = "\n".join(table.markdown() for table in self.tables)
        return tables + "".join(f"\n{escape_markdown(note)}\n" for note in self.notes)

    def html(self) -> str:
        """For a notebook. All text is escaped; markup is only added here."""
        title = f"<p><b>{escape_html(self.title)}</b></p>" if self.title else ""
        verbatim = f"<pre>{escape_html(self.verbatim)}</pre>" if self.verbatim else ""
        notes = "".join(f"<p>{escape_html(note)}</p>" for note in self.notes)
        return f"<div>{title}{verbatim}{''.join(table.html() for table in self.tables)}{notes}</div>"


class Readable:
    """An object that shows itself to people: as text wherever it is printed, as HTML in a notebook."""

    def view(self) -> View:
        """Return the view to show."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.view().text()

    def __str__(self) -> str:
        return self.view().text()

    def _repr_html_(self) -> str:
        return self.view().html()


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]], figures: Container[int] = ()) -> str:
    """Return a line for the headers, one below them, and one for each row."""
    ruler = ["---:" if column in figures else "---" for column in range(len(headers))]
    return "\n".join(map(_line, (headers, ruler, *rows)))


def text_table(
    rows: Iterable[Sequence[str]],
    *,
    headers: Sequence[str] = (),
    right: Container[int] = (),
    indent: int = 2,
    screen: Console | None = None,
) -> str:
    """Columns without lines. Only the last one wraps, at the width of ``screen``; without one, none does. right: the columns of
    figures."""
    from rich import console
    from rich.padding import Padding
    from rich.table import Table as Columns

    rows = [tuple(map(escape_message, row)) for row in rows]
    headers = [escape_message(header) for header in headers]
    columns = max((len(row) for row in (headers, *rows)), default=0)
    table = Columns(box=None, show_header=any(headers), pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index in range(columns):
        last = index == columns - 1
        table.add_column(
            headers[index] if headers else "",
            justify="right" if index in right else "left",
            no_wrap=not last,
            overflow="fold",
            min_width=None if last else max((len(row[index]) for row in (headers, *rows) if row), default=0),
        )
    for row in rows:
        table.add_row(*row)
    if screen is None:
        screen = console.Console(
            highlight=False, emoji=False, markup=False, no_color=True, force_terminal=False, force_jupyter=False
        )
        screen.width = UNBOUNDED
    with screen.capture() as captured:
        screen.print(Padding(table, (0, 0, 0, indent)))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _bold(text: str, screen: Console | None) -> str:
    text = escape_message(text)
    if screen is None:
        return text
    with screen.capture() as captured:
        screen.print(text, style="bold", soft_wrap=True, end="")
    return captured.get()


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escape_markdown, cells)) + " |"


def _html_row(cells: Sequence[str], figures: Container[int], kind: str) -> str:
    sides = ("right" if column in figures else "left" for column in range(len(cells)))
    html_cells = (
        f'<{kind} style="text-align: {side}">{escape_html(cell)}</{kind}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(html_cells)}</tr>"


def cell_at(key: tuple[Any, ...], cells: Mapping[tuple[Any, ...], Cell]) -> Cell:
    """Return the cell of a report. Raises KeyError, which names those that there are."""
    if key not in cells:
        raise KeyError(f"no cell {key}; there are {', '.join(str(tuple(cell_key)) for cell_key in cells) or 'none'}")
    return cells[key]
