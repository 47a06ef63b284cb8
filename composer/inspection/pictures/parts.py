"""What parts show of themselves, and how like the teacher each layer is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from composer.inspection.findings import Findings, HeadFindings, ShownNumbers
from composer.inspection.pictures.picture import Picture
from composer.inspection.pictures.style import MAP, colour, finite, legend, line, panels


def pictures(pyplot: Any, found: Findings) -> Iterator[Picture]:
    """One for all that parts show under a name, and likeness where there is a teacher."""
    for name in dict.fromkeys(name for head in found.heads for name in head.shown):
        places = [(head, head.shown[name]) for head in found.heads if name in head.shown]
        of_tokens = places[0][1].axes[0] == "token"
        yield _over_text(pyplot, found, name, places) if of_tokens else _of_parameters(pyplot, name, places)
    if any(head.likeness for head in found.heads):
        yield likeness(pyplot, found)


def _over_text(pyplot: Any, found: Findings, name: str, places: list[tuple[HeadFindings, ShownNumbers]]) -> Picture:
    """A map over the text, and entropies below it."""
    figure, axes = pyplot.subplots(
        2 * len(places), 1, figsize=(8.8, 3.6 * len(places)), squeeze=False, layout="constrained", sharex=True,
        height_ratios=[2.2, 1] * len(places),
    )  # fmt: skip
    columns = np.arange(places[0][1].numbers.shape[0]) * found.bin
    for index, (head, shown) in enumerate(places):
        above, below = axes[2 * index, 0], axes[2 * index + 1, 0]
        wide = shown.numbers.reshape(len(columns), -1).T
        edges = np.append(columns, columns[-1] + found.bin)
        mesh = above.pcolormesh(edges, np.arange(wide.shape[0] + 1), wide, cmap=MAP, vmin=0, rasterized=True)
        figure.colorbar(mesh, ax=above, label=name.rpartition(": ")[2])
        above.set_ylabel(", ".join(shown.axes[1:]))
        above.set_title(f"layer {head.layer}, {head.name}: {name}", loc="left")
        assert shown.entropy is not None, "of tokens"
        for one in range(shown.entropy.shape[1]):
            below.plot(columns, shown.entropy[:, one], color=colour(one), linestyle=line(one), label=f"head {one}")
        below.axhline(np.log(shown.numbers.shape[-1]), color="#888888", linestyle=":", linewidth=1)
        below.set(ylabel="entropy (nats)", xlabel="token")
        below.set_ylim(bottom=0)
    legend(figure, axes[1, 0])
    data = [{"layer": head.layer, "head": head.name, "bin": found.bin, "shown": shown} for head, shown in places]
    says = f"{places[0][1].says[0].upper()}{places[0][1].says[1:]}, and the entropy of each head's; dotted: all alike."
    return Picture(_file(name), f"Over the text: {name}", says, figure, data)


def _of_parameters(pyplot: Any, name: str, places: list[tuple[HeadFindings, ShownNumbers]]) -> Picture:
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
        axis.set(xlabel=f"{shown.axes[-1]} (0 is the last)", ylabel="mean size")
        axis.set_ylim(bottom=0)
        axis.set_title(f"layer {head.layer}, {head.name}: {name}", loc="left")
    legend(figure, axes[0])
    data = [{"layer": head.layer, "head": head.name, "shown": shown} for head, shown in places]
    says = f"{places[0][1].says[0].upper()}{places[0][1].says[1:]}; means of sizes over channels."
    return Picture(_file(name), name[0].upper() + name[1:], says, figure, data)


def likeness(pyplot: Any, found: Findings) -> Picture:
    """To the teacher, head by head, and layer by layer."""
    every = [(head, head.likeness, index) for head in found.heads if head.likeness for index in range(head.heads)]
    names = [f"{head.layer}.{head.first + index}" for head, _, index in every]
    figure, axes = panels(pyplot, 4, height=2.4, across=2)
    for axis, (label, numbers) in zip(
        axes,
        (
            ("MSE of the answers", [like.mse[index] for _, like, index in every]),
            ("cosine of the answers", [like.cosine[index] for _, like, index in every]),
            (
                "KL of the weights (nats)",
                [np.nan if like.divergence is None else like.divergence[index] for _, like, index in every],
            ),
        ),
        strict=False,
    ):
        layers = sorted({head.layer for head, *_ in every})
        axis.bar(
            np.arange(len(every)),
            finite(np.asarray(numbers, dtype=float)),
            color=[colour(layers.index(head.layer) % 2) for head, *_ in every],
        )
        axis.set_xticks(np.arange(len(every)), names, rotation=90 if len(every) > 8 else 0)
        axis.set(ylabel=label, xlabel="layer.head")
    stream, axis = found.stream, axes[3]
    assert stream is not None, "there is a teacher"
    axis.plot(stream.cosine, marker="o", color=colour(0), label="cosine")
    axis.plot(stream.error, marker="s", linestyle="--", color=colour(5), label="error ‖x - y‖ / ‖y‖")
    axis.set(xlabel="hidden states behind so many layers", ylabel="to the teacher's")
    axis.set_xticks(range(len(stream.cosine)))
    axis.legend()
    data = {
        "heads": [{"layer": head.layer, "head": head.name, "first": head.first, "likeness": head.likeness} for head in found.heads],
        "stream": stream,
    }
    says = (
        "Where the conversion hurts: each layer's heads on the teacher's hidden states against the teacher's own, and, below on "
        "the right, the hidden states of the student's own run, in which errors add up. Both on this text alone."
    )
    return Picture("likeness", "How like the teacher", says, figure, data)


def _file(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-").replace("--", "-")
