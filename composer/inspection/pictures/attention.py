"""Pictures of attention: the tokens that heads attend to, the memories that answer, and the memories that hold each pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocks.memories import MEMORIES
from composer.inspection.findings import Findings, HeadFindings, PlainArray
from composer.reporting.plotting import (
    COLOURS,
    FAINT,
    MAP,
    MARK,
    STUDENT,
    TEACHER,
    label,
    legend,
    named_ticks,
    panels,
    plain,
    whole_ticks,
)


@dataclass(frozen=True)
class DrawnFigure:
    """name: of its files. title, says: above and below it on the page. data: the contents of its JSON."""

    name: str
    title: str
    says: str
    figure: Any
    data: Any


OF_MEMORIES = tuple(COLOURS[index] for index in (3, 4, 6, 0, 1, 2, 5))
"""In the order of the catalogue, so that a kind has the same colour in every picture, of whatever model."""


def memory_colours(findings: Findings) -> dict[str, str]:
    """Return the colour of each memory by its name; grey for others, such as attention sinks. If two memories of a model would have
    the same colour, the second has the next free one."""
    order = list(MEMORIES)
    kinds = dict(pair for head in findings.heads for pair in zip(head.memories, head.kinds, strict=True))
    colours: dict[str, str] = {}
    for name, kind in sorted(kinds.items(), key=lambda item: (order.index(item[1]), item[0])):
        place = order.index(kind)
        rotated = [OF_MEMORIES[(place + step) % len(OF_MEMORIES)] for step in range(len(OF_MEMORIES))]
        colours[name] = next((colour for colour in rotated if colour not in colours.values()), rotated[0])
    others = dict.fromkeys(name for head in findings.heads for name in head.shares if name not in colours)
    return colours | dict.fromkeys(others, FAINT)


def from_zero(axes: Iterable[Any]) -> None:
    """Once all is drawn: panels that share an axis have room for the largest of all."""
    for axis in axes:
        axis.set_ylim(bottom=0)


def ticks(axis: Any, queries: Sequence[int], *, count: int = 5) -> None:
    """Rows of queries, named by their columns."""
    rows = np.unique(np.linspace(0, len(queries) - 1, count).round().astype(int))
    axis.set_yticks(rows + 0.5, [f"{queries[row]:,}" for row in rows])


def finite(numbers: PlainArray) -> PlainArray:
    return np.where(np.isfinite(numbers), numbers, np.nan)


LEAST = 1e-4
"""The smallest weight that differs in colour from 0."""
MOST_HEADS = 8
"""Largest number of heads of a layer that are drawn as maps: the first ones. The JSON has all."""


def pictures(pyplot: Any, findings: Findings) -> Iterator[DrawnFigure]:
    """Yield the pictures of weights."""
    if any(head.found.size for head in findings.heads):
        yield draw_answer_weights(pyplot, findings)
    for layer in sorted({head.layer for head in findings.heads}):
        heads = [head for head in findings.heads if head.layer == layer]
        yield weights(pyplot, findings, layer, heads)
    for layer in sorted({head.layer for head in findings.heads}):
        heads = [head for head in findings.heads if head.layer == layer]
        if any(len(head.memories) > 1 for head in heads):
            yield shares(pyplot, findings, layer, heads)
            yield stands(pyplot, findings, layer, heads)


def total(head: HeadFindings) -> PlainArray:
    """Return the weights of all memories together."""
    return np.sum(list(head.weights.values()), axis=0)


def heads_one_by_one(heads: Sequence[HeadFindings]) -> list[tuple[HeadFindings, int]]:
    """Return the heads of a layer one by one."""
    return [(head, index) for head in heads for index in range(head.heads)]


def draw_answer_weights(pyplot: Any, findings: Findings) -> DrawnFigure:
    """Draw the weight on the answer's columns, head by head."""
    every = heads_one_by_one(findings.heads)
    figure, (axis,) = panels(pyplot, 1, height=2.6)
    places, width = np.arange(len(every)), 0.38
    weights = [float(np.nanmean(head.found[index])) for head, index in every]
    axis.bar(places - (width / 2 if findings.teacher else 0), weights, width, color=STUDENT, label=label(findings.model))
    theirs = [head.teacher_found[index].mean() if head.teacher_found is not None else None for head, index in every]
    if findings.teacher:
        axis.bar(
            places + width / 2,
            [weight or 0.0 for weight in theirs],
            width,
            color="white",
            edgecolor=TEACHER,
            hatch="////",
            label="teacher",
        )
    chance = np.mean([len(places) / answer for answer, places in zip(findings.answers, findings.found_at, strict=True) if places])
    axis.axhline(chance, color=MARK, linewidth=1, linestyle="--", label="as if all tokens weighed alike")
    named_ticks(axis, [f"{head.layer}.{head.numbers[index]}" for head, index in every], upright=16, limit=48)
    axis.set(xlabel="layer.head", ylabel="weight on the answer in the text", ylim=(0, 1))
    axis.set_title(f"{plain(findings.text)}, {len(findings.tokens):,} tokens. Answer right: {_answers_in_words(findings)}")
    legend(figure, axis)
    data = {
        "head": [f"{head.layer}.{head.numbers[index]}" for head, index in every],
        "weight": weights,
        "teacher": theirs,
        "uniform": float(chance),
        "answers": len(every[0][0].found[0]) if every else 0,
        "answered": findings.answered,
        "teacher_answered": findings.teacher_answered,
    }
    says = "The weight of each head on the answer's tokens in the text, when the model has to predict the answer."
    return DrawnFigure("answers", "Found or lost", says, figure, data)


