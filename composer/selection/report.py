"""The reports of a selection, of layers and of key heads: a score of each, those to keep, and the spec that keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import computed_field

from blocks.part import Closed
from composer.evaluation.report import interval_of
from composer.reporting.plotting import COLOURS, add_title, panels, plotting, save
from composer.reporting.tables import Readable, Table, View
from composer.reporting.words import ranges, size
from composer.runs.store import RunStore
from composer.spec.inherit import short_path
from composer.spec.writing import to_yaml
from composer.system.files import write_whole

LayerBy = Literal["restored", "swapped", "error"]
By = Literal["gates", "ablated", "patched", "restored", "swapped", "error"]
"""The score of a selection. Layers have the last three."""
TokensScored = Literal["answers", "text", "both"]
"""The tokens over which `ablated`, `restored` and `swapped` compare key heads."""
SELECTION, SPEC = "selection.json", "spec.yaml"
"""The report of a selection, and the spec that it chose."""
SCORING = "scoring"
"""The name of the bar."""
WORDS: dict[LayerBy, str] = {
    "restored": "nats a token won by restoring it",
    "swapped": "nats a token lost by replacing it",
    "error": "relative error of its attention",
}
"""The description of each score, for tables and pictures."""
HEAD_WORDS: dict[By, str] = {
    "gates": "gate from 0, the other head, to 1, the source's attention",
    "ablated": "nats a token of log p lost by setting its output to 0",
    "patched": "share of the answer lost with its output from a twin with another answer",
    **WORDS,
}
"""The same of key heads."""
KEPT, OTHER = COLOURS[5], COLOURS[0]
MOST = 32
"""The most layers that an axis names; of more, it names every second, third and so on."""


class Selected(Readable, Closed):
    """What the reports of a selection have in common. They are written beside the spec."""

    name: str
    teacher: str
    sequence: int
    state_bytes: int
    """Of the student at `sequence` tokens, with the layers or key heads kept."""
    document: dict[str, Any]
    """The spec that keeps them."""
    out: Path

    @computed_field
    @property
    def rules(self) -> list[dict[str, Any]]:
        """The rules under ``layers:`` of the spec."""
        return self.document["layers"]

    def ending(self) -> tuple[str, ...]:
        """Return the last remarks: the size of the state, and the place of the spec."""
        return (
            f"State at {self.sequence:,} tokens: {size(self.state_bytes)}.",
            f"Spec: {short_path(self.out / SPEC)}",
        )


OfSelection = TypeVar("OfSelection", bound=Selected)


def write_result(store: RunStore, report: OfSelection, pictures: Mapping[str, Callable[[OfSelection, Path], None]]) -> None:
    """Write the spec, the pictures by their names, and last the report, which shows that the run has ended. Raises the store's
    error."""
    assert store.result is not None, "a selection ends"
    with store.writing(report.out):
        write_whole(report.out / SPEC, to_yaml(report.document))
        for name, draw_picture in pictures.items():
            draw_picture(report, report.out / name)
        write_whole(report.out / store.result, json.dumps(report.model_dump(mode="json", exclude={"out"}), indent=2) + "\n")


class LayerScore(Closed):
    """One layer. The higher a score, the more the layer should keep the source's attention."""

    layer: int
    restored: float
    """The decrease of KL(teacher ‖ student), in nats per token, if this layer of the student has the teacher's attention."""
    swapped: float
    """KL(teacher ‖ teacher with the student's heads in this layer only), in nats per token."""
    error: float
    """‖heads of the student - heads of the teacher‖² / ‖heads of the teacher‖², both on the teacher's hidden states."""


class Selection(Selected):
    """The layers that keep the source's attention, and the figures that they were chosen by."""

    by: LayerBy
    rows: int
    tokens: int
    scores: tuple[LayerScore, ...]
    keep: tuple[int, ...]
    divergence: float
    """KL(teacher ‖ student) without a layer kept, in nats a token, before any fine-tuning."""
    kept_divergence: float
    """KL(teacher ‖ student) with the layers of `keep` kept, in nats a token, before any fine-tuning."""
    all_fit: bool = False
    """The budget would have allowed to keep every layer."""

    def view(self) -> View:
        return View(f"{self.name} of {short_path(Path(self.teacher))}", (_layer_table(self),), _layer_remarks(self))


def _layer_table(selection: Selection) -> Table:
    """Return a row a layer."""
    names = get_args(LayerBy)
    rows = tuple(
        (str(score.layer), "kept" if score.layer in selection.keep else "", *(f"{getattr(score, name):.4g}" for name in names))
        for score in selection.scores
    )
    return Table("", ("layer", "", *(WORDS[name] for name in names)), rows, range(2, 2 + len(names)))


