"""A selection of key heads from beginning to end: gates learn, and the key heads with the widest gates are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor

from composer.building.build import ModelOptions, run_build_in_memory
from composer.errors import SelectionError
from composer.evaluation.arguments import NamedTask
from composer.model.heads import ComposedHeads
from composer.model.hosts import attentions_by_layer
from composer.reporting.words import plural
from composer.runs.identity import Fingerprint, data_identity, fingerprint, list_named_files, tokenizer_identity
from composer.runs.store import RunStore, Settings
from composer.selection.choice import HeadSubject, KeyHead, candidate_heads, heads_within, rank_heads
from composer.selection.gates import GATES, RATE, GateCourse, Gates, gate_layers, head_errors, logits_with
from composer.selection.head_report import CurvePoint, HeadScore, HeadSelection, KeptHeads, draw_curve, draw_heads
from composer.selection.needles import Divergences, JudgedRows, rows_with_needles
from composer.selection.report import SCORING, SELECTION, SPEC, By, TokensScored, write_result
from composer.spec.document import Spec
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.recipe import Recipe, Stage
from composer.spec.resolve import fresh_parameters
from composer.system.files import sha256
from composer.training.journal import Journal
from composer.training.loop import counter_of, run_stage
from composer.training.run import TrainingOptions, load_student, setting_of
from composer.training.student import read_student
from composer.training.teacher import Teacher

RUN, HEADS, CURVE = "heads.json", "heads.png", "curve.png"
STORE = RunStore("selection of heads", SelectionError, mark=RUN, written=(GATES, SPEC, HEADS, CURVE, SELECTION), result=SELECTION)
STANDS_IN = "streaming"
"""The spec of the heads that gates mix with the source's attention where those of the selection's spec have to be trained."""
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of key heads at which students are scored, beside the selection and the source."""
Measure = Callable[[Tensor], Divergences]
"""Compares the mixture with these gates, N, with the source."""


class HeadSettings(Settings):
    """The settings that determine the gates. Scores of the same gates can be computed by several calls.

    spec, other: hashes of the spec, and of the heads that gates mix with the source's attention. student: named by the user.
    share: of gates that are to be open. sequence: tokens of a row. files: hashes of the files of data, tasks and tokenizer.
    """

    source: Fingerprint
    sequence: int
    data: tuple[str, ...]
    held_out_share: float
    tasks: dict[str, JsonValue]
    files: dict[str, str]
    seed: int
    backend: str
    spec: str
    other: str
    student: Fingerprint | None
    share: float
    steps: int

    def identity(self) -> dict[str, Any]:
        student = None if self.student is None else self.student.short()
        return super().identity() | {"source": self.source.short(), "student": student}


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """keep: key heads; None: as many as ``budget`` bytes of state at ``sequence`` tokens allow, though never all. rows: held-out
    rows to score on at most. student: a trained student of the spec, or None."""

    keep: int | None
    budget: int | None
    sequence: int
    by: By
    score: TokensScored
    rows: int
    steps: int
    tasks: tuple[NamedTask, ...]
    student: Path | None


def select_heads(
    subject: HeadSubject, teacher: Teacher, out: Path, training: TrainingOptions, options: HeadOptions, *, force: bool
) -> HeadSelection:
    """Learn the gates, score students with some key heads kept, and write the result into ``out``, which the caller holds.

    Raises SelectionError, TrainingError, TaskError and DataError.
    """
    heads, other = candidate_heads(subject.resolved), _other_spec(subject, options)
    other_heads = resolve_spec(other, subject.target.size)
    share = _count(subject, heads, options) / len(heads)
    rows, judged = rows_with_needles(
        subject.spec.recipe, teacher, options.tasks, training, steps=options.steps, most=options.rows, heads=other_heads
    )
    references = [data_identity(reference)["files"] for reference in (*training.data, *training.held_out)]
    files = {name: digest for digests in references for name, digest in digests.items()}
    files |= {
        f"{named.label} {name}": sha256(path) for named in options.tasks for name, path in list_named_files(named.task).items()
    }
    settings = HeadSettings(
        source=fingerprint(teacher.source),
        sequence=rows.sequence,
        data=tuple(training.data),
        held_out_share=training.share,
        tasks={named.label: named.task.model_dump(mode="json") for named in options.tasks},
        files=files | tokenizer_identity(teacher.source.folder),
        seed=training.seed,
        backend=training.backend,
        spec=subject.resolved.hash,
        other=other_heads.hash,
        student=None if options.student is None else fingerprint(read_student(options.student, (), Recipe()).source),
        share=share,
        steps=options.steps,
    )
    STORE.begin(out, settings, force=force)
    model = teacher.load(training.device, training.backend)
    gates = gate_layers(model, _heads_to_mix(other, teacher, training, options), heads)
    stage = Stage(lr=RATE, steps=options.steps, batch=1, schedule="cosine", clip=None, keep="last")
    course = GateCourse(model, gates, stage, share)
    training.tell(f"{len(heads)} gates learn in {options.steps} steps, each of one row of {rows.sequence:,} tokens.")
    with STORE.writing(out):
        (out / GATES).mkdir(exist_ok=True)
    run_stage(GATES, course, stage, rows, None, setting_of(training, out / GATES, Journal(out / GATES, training.again)))
    course.clamp()
    training.tell(f"Scoring on {plural(len(judged), 'held-out row')}.")
    passes = len(_counts(heads, _count(subject, heads, options))) + (1 + len(heads)) * (options.by in ("restored", "swapped"))
    advance = counter_of(SCORING, passes * len(judged), training.watch)
    held_out = JudgedRows(judged, logits_with(model, gates, torch.ones_like(gates.values)), model.device, advance)

    def measure(current: Tensor) -> Divergences:
        return held_out.measure(logits_with(model, gates, current))

    errors = head_errors(model, gates, judged) if options.by == "error" else None
    scores = _scores(gates, measure, options, errors)
    ranked = rank_heads(heads, [score.value_by(options.by) for score in scores])
    count = _count(subject, ranked, options)
    keep = sorted(ranked[:count])
    selection = HeadSelection(
        name=subject.spec.name,
        teacher=teacher.reference,
        by=options.by,
        score=options.score,
        other=other.name if options.student is None else str(options.student),
        tasks=tuple(named.label for named in options.tasks),
        steps=options.steps,
        rows=len(judged),
        row_tokens=rows.sequence,
        scores=scores,
        keep=tuple(
            KeptHeads(layer=layer, heads=tuple(head for at, head in keep if at == layer))
            for layer in dict.fromkeys(at for at, _ in keep)
        ),
        count=count,
        curve=tuple(_point(gates, measure, ranked[:kept]) for kept in _counts(heads, count)),
        sequence=options.sequence,
        state_bytes=subject.bytes(keep, options.sequence),
        document={**subject.keeping(keep), "name": f"{subject.spec.name}-heads-{count}"},
        out=out,
    )
    write_result(STORE, selection, {HEADS: draw_heads, CURVE: draw_curve})
    return selection