def _answers_in_words(findings: Findings) -> str:
    answered_by = [(findings.model, findings.answered), ("teacher", findings.teacher_answered)]
    return ", ".join(
        f"{who} {sum(answered.right)} of {len(answered.right)}" for who, answered in answered_by if answered is not None
    )


def weights(pyplot: Any, findings: Findings, layer: int, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """Maps of queries and tokens, the teacher's above the student's."""
    from matplotlib.colors import LogNorm

    every = heads_one_by_one(heads)[:MOST_HEADS]
    beside = any(head.teacher is not None for head in heads)
    rows = 2 if beside else 1
    across = min(4, len(every))
    down = -(-len(every) // across)
    figure, axes = panels(pyplot, rows * down * across, height=2.1, across=across, margin=0.7, sharex=True, sharey=True)
    mesh = None
    for axis in axes:
        axis.set_visible(False)
    edges = np.arange(total(every[0][0]).shape[-1] + 1) * findings.bin
    for place, (head, index) in enumerate(every):
        drawn = [("", total(head)[index])]
        if beside:
            theirs = np.zeros_like(drawn[0][1]) if head.teacher is None else head.teacher[index]
            drawn = [("teacher, ", theirs), ("student, ", drawn[0][1])]
        for row, (who, numbers) in enumerate(drawn):
            axis = axes[(rows * (place // across) + row) * across + place % across]
            axis.set_visible(True)
            mesh = axis.pcolormesh(
                edges,
                np.arange(len(findings.queries) + 1),
                np.clip(np.abs(numbers), LEAST, None),
                norm=LogNorm(LEAST, 1),
                cmap=MAP,
                rasterized=True,
            )
            axis.set_title(f"{who}head {layer}.{head.numbers[index]}")
            axis.invert_yaxis() if place == 0 and row == 0 else None
            ticks(axis, findings.queries)
            for column in {column for places in findings.found_at for column in places}:
                axis.plot(column + 0.5, 0, marker="v", color=MARK, markersize=3, clip_on=False)
            if place % across == 0:
                axis.set_ylabel("query at token")
            whole_ticks(axis, limit=4)
            if place // across == down - 1 and row == rows - 1:
                axis.set_xlabel("token")
    bins = "a token" if findings.bin == 1 else f"{findings.bin} tokens"
    bar = figure.colorbar(mesh, ax=axes, label=f"weight of {bins}", shrink=0.6, aspect=30, pad=0.01)
    bar.ax.yaxis.set_major_formatter(lambda weight, _: f"{weight:g}")
    says = (
        "The weight of each token (across) in the answer to each query (down): softmax weights of exact memories, and those that "
        f"states imply.{_of_answers(findings)}"
    )
    data = {
        "layer": layer,
        "queries": findings.queries,
        "bin": findings.bin,
        "heads": [
            {"name": head.name, "numbers": head.numbers, "error": head.error, "weights": head.weights, "teacher": head.teacher}
            for head in heads
        ],
    }
    return DrawnFigure(f"weights-{layer}", f"What the heads of layer {layer} attend to", says, figure, data)


def _of_answers(findings: Findings) -> str:
    """Return the legend of a map's answers, if the text has any."""
    marks = " Orange marks: the answer in the text." if any(findings.found_at) else ""
    return f"{marks} The query before each token of the answer predicts that token." if findings.answers else ""


def shares(pyplot: Any, findings: Findings, layer: int, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """Return which memory answers, over positions."""
    every = heads_one_by_one(heads)[:MOST_HEADS]
    figure, axes = panels(pyplot, len(every), height=1.9, across=4, sharex=True, sharey=True)
    names, colours = list(dict.fromkeys(name for head in heads for name in head.shares)), memory_colours(findings)
    for place, (axis, (head, index)) in enumerate(zip(axes, every, strict=True)):
        stacked = [head.shares[name][index] for name in names if name in head.shares]
        shown = [name for name in names if name in head.shares]
        axis.stackplot(findings.queries, stacked, labels=shown, colors=[colours[name] for name in shown], step="mid")
        axis.set(ylim=(0, 1), xlim=(findings.queries[0], findings.queries[-1]))
        axis.set_title(f"head {layer}.{head.numbers[index]}")
        if place % 4 == 0:
            axis.set_ylabel("share of the weight")
        axis.set_xlabel("query at token")
        whole_ticks(axis, limit=4)
    legend(figure, *axes)
    data = {
        "layer": layer,
        "queries": findings.queries,
        "heads": [{"name": head.name, "numbers": head.numbers, "shares": head.shares} for head in heads],
    }
    says = "Each memory's share of a head's weight: they add up to 1. Where weights may be negative their sizes are added up."
    return DrawnFigure(f"shares-{layer}", f"Which memory answers in layer {layer}", says, figure, data)


def stands(pyplot: Any, findings: Findings, layer: int, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """Which memory has each pair, over time."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    every = [(head, index) for head, index in heads_one_by_one(heads) if len(head.memories) > 1][:4]
    names = list(dict.fromkeys(name for head, _ in every for name in head.memories))
    figure, axes = panels(pyplot, len(every), height=2.2, across=4, sharex=True, sharey=True)
    length, colours = len(findings.tokens), memory_colours(findings)
    palette = ListedColormap(["#FFFFFF", *(colours[name] for name in names)])
    for place, (axis, (head, index)) in enumerate(zip(axes, every, strict=True)):
        memory_numbers = np.zeros((len(findings.queries), length), dtype=int)
        by_size = sorted(head.memories, key=lambda name: -_columns(head.stands[name][index]))  # the fewest are seen above others
        for name in by_size:
            for row, runs in enumerate(head.stands[name][index]):
                for start, end in runs:
                    memory_numbers[row, start : end + 1] = 1 + names.index(name)
        axis.pcolormesh(
            np.arange(length + 1),
            np.arange(len(findings.queries) + 1),
            memory_numbers,
            cmap=palette,
            vmin=0,
            vmax=len(names),
            rasterized=True,
        )
        if place == 0:
            axis.invert_yaxis()
            axis.set_ylabel("query at token")
        ticks(axis, findings.queries)
        whole_ticks(axis, limit=4)
        axis.set_xlabel("token")
        axis.set_title(f"head {layer}.{head.numbers[index]}")
    patches = [Patch(color=colours[name], label=name) for name in names]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(names))
    held_by = [{"name": head.name, "numbers": head.numbers, "stands": head.stands} for head in heads]
    data = {"layer": layer, "queries": findings.queries, "heads": held_by}
    says = (
        "The memory that holds the pair of each token (across) at each query (down). If several hold it, the one with fewer pairs."
    )
    return DrawnFigure(f"stands-{layer}", f"Memories of the pairs in layer {layer}", says, figure, data)


def _columns(rows: Sequence[Sequence[Sequence[int]]]) -> int:
    return sum(end - start + 1 for runs in rows for start, end in runs)
