"""The pictures of docs/inspect.md: where students of the small teacher find a passkey, and where they lose it.

    bash examples/distill_small.sh                       # ten minutes of one core a student
    python -m pages.inside build-output/small             # three more, and docs/inside is written anew

LoLA is built of the distilled LoLCATs, untrained, as its paper has it.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import composer
from composer.inspection.findings import Findings, plain
from composer.inspection.folder import RESOLUTION
from composer.reporting.plotting import MARK, STUDENT, TEACHER, WIDTH, add_title, legend, plotting
from composer.system import files

PLACE = Path(__file__).parent / "inside"
TEACHER_FOLDER = Path(__file__).parents[1] / "examples" / "teacher"
LENGTHS, SEEDS = (256, 1024), tuple(range(8))
TASK = "passkey,depth=0.3"
NAMES = {"lolcats": "LoLCATs", "lola": "LoLA", "lawcat": "LAWCAT"}
SHOWN = (("lawcat", 256, "weights-1"), ("lola", 1024, "stands-1"), ("lolcats", 1024, "recall"))
"""Pictures of single reports: of whom, at which length."""


def main(students: Path) -> None:
    """students: the folder with lolcats-distilled and lawcat-distilled."""
    with tempfile.TemporaryDirectory(prefix="inside-") as scratch:
        folders = {name: students / f"{name}-distilled" for name in ("lolcats", "lawcat")}
        merged, folders["lola"] = Path(scratch) / "merged", Path(scratch) / "lola"
        composer.merge(folders["lolcats"], merged)
        composer.build_folder("lola", merged, folders["lola"])
        findings = {(name, length): inspect_student(folders[name], length) for name in NAMES for length in LENGTHS}
        PLACE.mkdir(exist_ok=True)
        for name, length, picture in SHOWN:
            report = Path(scratch) / f"{name}-{length}"
            composer.inspect(folders[name], tasks=TASK, length=length, teacher=TEACHER_FOLDER, out=report)
            (PLACE / f"{name}-{length}-{picture}.png").write_bytes(shrink((report / f"{picture}.png").read_bytes()))
    with files.whole_file(PLACE / "passkey.png") as partial:
        partial.write_bytes(shrink(draw_passkeys(findings)))
    files.write_whole(PLACE / "passkey.json", json.dumps(plain(figures(findings)), indent=1) + "\n")


def shrink(image: bytes) -> bytes:
    """Return a PNG with so few colours that it is a third as large, and looks the same."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(image)).convert("RGB").quantize(160).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def inspect_student(student: Path, length: int) -> list[Findings]:
    """Return the findings on one passkey per seed, with few queries besides those of the answer."""
    options: dict[str, Any] = {"tasks": TASK, "length": length, "teacher": TEACHER_FOLDER, "queries": 8}
    return [composer.inspect(student, seed=seed, **options) for seed in SEEDS]


def figures(findings: dict[tuple[str, int], list[Findings]]) -> list[dict[str, Any]]:
    """Return for each student and length: keys with all digits right, and each head's mean weight on the next digit."""
    return [
        {
            "student": name,
            "length": length,
            "keys": len(reports),
            "right": sum(all(report.answered.right) for report in reports if report.answered),
            "teacher_right": sum(all(report.teacher_answered.right) for report in reports if report.teacher_answered),
            "heads": [f"{head.layer}.{head.numbers[index]}" for head in reports[0].heads for index in range(head.heads)],
            "weight": _means([[head.found for head in report.heads] for report in reports]),
            "teacher_weight": _means([[head.teacher_found for head in report.heads] for report in reports]),
        }
        for (name, length), reports in findings.items()
    ]


def _means(weights: list[list[Any]]) -> list[float]:
    """Return the mean of each head over texts and answers."""
    return np.mean([np.concatenate([group.mean(1) for group in heads]) for heads in weights], axis=0).tolist()


def draw_passkeys(findings: dict[tuple[str, int], list[Findings]]) -> bytes:
    """Return a picture with a panel for each student and length."""
    rows = figures(findings)
    with plotting() as pyplot:
        shape = {"figsize": (WIDTH, 5.0), "layout": "constrained", "sharex": True, "sharey": True}
        figure, axes = pyplot.subplots(len(LENGTHS), len(NAMES), squeeze=False, **shape)
        for row in rows:
            axis = axes[LENGTHS.index(row["length"])][list(NAMES).index(row["student"])]
            places = np.arange(len(row["heads"]))
            axis.bar(places - 0.2, row["weight"], 0.4, color=STUDENT, label="student")
            hatched = {"color": "white", "edgecolor": TEACHER, "hatch": "////", "linewidth": 0.8}
            axis.bar(places + 0.2, row["teacher_weight"], 0.4, label="teacher", **hatched)
            axis.axhline(2 / row["length"], color=MARK, linewidth=1, linestyle="--", label="as if all tokens weighed alike")
            keys_answered = f"keys answered: {row['right']} of {row['keys']}, teacher {row['teacher_right']}"
            axis.set_title(f"{NAMES[row['student']]}, {row['length']:,} tokens\n{keys_answered}")
            axis.set_xticks(places, row["heads"])
            axis.set_ylim(0, 1)
        for axis in axes[-1]:
            axis.set_xlabel("layer.head")
        for axis in axes[:, 0]:
            axis.set_ylabel("weight on the next digit")
        add_title(figure, "Passkeys found and lost: each head's mean weight on the next digit")
        legend(figure, axes[0][0])
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=RESOLUTION, format="png", metadata={"Software": None})
        pyplot.close(figure)
    return buffer.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build-output/small"))