def _layer_remarks(selection: Selection) -> tuple[str, ...]:
    """Return the effect of keeping the layers, and the next step for the user."""
    every = (
        "The budget would allow to keep every layer, and that is the source itself: the one with the lowest score is left out.",
    )
    return (
        f"KL(teacher ‖ student) is {selection.divergence:.4g} nats a token with none of them kept, "
        f"{selection.kept_divergence:.4g} with these ({selection.tokens:,} tokens of {selection.rows:,} held-out rows, before any "
        "fine-tuning).",
        *(every if selection.all_fit else ()),
        *selection.ending(),
    )


def format_found(share: float, rows: int) -> str:
    """Return a share of answers with the ends of its 95 % interval. rows: the number of answers."""
    low, high = interval_of("tokens", share, None, rows) or (0.0, 1.0)
    return f"{share:.0%} [{low:.0%}, {high:.0%}]"


def draw_layers(selection: Selection, path: Path) -> None:
    """A panel a score. Raises OSError."""
    names = get_args(LayerBy)
    with plotting() as pyplot:
        figure, axes = panels(pyplot, len(names), height=2.0, margin=0.6, sharex=True)
        layers = [score.layer for score in selection.scores]
        is_kept = {layer: layer in selection.keep for layer in layers}
        for axis, name in zip(axes, names, strict=True):
            bars = axis.bar(layers, [getattr(score, name) for score in selection.scores])
            for layer, bar in zip(layers, bars, strict=True):
                bar.set(facecolor=KEPT if is_kept[layer] else OTHER, hatch="///" if is_kept[layer] else None, edgecolor="white")
            axis.axhline(0, color="black", linewidth=0.8)
            axis.set_ylabel(WORDS[name].replace(" by ", "\nby ").replace(" of ", "\nof "))
            if name == selection.by:
                axis.set_title(f"kept by this score (hatched): {ranges(selection.keep)}", color="#A64500")
        axes[-1].set_xlabel("layer")
        axes[-1].set_xticks(layers[:: -(-len(layers) // MOST)])
        add_title(figure, f"What each layer of {Path(selection.teacher).name} loses as {selection.name}")
        save(figure, path)


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


class HeadSelection(Selected):
    """The key heads that keep the source's attention, and the figures that they were chosen by."""

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

    def view(self) -> View:
        return View(
            f"{self.name} of {short_path(Path(self.teacher))}", (_head_table(self), _curve_table(self)), _head_remarks(self)
        )


def _head_table(selection: HeadSelection) -> Table:
    """Return a row a layer that has candidates: the scores of its key heads, and those kept."""
    kept_numbers = {some.layer: some.heads for some in selection.keep}
    scores: dict[int, list[str]] = {}
    for score in selection.scores:
        scores.setdefault(score.layer, []).append(f"{score.score:.2f}" if selection.by == "gates" else f"{score.score:.3g}")
    rows = tuple(
        (str(layer), ranges(kept_numbers.get(layer, ())), "  ".join(layer_scores)) for layer, layer_scores in scores.items()
    )
    return Table("", ("layer", "kept", f"{selection.by} of its key heads"), rows)


def _curve_table(selection: HeadSelection) -> Table:
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


def _head_remarks(selection: HeadSelection) -> tuple[str, ...]:
    return (
        f"Score: {selection.meaning}. It took {selection.forward_tokens:,} tokens of forward passes.",
        f"KL(source ‖ student) in nats a token, on {selection.rows:,} held-out rows of {selection.row_tokens:,} tokens, before any "
        f"fine-tuning; the other key heads are those of {selection.other}. Answers of {', '.join(selection.tasks)}.",
        *selection.ending(),
    )


def draw_heads(selection: HeadSelection, path: Path) -> None:
    """Layers × key heads, scores as colours, kept key heads outlined. Raises OSError."""
    scores = {(score.layer, score.head): score.score for score in selection.scores}
    layers, heads = (max(key[axis] for key in scores) + 1 for axis in (0, 1))
    table = [[scores.get((layer, head), float("nan")) for layer in range(layers)] for head in range(heads)]
    max_score = 1 if selection.by == "gates" else None
    with plotting() as pyplot:
        figure, (axis,) = panels(pyplot, 1, height=1.2 + 0.25 * min(heads, 24))
        image = axis.imshow(table, vmin=0, vmax=max_score, aspect="auto", cmap="Blues", interpolation="nearest")
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
