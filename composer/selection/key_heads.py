"""A selection of key heads from beginning to end: each has a score, such as a gate that learns, and the highest are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from pydantic import JsonValue
from torch import Tensor

from composer.building.build import ModelOptions, run_build_in_memory
from composer.data.packing import PackedRows
from composer.errors import SelectionError
from composer.evaluation.arguments import NamedTask
from composer.model.heads import ComposedHeads
from composer.model.hosts import attentions_by_layer
from composer.model.modeling import ComposedForCausalLM
from composer.reporting.words import plural
from composer.runs.identity import Fingerprint, data_identity, fingerprint, list_named_files, tokenizer_identity
from composer.runs.store import RunStore, Settings
from composer.selection.choice import HeadSubject, KeyHead, candidate_heads, count_within, least_heads, rank_heads
from composer.selection.gates import GATES, RATE, GateCourse, Gates, gate_layers, head_errors, logits_with
from composer.selection.judged_rows import Divergences, JudgedRows, draw_needle, rows_with_needles
from composer.selection.patched import Twins, make_twins, receiver_scores
from composer.selection.report import (
    HEAD_WORDS,
    SCORING,
    SELECTION,
    SPEC,
    By,
    CurvePoint,
    HeadScore,
    HeadSelection,
    KeptHeads,
    TokensScored,
    draw_curve,
    draw_heads,
    write_result,
)
from composer.spec.document import Spec
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.recipe import Recipe, Stage
from composer.spec.resolve import Resolved, fresh_parameters
from composer.system.files import sha256
from composer.tasks.base import Task, rng_of
from composer.tasks.writer import Writer
from composer.training.journal import Journal
from composer.training.loop import counter_of, run_stage
from composer.training.rows import tokenizer_of
from composer.training.run import TrainingOptions, load_student, setting_of
from composer.training.student import read_student
from composer.training.teacher import Teacher

RUN, HEADS, CURVE = "heads.json", "heads.png", "curve.png"
STORE = RunStore("selection of heads", SelectionError, mark=RUN, written=(GATES, SPEC, HEADS, CURVE, SELECTION), result=SELECTION)
STANDS_IN = "streaming"
"""The spec of the heads that gates mix with the source's attention where those of the selection's spec have to be trained."""
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of key heads at which students are scored, beside the selection and the source."""


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
    rows to score on at most. student: a trained student of the spec, or None. least: key heads kept in each layer at least."""

    keep: int | None
    budget: int | None
    sequence: int
    by: By
    score: TokensScored
    rows: int
    steps: int
    tasks: tuple[NamedTask, ...]
    student: Path | None
    least: int


def select_heads(
    subject: HeadSubject, teacher: Teacher, out: Path, training: TrainingOptions, options: HeadOptions, *, force: bool
) -> HeadSelection:
    """Score the key heads, and students with some of them kept, and write the result into ``out``, which the caller holds.

    Raises SelectionError, TrainingError, TaskError and DataError.
    """
    heads, other = candidate_heads(subject.resolved), _other_spec(subject, options)
    other_heads = resolve_spec(other, subject.target.size)
    share = _count(subject, heads, options) / len(heads)
    steps = options.steps if options.by == GATES else 0
    rows, judged = rows_with_needles(
        subject.spec.recipe, teacher, options.tasks, training, steps=steps, limit=options.rows, heads=other_heads
    )
    twins = _draw_twins(teacher, options, training, judged) if options.by == "patched" else []
    settings = _settings(subject, teacher, training, options, rows, other_heads, share)
    STORE.begin(out, settings, force=force)
    model = teacher.load(training.device, training.backend)
    gates = gate_layers(model, _heads_to_mix(other, teacher, training, options), heads)
    if options.by == GATES:
        _learn(model, gates, rows, out, training, share)
    training.tell(f"Scoring on {plural(len(judged), 'held-out row')}.")
    passes = {"restored": 1 + len(heads), "swapped": len(heads), "ablated": len(heads)}.get(options.by, 0)
    advance = counter_of(SCORING, passes * len(judged) + len(twins), training.watch)
    held_out = JudgedRows(judged, logits_with(model, gates, torch.ones_like(gates.values)), model.device, advance)
    scoring = _Scoring(model, gates, held_out, twins, advance)
    scores, cost = scoring.score(options, rows.tokens)
    ranked = rank_heads(heads, [score.score for score in scores], least_heads(subject.resolved, options.least))
    count = _count(subject, ranked, options)
    keep, counts = sorted(ranked[:count]), _counts(heads, count)
    held_out.advance = counter_of("curve", len(counts) * len(judged), training.watch)
    selection = HeadSelection(
        name=subject.spec.name,
        teacher=teacher.reference,
        by=options.by,
        meaning=HEAD_WORDS[options.by],
        score=options.score,
        forward_tokens=cost,
        other=other.name if options.student is None else str(options.student),
        tasks=tuple(named.label for named in options.tasks),
        steps=len(rows),
        rows=len(judged),
        row_tokens=rows.sequence,
        scores=scores,
        keep=tuple(
            KeptHeads(layer=layer, heads=tuple(head for at, head in keep if at == layer))
            for layer in dict.fromkeys(at for at, _ in keep)
        ),
        count=count,
        curve=tuple(_point(scoring, ranked[:count]) for count in counts),
        sequence=options.sequence,
        state_bytes=subject.bytes(keep, options.sequence),
        document={**subject.keeping(keep), "name": f"{subject.spec.name}-heads-{count}"},
        out=out,
    )
    write_result(STORE, selection, {HEADS: draw_heads, CURVE: draw_curve})
    return selection


def _settings(
    subject: HeadSubject,
    teacher: Teacher,
    training: TrainingOptions,
    options: HeadOptions,
    rows: PackedRows,
    other_heads: Resolved,
    share: float,
) -> HeadSettings:
    """Return what determines the gates. other_heads: what replaces key heads that are not kept. share: of gates to be open."""
    references = [data_identity(reference)["files"] for reference in (*training.data, *training.held_out)]
    files = {name: digest for digests in references for name, digest in digests.items()}
    files |= {
        f"{named.label} {name}": sha256(path) for named in options.tasks for name, path in list_named_files(named.task).items()
    }
    return HeadSettings(
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
        steps=len(rows),
    )


def _learn(model: ComposedForCausalLM, gates: Gates, rows: PackedRows, out: Path, training: TrainingOptions, share: float) -> None:
    """Learn the gates, a step a row, or continue a stopped run. share: of gates that are to be open."""
    stage = Stage(lr=RATE, steps=len(rows), batch=1, schedule="cosine", clip=None, keep="last")
    course = GateCourse(model, gates, stage, share)
    training.tell(f"{len(gates.heads)} gates learn in {len(rows)} steps, each of one row of {rows.sequence:,} tokens.")
    with STORE.writing(out):
        (out / GATES).mkdir(exist_ok=True)
    run_stage(GATES, course, stage, rows, None, setting_of(training, out / GATES, Journal(out / GATES, training.again)))
    course.clamp()


def _draw_twins(teacher: Teacher, options: HeadOptions, training: TrainingOptions, judged: PackedRows) -> list[Twins]:
    """Return the samples of the held-out rows with their twins. Raises SelectionError and TaskError."""
    writer, without = Writer(tokenizer_of(teacher.source.folder)), dict[str, None]()
    drawn: list[Twins] = []
    for row in range(len(judged)):
        named = options.tasks[row % len(options.tasks)]
        rng = rng_of(training.seed, "evaluation", row)
        draw = partial(draw_needle, cast("Task", named.task), writer=writer, length=judged.sequence, split="evaluation")
        twins = make_twins(draw(rng), draw, rng, writer)
        if twins is None:
            without[named.label] = None
        else:
            drawn.append(twins)
    if not drawn:
        raise SelectionError(
            f"--tasks {', '.join(without)}: --by patched needs tasks with one answer after a prompt. Choose tasks such as passkey."
        )
    if without:
        training.tell(f"{', '.join(without)}: no twins, as the answers do not follow one prompt. Other tasks are scored.")
    return drawn


def _counts(heads: Sequence[KeyHead], count: int) -> list[int]:
    """Return the numbers of kept key heads at which students are scored. count: the selection's."""
    return sorted({*(int(share * len(heads)) for share in SHARES), count, len(heads)})


