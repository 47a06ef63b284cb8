"""A selection of key heads from beginning to end: gates learn, and the key heads with the widest gates are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor

from composer.building import ModelOptions, run_build_in_memory
from composer.data.packing import PackedRows
from composer.errors import SelectionError
from composer.evaluation.arguments import NamedTask, read_tasks
from composer.evaluation.options import EvaluationOptions
from composer.files import sha256, write_whole
from composer.graph.composition import HeadSpec
from composer.model.heads import ComposedHeads
from composer.model.hosts import attentions_by_layer
from composer.model.modeling import ComposedForCausalLM
from composer.runs.identity import Fingerprint, data_identity, fingerprint, list_named_files, tokenizer_identity
from composer.runs.store import RunStore, Settings
from composer.selection.gates import GATES, RATE, GateCourse, Gates, answers_in, gate_layers, logits_at, write_rows
from composer.selection.head_choice import KeyHead, bytes_with, candidate_heads, heads_within, keeping_heads, rank_heads
from composer.selection.head_report import CurvePoint, HeadsBy, HeadScore, HeadSelection, KeptHeads, draw_curve, draw_heads
from composer.spec.document import Spec
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.parameters import fresh_parameters
from composer.spec.recipe import Recipe, Stage
from composer.spec.resolve import Resolved
from composer.spec.writing import to_yaml
from composer.tasks.base import Task
from composer.tasks.writer import Writer
from composer.training.finetune import divergence
from composer.training.journal import Journal
from composer.training.loop import StageSetting, run_stage
from composer.training.rows import both_sides, some, tokenizer_of
from composer.training.run import TrainingOptions, load_student
from composer.training.student import read_student
from composer.training.teacher import Teacher
from composer.weights.target import Target

RUN, SELECTION, SPEC, HEADS, CURVE = "heads.json", "selection.json", "spec.yaml", "heads.png", "curve.png"
STORE = RunStore("selection of heads", SelectionError, mark=RUN, written=(GATES, SPEC, HEADS, CURVE, SELECTION), result=SELECTION)
STANDS_IN = "streaming"
"""The spec of the heads that gates mix with the source's attention where those of the selection's spec have to be trained."""
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of key heads at which students are scored, beside the selection and the source."""


class HeadSettings(Settings):
    """The settings that determine the gates. Scores of the same gates can be computed by several calls.

    spec, other: hashes of the spec, and of the heads that gates mix with the source's attention. student: named by the user.
    share: of gates that are to be open. files: hashes of the files of data, tasks and tokenizer.
    """

    source: Fingerprint
    spec: str
    other: str
    student: Fingerprint | None
    sequence: int
    share: float
    steps: int
    data: tuple[str, ...]
    held_out_share: float
    tasks: dict[str, JsonValue]
    files: dict[str, str]
    seed: int
    backend: str

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
    by: HeadsBy
    rows: int
    steps: int
    tasks: tuple[NamedTask, ...]
    student: Path | None


@dataclass(frozen=True)
class HeadSubject:
    """The spec whose heads are selected, resolved on its source."""

    spec: Spec
    resolved: Resolved
    target: Target

    def count(self, ranked: Sequence[KeyHead], options: HeadOptions) -> int:
        """Return how many of these key heads are kept. Raises SelectionError if not one fits into the budget."""
        if options.keep is not None:
            return options.keep
        assert options.budget is not None, "either keep or budget is set"
        return heads_within(lambda count: self.bytes(ranked[:count], options.sequence), len(ranked) - 1, options.budget)

    def bytes(self, kept: Sequence[KeyHead], sequence: int) -> int:
        return bytes_with(self.spec, self.resolved, self.target, kept, sequence)


def read_needles(tasks: Sequence[str]) -> tuple[NamedTask, ...]:
    """Return tasks by their names, each followed by its options. Raises SelectionError for one without answers, and
    EvaluationError."""
    named = read_tasks(tasks, EvaluationOptions())
    for task in named:
        if not isinstance(task.task, Task) or task.task.scored == "loss":
            raise SelectionError(f"--tasks {task.label}: it has no answers to find. Choose tasks such as passkey or niah-single-2.")
    return named


