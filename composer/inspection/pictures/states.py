"""Pictures of states: recall, spectra, norms, and the half-lives of gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from composer.inspection.findings import Findings, HeadFindings
from composer.inspection.pictures.picture import DrawnFigure
from composer.inspection.pictures.style import finite, from_zero, panels
from composer.plotting import FAINT, WIDTH, by_powers, colour, legend, line, whole_ticks

WIDE = 100
"""Norms further apart than by this factor are drawn on a logarithmic scale."""
LEAST = 1e-4
"""The smallest share of a spectrum that is drawn; the JSON has all."""


def pictures(pyplot: Any, found: Findings) -> Iterator[DrawnFigure]:
    """The pictures of states; none where no head has a state."""
    if any(head.recalled for head in found.heads):
        yield recall(pyplot, found.heads)
    yield spectra(pyplot, found.heads)
    if any(head.norms for head in found.heads):
        yield norms(pyplot, found.heads)
    if any(head.half_lives for head in found.heads):
        yield half_lives(pyplot, found.heads)


def _places(heads: Sequence[HeadFindings], of: Callable[[HeadFindings], Any]) -> list[tuple[HeadFindings, str, Any]]:
    """For each group of heads, the items of one of its mappings: head, name, value."""
    return [(head, name, one) for head in heads for name, one in of(head).items()]


def _title(head: HeadFindings, name: str) -> str:
    return f"layer {head.layer}, {head.name}: {name}"


def recall(pyplot: Any, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """Over how much is stored, and over age."""
    places = _places(heads, lambda head: head.recalled)
    figure, axes = pyplot.subplots(
        len(places), 2, figsize=(WIDTH, 2.1 * len(places) + 0.9), squeeze=False, layout="constrained", sharey=True
    )
    for row, (head, name, one) in zip(axes, places, strict=True):
        for index in range(one.error.shape[1]):
            look = {"color": colour(index), "linestyle": line(index), "label": f"head {index}"}
            row[0].plot(one.stored, finite(one.error[:, index]), marker=".", **look)
            row[1].plot(one.ages, finite(one.error_by_age[:, index]), marker=".", **look)
        for axis in row:
            axis.axhline(1, color=FAINT, linewidth=1, linestyle=":")
        whole_ticks(row[0])
        row[0].set_title(_title(head, name))
        row[0].set(xlabel="pairs stored", ylabel="error ‖v̂ - v‖ / ‖v‖")
        row[1].set(xlabel="tokens since the pair was read, bins up to", xscale="log")
        row[1].set_xticks(one.ages[::3], [f"{age:,}" for age in one.ages[::3]])
        row[1].minorticks_off()
    from_zero(axes.flat)
    legend(figure, axes[0][0])
    data = [{"layer": head.layer, "head": head.name, "memory": name, "recall": one} for head, name, one in places]
    says = (
        "Memory collisions: what a state gives back when it is asked by a stored pair's own key, over how many are stored and, "
        "at the end of the text, over their age. 0: the value itself; 1 (dotted): as far off as an answer of nothing."
    )
    return DrawnFigure("recall", "What the states give back", says, figure, data)


def spectra(pyplot: Any, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """Eigenvalues of Gram matrices before and after maps and convolutions: a colour a stage, solid keys and dashed queries."""
    figure, axes = panels(pyplot, len(heads), height=3.4, across=2, sharey=True)
    stages = list(dict.fromkeys(one.stage for head in heads for one in head.spectra.values()))
    for place, (axis, head) in enumerate(zip(axes, heads, strict=True)):
        for name, one in head.spectra.items():
            shares = one.shares.mean(0)
            rank = f"{name} (rank {one.effective_rank.mean():.1f} of {shares.shape[0]})"
            at = np.where(shares >= LEAST, shares, np.nan)
            dash = "--" if one.vectors == "query" else "-"
            axis.plot(1 + np.arange(len(shares)), at, color=colour(stages.index(one.stage)), linestyle=dash, label=rank)
        by_powers(axis)
        axis.set(xlabel="eigenvalue, the largest first", ylim=(LEAST, 1.5))
        whole_ticks(axis)
        axis.set_title(f"layer {head.layer}, {head.name}")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        if place % 2 == 0:
            axis.set_ylabel("share of their sum")
    data = [{"layer": head.layer, "head": head.name, "spectra": head.spectra} for head in heads]
    says = (
        "Spectra of the Gram matrices of queries, keys and their features, means over heads, with their effective rank: what falls "
        f"steeply leaves a state few directions to tell its keys apart by. Shares from {LEAST:g} on."
    )
    return DrawnFigure("spectra", "How many directions keys and features have", says, figure, data)


def norms(pyplot: Any, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """The norms of the states, over the text."""
    places = _places(heads, lambda head: head.norms)
    figure, axes = panels(pyplot, len(places), height=2.0, across=2)
    for axis, (head, name, one) in zip(axes, places, strict=True):
        there = one[np.isfinite(one) & (one > 0)]
        wide = bool(there.size) and there.max() > WIDE * there.min()
        for index in range(one.shape[1]):
            sizes = finite(one[:, index])
            look = {"color": colour(index), "linestyle": line(index), "label": f"head {index}"}
            axis.plot(head.norm_columns, np.where(sizes > 0, sizes, np.nan) if wide else sizes, marker=".", **look)
        axis.set(xlabel="tokens read", ylabel="norm of the state")
        by_powers(axis) if wide else axis.set_ylim(bottom=0)
        whole_ticks(axis)
        axis.set_title(_title(head, name))
    legend(figure, axes[0])
    data = [
        {"layer": head.layer, "head": head.name, "state": name, "tokens": head.norm_columns, "norm": one}
        for head, name, one in places
    ]
    says = (
        "Frobenius norms of the matrices that memories sum pairs up in, as their equations have them, of exponential features, "
        "too, and without the normaliser's sums. Logarithmic where they are far apart."
    )
    return DrawnFigure("norms", "How large the states grow", says, figure, data)


def half_lives(pyplot: Any, heads: Sequence[HeadFindings]) -> DrawnFigure:
    """The half-lives of gates, by head and channel."""
    places = _places(heads, lambda head: head.half_lives)
    figure, axes = panels(pyplot, len(places), height=2.2, across=2, sharey=True)
    for axis, (head, name, one) in zip(axes, places, strict=True):
        single = one.ndim == 1 or one.shape[-1] == 1
        for index, lives in enumerate(one):
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
            axis.set_xlim(-0.5, len(one) - 0.5)
    legend(figure, *axes)
    data = [{"layer": head.layer, "head": head.name, "gate": name, "half_lives": one} for head, name, one in places]
    says = "Tokens after which half of what a channel holds is left, at its mean decay over the text."
    return DrawnFigure("half-lives", "How fast gates forget", says, figure, data)