def _count(subject: HeadSubject, ranked: Sequence[KeyHead], options: HeadOptions) -> int:
    """Return how many of these key heads are kept. Raises SelectionError if not one fits into the budget."""
    if options.keep is not None:
        return options.keep
    assert options.budget is not None, "either keep or budget is set"
    return count_within(lambda count: subject.bytes(ranked[:count], options.sequence), len(ranked) - 1, options.budget, "key head")


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


@dataclass(frozen=True)
class _Scoring:
    """What the scores of key heads are computed with. twins: of the held-out samples, for ``patched``."""

    model: ComposedForCausalLM
    gates: Gates
    held_out: JudgedRows
    twins: Sequence[Twins]
    advance: Callable[[], None]

    def measure(self, current: Tensor, *, ablates: bool = False) -> Divergences:
        """Compare the mixture with these gates, N, with the source. ablates: as in ``Gates``."""
        return self.held_out.measure(logits_with(self.model, self.gates, current, ablates=ablates))

    def score(self, options: HeadOptions, learned: int) -> tuple[tuple[HeadScore, ...], int]:
        """Return the score of each key head, and the tokens of forward passes that it took. learned: tokens of the rows from which
        gates have learned."""
        rows, count = self.held_out.rows.tokens, len(self.gates.heads)
        lost: list[float | None] = [None] * count
        if options.by == GATES:
            # Forward passes of the source and of the mixture, and a backward pass.
            values, cost = self.gates.values.detach().tolist(), 4 * learned
        elif options.by == "error":
            values, cost = head_errors(self.model, self.gates, self.held_out.rows), rows
        elif options.by == "patched":
            values, cost = self._patched()
        else:
            is_restored, is_ablated = options.by == "restored", options.by == "ablated"
            start = self.held_out.source
            base = torch.ones_like(self.gates.values.detach())
            if is_restored:
                base = torch.zeros_like(base)
                start = self.measure(base)
            values = list[float]()
            for place in range(count):
                changed = base.clone()
                changed[place] = 1.0 - base[place]
                figures = self.measure(changed, ablates=is_ablated)
                rise = figures.over(options.score, of_loss=is_ablated) - start.over(options.score, of_loss=is_ablated)
                values.append(-rise if is_restored else rise)
                lost[place] = start.answers_found - figures.answers_found if is_ablated else None
            cost = rows * (1 + count + is_restored)
        scores = (
            HeadScore(layer=layer, head=head, score=value, answers_lost=answers)
            for (layer, head), value, answers in zip(self.gates.heads, values, lost, strict=True)
        )
        return tuple(scores), cost

    def _patched(self) -> tuple[list[float], int]:
        """Return the mean receiver score of each key head over twins, and the tokens of forward passes."""
        scores, cost = list[list[float]](), 0
        for twins in self.twins:
            twin_scores = receiver_scores(self.model, self.gates, twins)
            scores += [] if twin_scores is None else [twin_scores]
            cost += 2 * twins.ids.numel() + (0 if twin_scores is None else len(self.gates.heads) * len(twins.right))
            self.advance()
        if not scores:
            raise SelectionError(
                f"The source prefers the right answer no more in a text that has it than in its twin, in all {len(self.twins)} "
                "samples. Choose easier --tasks, shorter rows, or another score."
            )
        return [fmean(head_scores) for head_scores in zip(*scores, strict=True)], cost


def _point(scoring: _Scoring, kept_heads: Sequence[KeyHead]) -> CurvePoint:
    gates = scoring.gates
    is_kept = torch.tensor([float(head in set(kept_heads)) for head in gates.heads], device=gates.values.device)
    figures = scoring.measure(is_kept)
    return CurvePoint(
        kept=len(kept_heads),
        share=len(kept_heads) / len(gates.heads),
        divergence=figures.divergence,
        answer_divergence=figures.answer_divergence,
        answers_found=figures.answers_found,
    )