def _counts(heads: Sequence[KeyHead], count: int) -> list[int]:
    """Return the numbers of kept key heads at which students are scored. count: the selection's."""
    return sorted({*(int(share * len(heads)) for share in SHARES), count, len(heads)})


def _count(subject: HeadSubject, ranked: Sequence[KeyHead], options: HeadOptions) -> int:
    """Return how many of these key heads are kept. Raises SelectionError if not one fits into the budget."""
    if options.keep is not None:
        return options.keep
    assert options.budget is not None, "either keep or budget is set"
    return heads_within(lambda count: subject.bytes(ranked[:count], options.sequence), len(ranked) - 1, options.budget)


def _other_spec(subject: HeadSubject, options: HeadOptions) -> Spec:
    """Return the spec of the heads that gates mix with the source's attention: the selection's own if they are trained or need no
    training, otherwise a window with sinks."""
    is_ready = options.student is not None or not fresh_parameters(subject.resolved)
    return subject.spec if is_ready else load_spec(STANDS_IN)


def _heads_to_mix(other: Spec, teacher: Teacher, training: TrainingOptions, options: HeadOptions) -> Mapping[int, ComposedHeads]:
    """Return, by layer, the heads that gates mix with the source's attention.

    Raises SelectionError if their queries and keys are not the source's.
    """
    if options.student is None:
        model: Any = run_build_in_memory(ModelOptions(other, teacher.source.folder, dtype="float32"))
        model.to(training.device)
    else:
        model = load_student(read_student(options.student, (), Recipe()), training)
    layers = attentions_by_layer(model.requires_grad_(False).eval())
    if any(attention.mixes_inputs for attention in layers.values()):
        raise SelectionError(
            f"{other.name} mixes the inputs of queries and keys, which a gate cannot mix with the source's. Leave --student out: "
            "the source's attention is then mixed with a window."
        )
    return {index: attention.composed for index, attention in layers.items()}


def _scores(gates: Gates, measure: Measure, options: HeadOptions, errors: Sequence[float] | None) -> tuple[HeadScore, ...]:
    """Return the score of every key head: its gate, and the one that the selection is by. errors: None if it is by another."""
    values, closed = gates.values.detach().tolist(), torch.zeros_like(gates.values.detach())
    others: list[float | None] = [None] * len(values) if errors is None else [*errors]
    by, score = options.by, options.score
    if by in ("restored", "swapped"):
        base = 1.0 if by == "swapped" else 0.0
        start = measure(closed + base).over(score)
        for place in range(len(values)):
            changed = closed + base
            changed[place] = 1.0 - base
            others[place] = abs(base - 1.0) * start + (2 * base - 1.0) * measure(changed).over(score)
    return tuple(
        HeadScore(layer=layer, head=head, gate=gate, **({} if by == GATES else {by: other}))
        for (layer, head), gate, other in zip(gates.heads, values, others, strict=True)
    )


def _point(gates: Gates, measure: Measure, kept: Sequence[KeyHead]) -> CurvePoint:
    is_kept = torch.tensor([float(head in set(kept)) for head in gates.heads], device=gates.values.device)
    return CurvePoint(kept=len(kept), share=len(kept) / len(gates.heads), **measure(is_kept)._asdict())
