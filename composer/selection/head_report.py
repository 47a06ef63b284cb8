"""The report of a selection of key heads: a score for each, the key heads to keep, and the spec that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import computed_field

from blocks.part import Closed
from composer.reporting.plotting import add_title, panels, plotting, save
from composer.reporting.tables import Readable, Table, View
from composer.reporting.words import ranges, size
from composer.selection.report import MOST, By, TokensScored, format_found
from composer.spec.inherit import short_path

OUTLINE = "#D55E00"


class HeadScore(Closed):
    """One key head. The higher its score, the more it should keep the source's attention.

    answers_lost: with `ablated`, the share of the answers that the source finds and the source without this key head does not, less
    those that only the latter finds.
    """

    layer: int
    head: int
    score: float
    answers_lost: float | None = None


class KeptHeads(Closed):
    """The key heads of a layer that keep the source's attention."""

    layer: int
    heads: tuple[int, ...]


class CurvePoint(Closed):
    """The student with so many key heads kept, before any fine-tuning. answers_found: the share of the tasks' answers of which
    every token is the model's first choice, after the true text before it."""

    kept: int
    share: float
    divergence: float
    """KL(source ‖ student) in nats per token of the text."""
    answer_divergence: float
    """The same, per token of the answers."""
    answers_found: float


class HeadSelection(Readable, Closed):
    """The key heads that keep the source's attention, and the figures that they were chosen by."""

    name: str
    teacher: str
    by: By
    meaning: str
    """What a score of `by` measures."""
    score: TokensScored
    """The tokens of `ablated`, `restored` and `swapped`."""
    forward_tokens: int
    """The cost of the scores: tokens in forward passes of the model. A backward pass counts as two."""
    other: str
    """The heads that gates mixed with the source's attention: a spec, or the folder of a trained student."""
    tasks: tuple[str, ...]
    steps: int
    rows: int
    """Held-out rows, each of a sample of a task and of text."""
    row_tokens: int
    scores: tuple[HeadScore, ...]
    keep: tuple[KeptHeads, ...]
    count: int
    """Key heads that are kept."""
    curve: tuple[CurvePoint, ...]
    """By the number of kept key heads. The last point is the source."""
    sequence: int
    state_bytes: int
    """Of the student at `sequence` tokens, with the key heads kept."""
    document: dict[str, Any]
    """The spec that keeps them."""
    out: Path

    @computed_field
    @property
    def rules(self) -> list[dict[str, Any]]:
        """The rules under ``layers:`` of the spec."""
        return self.document["layers"]

    def view(self) -> View:
        return View(f"{self.name} of {short_path(Path(self.teacher))}", (_kept(self), _curve(self)), _remarks(self))


def _kept(selection: HeadSelection) -> Table:
    """Return a row a layer that has candidates: the scores of its key heads, and those kept."""
    kept = {some.layer: some.heads for some in selection.keep}
    scores: dict[int, list[str]] = {}
    for score in selection.scores:
        scores.setdefault(score.layer, []).append(f"{score.score:.2f}" if selection.by == "gates" else f"{score.score:.3g}")
    rows = tuple((str(layer), ranges(kept.get(layer, ())), "  ".join(own)) for layer, own in scores.items())
    return Table("", ("layer", "kept", f"{selection.by} of its key heads"), rows)


def _curve(selection: HeadSelection) -> Table:
    headers = ("key heads kept", "share", "KL, text", "KL, answers", "answers found [95 % interval]")
    rows = tuple(
        (
            f"{point.kept:,}",
            f"{point.share:.0%}",
            f"{point.divergence:.3g}",
            f"{point.answer_divergence:.3g}",
            format_found(point.answers_found, selection.rows),
        )
        for point in selection.curve
    )
    return Table("", headers, rows, range(5))


def _remarks(selection: HeadSelection) -> tuple[str, ...]:
    return (
        f"Score: {selection.meaning}. It took {selection.forward_tokens:,} tokens of forward passes.",
        f"KL(source ‖ student) in nats a token, on {selection.rows:,} held-out rows of {selection.row_tokens:,} tokens, before any "
        f"fine-tuning; the other key heads are those of {selection.other}. Answers of {', '.join(selection.tasks)}.",
        f"State at {selection.sequence:,} tokens: {size(selection.state_bytes)}.",
        f"Spec: {short_path(selection.out / 'spec.yaml')}",
    )


def draw_heads(selection: HeadSelection, path: Path) -> None:
    """Layers × key heads, scores as colours, kept key heads outlined. Raises OSError."""
    scores = {(score.layer, score.head): score.score for score in selection.scores}
    layers, heads = (max(key[axis] for key in scores) + 1 for axis in (0, 1))
    table = [[scores.get((layer, head), float("nan")) for layer in range(layers)] for head in range(heads)]
    most = 1 if selection.by == "gates" else None
    with plotting() as pyplot:
        figure, (axis,) = panels(pyplot, 1, height=1.2 + 0.25 * min(heads, 24))
        image = axis.imshow(table, vmin=0, vmax=most, aspect="auto", cmap="Blues", interpolation="nearest")
        for some in selection.keep:
            for head in some.heads:
                place = (some.layer - 0.5, head - 0.5)
                axis.add_patch(pyplot.Rectangle(place, 1, 1, fill=False, edgecolor=OUTLINE, linewidth=2))
        axis.set_xticks(range(0, layers, -(-layers // MOST)))
        axis.set_yticks(range(0, heads, -(-heads // MOST)))
        axis.set(xlabel="layer", ylabel="key head")
        figure.colorbar(image, ax=axis, label=selection.by)
        add_title(figure, f"Key heads of {Path(selection.teacher).name} that {selection.name} keeps (outlined)")
        save(figure, path)


def draw_curve(selection: HeadSelection, path: Path) -> None:
    """The share of kept key heads against divergence and answers found. Raises OSError."""
    shares = [100 * point.share for point in selection.curve]
    lines: Sequence[tuple[str, list[float]]] = (
        ("KL to the source on text (nats a token)", [point.divergence for point in selection.curve]),
        ("answers found (%)", [100 * point.answers_found for point in selection.curve]),
    )
    with plotting() as pyplot:
        figure, axes = panels(pyplot, 2, height=2.4, across=2)
        for axis, (label, values) in zip(axes, lines, strict=True):
            axis.plot(shares, values, marker="o")
            axis.axvline(100 * selection.count / len(selection.scores), color=OUTLINE, linestyle="--", linewidth=1)
            axis.set(xlabel="key heads kept (%)", ylabel=label, ylim=(0, None))
        add_title(figure, f"{selection.name}: the more key heads keep the source's attention (dashed: the selection)")
        save(figure, path)
