"""Pictures of the numbers that parts show of themselves, and of the likeness of each layer to the teacher's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from composer.inspection.findings import Findings, HeadFindings, ShownNumbers
from composer.inspection.pictures.picture import DrawnFigure
from composer.inspection.pictures.style import finite, from_zero, panels
from composer.plotting import FAINT, MAP, STUDENT, WIDTH, colour, legend, line, named_ticks, whole_ticks

MOST_NAMED = 16
"""Heads of a map that are named; of more, every so many."""


def pictures(pyplot: Any, found: Findings) -> Iterator[DrawnFigure]:
    """One for all that parts show under a name, and likeness where there is a teacher."""
    for name in dict.fromkeys(name for head in found.heads for name in head.shown):
        places = [(head, head.shown[name]) for head in found.heads if name in head.shown]
        of_tokens = places[0][1].axes[0] == "token"
        yield _over_text(pyplot, found, name, places) if of_tokens else _of_parameters(pyplot, name, places)
    if any(head.likeness for head in found.heads):
        yield likeness(pyplot, found)


def _over_text(pyplot: Any, found: Findings, name: str, places: list[tuple[HeadFindings, ShownNumbers]]) -> DrawnFigure:
    """A map over the text, head by head, and entropies below it."""
    figure, axes = pyplot.subplots(
        2 * len(places), 1, figsize=(WIDTH, 3.8 * len(places) + 0.6), squeeze=False, layout="constrained", sharex=True,
        height_ratios=[2.2, 1] * len(places),
    )  # fmt: skip
    columns = np.arange(places[0][1].numbers.shape[0]) * found.bin
    for index, (head, shown) in enumerate(places):
        above, below = axes[2 * index, 0], axes[2 * index + 1, 0]
        heads = shown.numbers.shape[1]
        wide = shown.numbers.reshape(len(columns), -1).T
        edges, each = np.append(columns, columns[-1] + found.bin), wide.shape[0] / heads
        mesh = above.pcolormesh(edges, np.arange(wide.shape[0] + 1), wide, cmap=MAP, vmin=0, rasterized=True)
        figure.colorbar(mesh, ax=above, label=name.rpartition(": ")[2])
        for border in range(1, heads):
            above.axhline(border * each, color="white", linewidth=1)
        every = -(-heads // MOST_NAMED)
        above.set_yticks(each * (np.arange(heads)[::every] + 0.5), [f"head {head.first + one}" for one in range(0, heads, every)])
        above.tick_params(axis="y", length=0)
        above.invert_yaxis()
        above.set_ylabel(" and ".join(f"{axis}s" for axis in shown.axes[1:]))
        above.set_title(f"layer {head.layer}, {head.name}: {_display_name(name)}")
        assert shown.entropy is not None, "of tokens"
        for one in range(shown.entropy.shape[1]):
            below.plot(columns, shown.entropy[:, one], color=colour(one), linestyle=line(one), label=f"head {one}")
        below.axhline(np.log(shown.numbers.shape[-1]), color=FAINT, linestyle=":", linewidth=1)
        below.set(ylabel="entropy (nats)", xlim=(0, edges[-1]))
        below.set_ylim(bottom=0)
        whole_ticks(below)
    axes[-1, 0].set_xlabel("token")
    legend(figure, axes[1, 0])
    data = [{"layer": head.layer, "head": head.name, "bin": found.bin, "shown": shown} for head, shown in places]
    says = f"{places[0][1].says[0].upper()}{places[0][1].says[1:]}, and the entropy of each head's; dotted: all alike."
    return DrawnFigure(_file(name), f"{_display_name(name)} over the text", says, figure, data)


def _of_parameters(pyplot: Any, name: str, places: list[tuple[HeadFindings, ShownNumbers]]) -> DrawnFigure:
    """Means of sizes over all axes between the first, the heads, and the last."""
    figure, axes = panels(pyplot, len(places), height=2.0, across=2, sharey=True)
    for axis, (head, shown) in zip(axes, places, strict=True):
        numbers = np.abs(shown.numbers).reshape(shown.numbers.shape[0], -1, shown.numbers.shape[-1]).mean(1)
        for index, one in enumerate(numbers):
            axis.plot(
                np.arange(len(one)) - len(one) + 1,
                one,
                marker=".",
                color=colour(index),
                linestyle=line(index),
                label=f"head {index}",
            )
        axis.set(xlabel=f"{shown.axes[-1]} (0 is the last)", ylabel=f"mean size of the {shown.axes[-1]}")
        axis.set_title(f"layer {head.layer}, {head.name}: {_display_name(name)}")
        whole_ticks(axis)
    from_zero(axes)
    legend(figure, axes[0])
    data = [{"layer": head.layer, "head": head.name, "shown": shown} for head, shown in places]
    says = f"{places[0][1].says[0].upper()}{places[0][1].says[1:]}; means of sizes over channels."
    return DrawnFigure(_file(name), _display_name(name), says, figure, data)


def likeness(pyplot: Any, found: Findings) -> DrawnFigure:
    """To the teacher, head by head, and layer by layer; of the weights only where they are compared at all."""
    every = [(head, head.likeness, index) for head in found.heads if head.likeness for index in range(head.heads)]
    names = [f"{head.layer}.{head.first + index}" for head, _, index in every]
    nothing = [like.divergence is None for _, like, _ in every]
    drawn = [
        ("MSE of the answers", [like.mse[index] for _, like, index in every]),
        ("cosine of the answers", [like.cosine[index] for _, like, index in every]),
    ]
    if not all(nothing):
        divergence = [np.nan if like.divergence is None else like.divergence[index] for _, like, index in every]
        drawn.append(("KL of the weights (nats)", divergence))
    figure, axes = panels(pyplot, len(drawn) + 1, height=2.4, across=2)
    for axis, (label, numbers) in zip(axes, drawn, strict=False):
        axis.bar(np.arange(len(every)), finite(np.asarray(numbers, dtype=float)), color=STUDENT)
        for place in range(1, len(every)):
            if every[place][0].layer != every[place - 1][0].layer:
                axis.axvline(place - 0.5, color=FAINT, linewidth=0.8)
        for place in np.flatnonzero(nothing) if numbers is drawn[-1][1] and len(drawn) > 2 else ():
            axis.text(place, 0, "–", ha="center", va="bottom", color=FAINT)
        named_ticks(axis, names, upright=8, most=24)
        axis.set(ylabel=label, xlabel="layer.head")
    stream, axis = found.stream, axes[-1]
    assert stream is not None, "there is a teacher"
    axis.plot(stream.cosine, marker="o", color=colour(0), label="cosine", clip_on=False)
    axis.plot(stream.error, marker="s", linestyle="--", color=colour(5), label="error ‖x - y‖ / ‖y‖", clip_on=False)
    axis.set(xlabel="hidden states behind so many layers", ylabel="beside the teacher's")
    axis.set_ylim(0, max(1.05, 1.1 * max(stream.error)))
    whole_ticks(axis)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    data = {
        "heads": [{"layer": head.layer, "head": head.name, "first": head.first, "likeness": head.likeness} for head in found.heads],
        "stream": stream,
    }
    says = (
        "Where the conversion hurts: each layer's heads on the teacher's hidden states against the teacher's own, and, in the last "
        "panel, the hidden states of the student's own run, in which errors add up. Both on this text alone."
    )
    if any(nothing):
        says += " Weights that may be negative have no KL."
    return DrawnFigure("likeness", "How like the teacher", says, figure, data)


def _display_name(name: str) -> str:
    """A part and what it shows: ``conv: taps: key`` is taps, key of conv."""
    part, _, what = name.partition(": ")
    return f"{what.replace(': ', ', ')} of {part}"


def _file(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-").replace("--", "-")