def select_heads(
    subject: HeadSubject, teacher: Teacher, out: Path, training: TrainingOptions, options: HeadOptions, *, force: bool
) -> HeadSelection:
    """Learn the gates, score students with some key heads kept, and write the result into ``out``, which the caller holds.

    Raises SelectionError, TrainingError, TaskError and DataError.
    """
    heads, other = candidate_heads(subject.resolved), _other_spec(subject, options)
    other_heads = resolve_spec(other, subject.target.size)
    share = subject.count(heads, options) / len(heads)
    rows, judged = _rows(subject.spec, teacher, training, options)
    _check_lengths(other_heads, rows)
    settings = HeadSettings(
        source=fingerprint(teacher.source),
        spec=subject.resolved.hash,
        other=other_heads.hash,
        student=None if options.student is None else fingerprint(read_student(options.student, (), Recipe()).source),
        sequence=rows.sequence,
        share=share,
        steps=options.steps,
        data=tuple(training.data),
        held_out_share=training.share,
        tasks={named.label: named.task.model_dump(mode="json") for named in options.tasks},
        files=_files(teacher, training, options),
        seed=training.seed,
        backend=training.backend,
    )
    STORE.begin(out, settings, force=force)
    model = teacher.load(training.device, training.backend)
    gates = gate_layers(model, _heads_to_mix(other, teacher, training, options), heads)
    stage = Stage(lr=RATE, steps=options.steps, batch=1, schedule="cosine", clip=None, keep="last")
    course = GateCourse(model, gates, stage, share)
    training.tell(f"{len(heads)} gates learn in {options.steps} steps, each of one row of {rows.sequence:,} tokens.")
    with STORE.writing(out):
        (out / GATES).mkdir(exist_ok=True)
    run_stage(GATES, course, stage, rows, None, _setting(out / GATES, training))
    course.clamp()
    training.tell(f"Scoring on {len(judged)} held-out rows.")
    scores = _scores(model, gates, judged, options.by)
    ranked = rank_heads(heads, [_score_by(score, options.by) for score in scores])
    count = subject.count(ranked, options)
    keep = sorted(ranked[:count])
    counts = sorted({*(int(share * len(heads)) for share in SHARES), count, len(heads)})
    document = keeping_heads(subject.spec.model_dump(mode="json", exclude_unset=True), subject.resolved, keep)
    selection = HeadSelection(
        name=subject.spec.name,
        teacher=teacher.reference,
        by=options.by,
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
        curve=tuple(_point(model, gates, judged, ranked[:kept]) for kept in counts),
        sequence=options.sequence,
        state_bytes=subject.bytes(keep, options.sequence),
        document={**document, "name": f"{subject.spec.name}-heads-{count}"},
        out=out,
    )
    _write(selection)
    return selection


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


def _rows(spec: Spec, teacher: Teacher, training: TrainingOptions, options: HeadOptions) -> tuple[PackedRows, PackedRows]:
    """Return the rows to learn from, one for each step, and the rows to score on."""
    trunk, tokenizer = teacher.source.trunk, tokenizer_of(teacher.source.folder)
    recipe = Recipe(sequence=None if spec.recipe is None else spec.recipe.sequence)
    texts, held_out = both_sides(tokenizer, trunk.vocabulary_size, trunk.max_positions, recipe, training)
    assert held_out is not None, "the options hold a share out"
    writer, tasks = Writer(tokenizer), [task for named in options.tasks if isinstance(task := named.task, Task)]
    held_out = some(held_out, options.rows)
    return (
        write_rows(texts, tasks, writer, "train", training.seed, options.steps),
        write_rows(held_out, tasks, writer, "evaluation", training.seed, len(held_out)),
    )


def _check_lengths(other: Resolved, rows: PackedRows) -> None:
    """Raise SelectionError if no text in a row is longer than what heads keep exactly: gates would then have no effect."""
    most = max(map(_pairs_kept, other.heads.values()))
    longest = int(rows.position[rows.valid].max()) + 1
    if longest <= most:
        raise SelectionError(
            f"The longest text in a row has {longest:,} tokens, and the heads of {other.name} keep {most:,} pairs exactly, so the "
            f"gates have no effect. Use longer rows: --set recipe.sequence={4 * most}"
        )


