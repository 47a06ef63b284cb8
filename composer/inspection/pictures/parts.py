"""Pictures of states, of the numbers that parts show of themselves, and of the likeness of each layer to the teacher's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from composer.inspection.findings import Findings, HeadFindings, ShownNumbers
from composer.inspection.pictures.attention import DrawnFigure, finite, from_zero
from composer.reporting.plotting import FAINT, MAP, STUDENT, by_powers, colour, legend, line, named_ticks, panels, whole_ticks

MOST_NAMED = 16
"""Heads of a map that are named; of more, every so many."""
WIDE = 100
"""Norms further apart than by this factor are drawn on a logarithmic scale."""
LEAST = 1e-4
"""The smallest share of a spectrum that is drawn; the JSON has all."""


def pictures(pyplot: Any, findings: Findings) -> Iterator[DrawnFigure]:
    """Yield the pictures of states, one for all that parts show under a name, and likeness where there is a teacher."""
    if any(head.recalled for head in findings.heads):
        yield recall(pyplot, findings.heads)
    yield spectra(pyplot, findings.heads)
    if any(head.norms for head in findings.heads):
        yield norms(pyplot, findings.heads)
    if any(head.half_lives for head in findings.heads):
        yield half_lives(pyplot, findings.heads)
    for name in dict.fromkeys(name for head in findings.heads for name in head.shown):
        places = [(head, head.shown[name]) for head in findings.heads if name in head.shown]
        of_tokens = places[0][1].axes[0] == "token"
        yield _over_text(pyplot, findings, name, places) if of_tokens else _of_parameters(pyplot, name, places)
    if any(head.likeness for head in findings.heads):
        yield likeness(pyplot, findings)


def _over_text(pyplot: Any, findings: Findings, name: str, places: list[tuple[HeadFindings, ShownNumbers]]) -> DrawnFigure:
    """Return a map over the text, head by head, and entropies below it."""
    ratios = [2.2, 1] * len(places)
    figure, axes = panels(pyplot, 2 * len(places), height=1.9, margin=0.6, sharex=True, height_ratios=ratios)
    columns = np.arange(places[0][1].numbers.shape[0]) * findings.bin
    for index, (head, shown) in enumerate(places):
        upper, lower = axes[2 * index : 2 * index + 2]
        heads = shown.numbers.shape[1]
        wide = shown.numbers.reshape(len(columns), -1).T
        edges, head_width = np.append(columns, columns[-1] + findings.bin), wide.shape[0] / heads
        mesh = upper.pcolormesh(edges, np.arange(wide.shape[0] + 1), wide, cmap=MAP, vmin=0, rasterized=True)
        figure.colorbar(mesh, ax=upper, label=name.rpartition(": ")[2])
        for border in range(1, heads):
            upper.axhline(border * head_width, color="white", linewidth=1)
        every = -(-heads // MOST_NAMED)
        upper.set_yticks(
            head_width * (np.arange(heads)[::every] + 0.5),
            [f"head {head.numbers[own_head]}" for own_head in range(0, heads, every)],
        )
        upper.tick_params(axis="y", length=0)
        upper.invert_yaxis()
        upper.set_ylabel(" and ".join(f"{axis}s" for axis in shown.axes[1:]))
        upper.set_title(f"layer {head.layer}, {head.name}: {_display_name(name)}")
        assert shown.entropy is not None, "of tokens"
        for own_head in range(shown.entropy.shape[1]):
            lower.plot(
                columns, shown.entropy[:, own_head], color=colour(own_head), linestyle=line(own_head), label=f"head {own_head}"
            )
        lower.axhline(np.log(shown.numbers.shape[-1]), color=FAINT, linestyle=":", linewidth=1)
        lower.set(ylabel="entropy (nats)", xlim=(0, edges[-1]))
        lower.set_ylim(bottom=0)
        whole_ticks(lower)
    axes[-1].set_xlabel("token")
    legend(figure, axes[1])
    data = [{"layer": head.layer, "head": head.name, "bin": findings.bin, "shown": shown} for head, shown in places]
    says = f"{places[0][1].says[0].upper()}{places[0][1].says[1:]}, and the entropy of each head's; dotted: all alike."
    return DrawnFigure(_file(name), f"{_display_name(name)} over the text", says, figure, data)


def _of_parameters(pyplot: Any, name: str, places: list[tuple[HeadFindings, ShownNumbers]]) -> DrawnFigure:
    """Means of sizes over all axes between the first, the heads, and the last."""
    figure, axes = panels(pyplot, len(places), height=2.0, across=2, sharey=True)
    for axis, (head, shown) in zip(axes, places, strict=True):
        numbers = np.abs(shown.numbers).reshape(shown.numbers.shape[0], -1, shown.numbers.shape[-1]).mean(1)
        for index, sizes in enumerate(numbers):
            axis.plot(
                np.arange(len(sizes)) - len(sizes) + 1,
                sizes,
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


def likeness(pyplot: Any, findings: Findings) -> DrawnFigure:
    """To the teacher, head by head, and layer by layer; of the weights only where they are compared at all."""
    every = [(head, head.likeness, index) for head in findings.heads if head.likeness for index in range(head.heads)]
    names = [f"{head.layer}.{head.numbers[index]}" for head, _, index in every]
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
        named_ticks(axis, names, upright=8, limit=24)
        axis.set(ylabel=label, xlabel="layer.head")
    stream, axis = findings.stream, axes[-1]
    assert stream is not None, "there is a teacher"
    axis.plot(stream.cosine, marker="o", color=colour(0), label="cosine", clip_on=False)
    axis.plot(stream.error, marker="s", linestyle="--", color=colour(5), label="error ‖x - y‖ / ‖y‖", clip_on=False)
    axis.set(xlabel="number of layers before the hidden states", ylabel="beside the teacher's")
    axis.set_ylim(0, max(1.05, 1.1 * max(stream.error)))
    whole_ticks(axis)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    data = {
        "heads": [
            {"layer": head.layer, "head": head.name, "numbers": head.numbers, "likeness": head.likeness} for head in findings.heads
        ],
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
    """Return a part and what it shows: ``conv: taps: key`` is taps, key of conv."""
    part, _, shown = name.partition(": ")
    return f"{shown.replace(': ', ', ')} of {part}"


def _file(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-").replace("--", "-")


def _places(heads: Sequence[HeadFindings], items: Callable[[HeadFindings], Any]) -> list[tuple[HeadFindings, str, Any]]:
    """For each group of heads, the items of one of its mappings: head, name, value."""
    return [(head, name, item) for head in heads for name, item in items(head).items()]


def _title(head: HeadFindings, name: str) -> str:
    return f"layer {head.layer}, {head.name}: {name}"


def recall(pyplot: Any, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """Over how much is stored, and over age."""
    places = _places(heads, lambda head: head.recalled)
    figure, axes = panels(pyplot, 2 * len(places), height=2.1, across=2, margin=0.9, sharey=True)
    for *row, (head, name, recalled) in zip(axes[::2], axes[1::2], places, strict=True):
        for index in range(recalled.error.shape[1]):
            look = {"color": colour(index), "linestyle": line(index), "label": f"head {index}"}
            row[0].plot(recalled.stored, finite(recalled.error[:, index]), marker=".", **look)
            row[1].plot(recalled.ages, finite(recalled.error_by_age[:, index]), marker=".", **look)
        for axis in row:
            axis.axhline(1, color=FAINT, linewidth=1, linestyle=":")
        whole_ticks(row[0])
        row[0].set_title(_title(head, name))
        row[0].set(xlabel="pairs stored", ylabel="error ‖v̂ - v‖ / ‖v‖")
        row[1].set(xlabel="tokens since the pair was read, bins up to", xscale="log")
        row[1].set_xticks(recalled.ages[::3], [f"{age:,}" for age in recalled.ages[::3]])
        row[1].minorticks_off()
    from_zero(axes)
    legend(figure, axes[0])
    data = [{"layer": head.layer, "head": head.name, "memory": name, "recall": recalled} for head, name, recalled in places]
    says = (
        "Memory collisions: the error of the value that a state returns for a stored pair's own key, over the number of stored "
        "pairs and, at the end of the text, over their age. 0: the exact value; 1 (dotted): the error of returning zero."
    )
    return DrawnFigure("recall", "Recall of the states", says, figure, data)


def spectra(pyplot: Any, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """Eigenvalues of Gram matrices before and after maps and convolutions: a colour a stage, solid keys and dashed queries."""
    figure, axes = panels(pyplot, len(heads), height=3.4, across=2, sharey=True)
    stages = list(dict.fromkeys(spectrum.stage for head in heads for spectrum in head.spectra.values()))
    for place, (axis, head) in enumerate(zip(axes, heads, strict=True)):
        for name, spectrum in head.spectra.items():
            shares = spectrum.shares.mean(0)
            rank = f"{name} (rank {spectrum.effective_rank.mean():.1f} of {shares.shape[0]})"
            at = np.where(shares >= LEAST, shares, np.nan)
            dash = "--" if spectrum.vectors == "query" else "-"
            axis.plot(1 + np.arange(len(shares)), at, color=colour(stages.index(spectrum.stage)), linestyle=dash, label=rank)
        by_powers(axis)
        axis.set(xlabel="eigenvalue, the largest first", ylim=(LEAST, 1.5))
        whole_ticks(axis)
        axis.set_title(f"layer {head.layer}, {head.name}")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        if place % 2 == 0:
            axis.set_ylabel("share of their sum")
    data = [{"layer": head.layer, "head": head.name, "spectra": head.spectra} for head in heads]
    says = (
        "Spectra of the Gram matrices of queries, keys and their features, means over heads, with their effective rank: a steep "
        f"spectrum leaves a state few directions to distinguish its keys. Shares from {LEAST:g} on."
    )
    return DrawnFigure("spectra", "How many directions keys and features have", says, figure, data)


def norms(pyplot: Any, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """Return the norms of the states, over the text."""
    places = _places(heads, lambda head: head.norms)
    figure, axes = panels(pyplot, len(places), height=2.0, across=2)
    for axis, (head, name, norms_of_heads) in zip(axes, places, strict=True):
        positive = norms_of_heads[np.isfinite(norms_of_heads) & (norms_of_heads > 0)]
        wide = bool(positive.size) and positive.max() > WIDE * positive.min()
        for index in range(norms_of_heads.shape[1]):
            sizes = finite(norms_of_heads[:, index])
            look = {"color": colour(index), "linestyle": line(index), "label": f"head {index}"}
            axis.plot(head.norm_columns, np.where(sizes > 0, sizes, np.nan) if wide else sizes, marker=".", **look)
        axis.set(xlabel="tokens read", ylabel="norm of the state")
        by_powers(axis) if wide else axis.set_ylim(bottom=0)
        whole_ticks(axis)
        axis.set_title(_title(head, name))
    legend(figure, axes[0])
    data = [
        {"layer": head.layer, "head": head.name, "state": name, "tokens": head.norm_columns, "norm": norms_of_heads}
        for head, name, norms_of_heads in places
    ]
    says = (
        "Frobenius norms of the matrices that memories sum pairs up in, as their equations have them, of exponential features, "
        "too, and without the normaliser's sums. Logarithmic where they are far apart."
    )
    return DrawnFigure("norms", "How large the states grow", says, figure, data)


def half_lives(pyplot: Any, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """Return the half-lives of gates, by head and channel."""
    places = _places(heads, lambda head: head.half_lives)
    figure, axes = panels(pyplot, len(places), height=2.2, across=2, sharey=True)
    for axis, (head, name, lives_of_heads) in zip(axes, places, strict=True):
        single = lives_of_heads.ndim == 1 or lives_of_heads.shape[-1] == 1
        for index, lives in enumerate(lives_of_heads):
            look = {"color": colour(index), "label": f"head {index}"}
            if single:
                axis.plot([index], finite(np.atleast_1d(lives)), marker="o", linestyle="none", **look)
            else:
                axis.plot(np.sort(finite(lives)), linestyle=line(index), **look)
        by_powers(axis)
        axis.set(xlabel="head" if single else "channel, the fastest first", ylabel="half-life (tokens)")
        axis.set_title(_title(head, name))
        whole_ticks(axis)
        if single:
            axis.set_xlim(-0.5, len(lives_of_heads) - 0.5)
    legend(figure, *axes)
    data = [
        {"layer": head.layer, "head": head.name, "gate": name, "half_lives": lives_of_heads}
        for head, name, lives_of_heads in places
    ]
    says = "Tokens after which half of what a channel holds is left, at its mean decay over the text."
    return DrawnFigure("half-lives", "How fast gates forget", says, figure, data)