def _pairs_kept(head: HeadSpec) -> int:
    return sum(memory.room for memory in head.memory if memory.exact and memory.bounded)


def _files(teacher: Teacher, training: TrainingOptions, options: HeadOptions) -> dict[str, str]:
    references = [data_identity(reference)["files"] for reference in (*training.data, *training.held_out)]
    tasks = {
        f"{named.label} {name}": sha256(path) for named in options.tasks for name, path in list_named_files(named.task).items()
    }
    files = {name: digest for digests in references for name, digest in digests.items()}
    return files | tasks | tokenizer_identity(teacher.source.folder)


def _setting(folder: Path, training: TrainingOptions) -> StageSetting:
    kind = torch.bfloat16 if training.bfloat16 else None
    return StageSetting(
        folder=folder,
        journal=Journal(folder, training.again),
        seed=training.seed,
        checkpoint_seconds=training.checkpoint_seconds,
        autocast=kind,
        watch=training.watch,
        tell=training.tell,
        again=training.again,
    )


def _scores(model: ComposedForCausalLM, gates: Gates, rows: PackedRows, by: HeadsBy) -> tuple[HeadScore, ...]:
    """Return the score of every key head: its gate, and the one that the selection is by."""
    values, closed = gates.values.detach().tolist(), torch.zeros_like(gates.values.detach())
    others: list[float | None] = [None] * len(values)
    if by != GATES:
        base = 1.0 if by == "swapped" else 0.0
        start = _measure(model, gates, rows, closed + base)[0]
        for place in range(len(values)):
            changed = closed + base
            changed[place] = 1.0 - base
            others[place] = abs(base - 1.0) * start + (2 * base - 1.0) * _measure(model, gates, rows, changed)[0]
    return tuple(
        HeadScore(layer=layer, head=head, gate=gate, **({} if by == GATES else {by: other}))
        for (layer, head), gate, other in zip(gates.heads, values, others, strict=True)
    )


def _score_by(score: HeadScore, by: HeadsBy) -> float:
    value = score.gate if by == GATES else getattr(score, by)
    assert value is not None, "the selection is by this score"
    return value


def _point(model: ComposedForCausalLM, gates: Gates, rows: PackedRows, kept: Sequence[KeyHead]) -> CurvePoint:
    is_kept = torch.tensor([float(head in set(kept)) for head in gates.heads], device=gates.values.device)
    text, answer, answers_found = _measure(model, gates, rows, is_kept)
    share = len(kept) / len(gates.heads)
    return CurvePoint(kept=len(kept), share=share, divergence=text, answer_divergence=answer, answers_found=answers_found)


@torch.no_grad()
def _measure(model: ComposedForCausalLM, gates: Gates, rows: PackedRows, current: Tensor) -> tuple[float, float, float]:
    """Return KL(source ‖ mixture) per token of the text and of the answers, and the share of the answers that are found."""
    text, answer, right_answers = list[Tensor](), list[Tensor](), 0
    for part in rows.in_order(1):
        batch = part.to(model.device)
        with gates.fixed(torch.ones_like(current)):
            wanted = logits_at(model, batch).float()
        with gates.fixed(current):
            logits = logits_at(model, batch).float()
        apart, is_answer = divergence(logits, wanted, 1.0), answers_in(batch)[:, 1:][batch.predicted]
        text.append(apart[~is_answer])
        answer.append(apart[is_answer])
        is_right = logits.argmax(-1) == batch.labels[:, 1:][batch.predicted]
        right_answers += bool(is_right[is_answer].all())
    return float(torch.cat(text).mean()), float(torch.cat(answer).mean()), right_answers / len(rows)


def _write(selection: HeadSelection) -> None:
    """Write the spec, the pictures and the report, which shows that the selection has ended. Raises SelectionError."""
    with STORE.writing(selection.out):
        write_whole(selection.out / SPEC, to_yaml(selection.document))
        draw_heads(selection, selection.out / HEADS)
        draw_curve(selection, selection.out / CURVE)
        write_whole(selection.out / SELECTION, json.dumps(selection.model_dump(mode="json", exclude={"out"}), indent=2) + "\n")
