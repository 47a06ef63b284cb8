"""A selection of layers: a student learns the teacher's attention in every layer, and each layer is scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from pydantic import Field, JsonValue
from torch import Tensor

from composer.building.build import BuildOptions, run_build
from composer.data.packing import Batch, PackedRows
from composer.errors import SelectionError
from composer.model.attention import ComposedAttention
from composer.model.hosts import attentions_by_layer
from composer.model.modeling import ComposedForCausalLM
from composer.options.arguments import Reference
from composer.runs.identity import Fingerprint, data_identity, fingerprint
from composer.runs.store import RunStore, Settings
from composer.selection.choice import best, candidates, count_within, keeping, state_bytes
from composer.selection.report import SCORING, SELECTION, SPEC, LayerBy, LayerScore, Selection, draw_layers, write_result
from composer.spec.document import Spec
from composer.spec.inherit import short_path
from composer.spec.recipe import Recipe
from composer.training.distill import distill
from composer.training.finetune import divergence
from composer.training.loop import counter_of
from composer.training.rows import rows_of, some
from composer.training.run import TrainingOptions, load_student
from composer.training.student import Student, read_student, stages_of
from composer.training.teacher import open_teacher
from composer.training.transfer import AttentionTarget, heads_output, output_projection_name, run_teacher


@torch.no_grad()
def score_layers(
    student: ComposedForCausalLM, teacher: ComposedForCausalLM, rows: PackedRows, advance: Callable[[], None] = lambda: None
) -> tuple[float, tuple[LayerScore, ...]]:
    """KL(teacher ‖ student) in nats a token, and the scores of each layer; passes over a row: 3 + twice the layers. advance: called
    after each layer of each row."""
    student_layers, taught = attentions_by_layer(student), attentions_by_layer(teacher)
    apart, tokens = 0.0, 0
    restored, swapped, wrong, squares = (dict.fromkeys(student_layers, 0.0) for _ in range(4))
    for part in rows.in_order(1):
        batch = part.to(student.device)
        tokens += int(batch.valid.sum())

        def compare(index: int, theirs: ComposedAttention, target: AttentionTarget, batch: Batch = batch) -> None:
            heads = heads_output(student_layers[index], target, student.base.backend)
            wrong[index] += _squares(heads - target.heads, batch)
            squares[index] += _squares(target.heads, batch)

        run_teacher(teacher, batch, compare)
        wanted = _logits(teacher, batch)
        apart += _apart(student, batch, wanted)
        for index in student_layers:
            with in_place_of(student_layers[index], taught[index]):
                restored[index] += _apart(student, batch, wanted)
            with in_place_of(taught[index], student_layers[index]):
                swapped[index] += _apart(teacher, batch, wanted)
            advance()
    scores = tuple(
        LayerScore(
            layer=index,
            restored=(apart - restored[index]) / tokens,
            swapped=swapped[index] / tokens,
            error=wrong[index] / max(squares[index], torch.finfo(torch.float32).tiny),
        )
        for index in student_layers
    )
    return apart / tokens, scores


@torch.no_grad()
def divergence_with(
    student: ComposedForCausalLM, teacher: ComposedForCausalLM, rows: PackedRows, keep: Iterable[int]
) -> tuple[float, int]:
    """KL(teacher ‖ student) in nats a token with the teacher's attention in these layers of the student, and the tokens."""
    student_layers, theirs = attentions_by_layer(student), attentions_by_layer(teacher)
    apart, tokens = 0.0, 0
    with ExitStack() as stack:
        for index in keep:
            stack.enter_context(in_place_of(student_layers[index], theirs[index]))
        for part in rows.in_order(1):
            batch = part.to(student.device)
            tokens += int(batch.valid.sum())
            apart += _apart(student, batch, _logits(teacher, batch))
    return apart / tokens, tokens


@contextmanager
def in_place_of(attention: ComposedAttention, other: ComposedAttention) -> Iterator[None]:
    """For the block, a layer has the heads of another model's attention, with the output projection that was solved for them."""
    modules = {name: getattr(attention, name) for name in ("composed", output_projection_name(attention)) if name is not None}
    for name in modules:
        setattr(attention, name, getattr(other, name))
    try:
        yield
    finally:
        for name, module in modules.items():
            setattr(attention, name, module)


def _apart(model: ComposedForCausalLM, batch: Batch, wanted: Tensor) -> float:
    """Return KL(target ‖ model) of logits N V, summed over the real tokens."""
    return float(divergence(_logits(model, batch), wanted, 1.0).sum())


def _logits(model: ComposedForCausalLM, batch: Batch) -> Tensor:
    """Return the logits of real tokens, N V, in float32."""
    return model(**batch.inputs(mask=True), use_cache=False).logits[batch.valid].float()


def _squares(heads: Tensor, batch: Batch) -> float:
    return float(heads[batch.valid].float().square().sum())


RUN, PICTURE = "run.json", "layers.png"
BUILT, STUDENT = "built", "student"
"""The folders of the student before training, and after."""


STORE = RunStore("selection", SelectionError, mark=RUN, written=(SPEC, PICTURE, SELECTION), result=SELECTION)


class SelectionSettings(Settings):
    """The settings that determine the student of a selection. Scores of one student can be computed by several calls. student:
    named by the user, None if it is trained here. model: the student before training. files: hashes of the data's.
    """

    student: str | None = None
    model: Fingerprint | None = None
    recipe: dict[str, JsonValue] = Field(default_factory=dict)
    data: tuple[str, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    share: float | None = None
    seed: int | None = None
    backend: str | None = None

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"model": None if self.model is None else self.model.short()}


def settings_of(built: Student, training: TrainingOptions) -> SelectionSettings:
    """Return the settings of a selection whose student is built here, and trained if it has fresh parameters. Raises DataError."""
    transfer = built.recipe.transfer if built.record.plan.fresh else None
    files = [data_identity(reference)["files"] for reference in training.data]
    return SelectionSettings(
        model=fingerprint(built.source),
        recipe={
            "sequence": built.recipe.sequence,
            "rows": built.recipe.rows,
            "transfer": transfer and transfer.model_dump(mode="json"),
        },
        data=tuple(training.data),
        files={name: digest for digests in files for name, digest in digests.items()},
        share=training.share,
        seed=training.seed,
        backend=training.backend,
    )


def learn_student(spec: Spec, source: Reference, folder: Path, training: TrainingOptions, *, force: bool) -> Path:
    """Train the student of all layers in the folder of a selection, resume its training, or reuse a finished one. A student without
    fresh parameters is only built.

    Raises SelectionError, TrainingError, DataError and BuildError.
    """
    student, run, built = folder / STUDENT, folder / f"{STUDENT}.run", folder / BUILT
    spec = spec if spec.recipe is not None else spec.model_copy(update={"recipe": Recipe()})
    run_build(BuildOptions(spec, source, built, seed=training.seed, force=True))
    described = read_student(built, ())
    if (transfer := described.recipe.transfer) is not None and transfer.start == "solved":
        # Scores exchange the heads of a student and its source, which must have the same projections for this.
        unsolved = transfer.model_copy(update={"start": "calibrated"})
        described = replace(described, recipe=described.recipe.model_copy(update={"transfer": unsolved}))
    learns = bool(described.record.plan.fresh)
    if learns:
        stages_of(described.record, described.recipe, "transfer")
    if force:  # before the new settings are written, which they would seem to belong to
        for replaced in (student, run):
            rmtree(replaced, ignore_errors=True)
    STORE.begin(folder, settings_of(described, training), force=force)
    if not learns:
        training.tell(f"{spec.name} has no fresh parameters, so nothing is trained.")
        rmtree(student, ignore_errors=True)
        built.rename(student)
        return student
    is_stopped = run.is_dir()
    if student.is_dir() and not is_stopped:
        training.tell(f"{short_path(student)} has learned already.")
    else:
        # The student's record names its teacher, the source. A student beside a stopped run may be replaced.
        distill(described, student, replace(training, teacher=None, resume=is_stopped, force=True), which="transfer")
    rmtree(built)
    return student


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """keep: layers, or None for as many as ``budget`` bytes of state at ``sequence`` tokens allow, though never all. rows: held-out
    rows to score on at most."""

    keep: int | None
    budget: int | None
    sequence: int
    by: LayerBy
    rows: int


def select_layers(spec: Spec, student: Path, out: Path, training: TrainingOptions, options: SelectionOptions) -> Selection:
    """Scores the layers of a student beside its teacher, on held-out rows, and writes what was found into ``out``.

    spec: what the student was built from. Raises SelectionError, TrainingError and DataError.
    """
    described = read_student(student, (), spec.recipe or Recipe())
    teacher = open_teacher(described.record, training.teacher)
    layers, free = len(described.record.resolved.layers), candidates(described.record.resolved)
    _, held_out = rows_of(described, training)
    assert held_out is not None, "the options hold a share out"
    rows = some(held_out, options.rows)
    training.tell(f"Scoring {layers} layers on {len(rows)} held-out rows.")
    model, taught = load_student(described, training).eval(), teacher.load(training.device, training.backend)
    apart, scores = score_layers(model, taught, rows, counter_of(SCORING, len(rows) * layers, training.watch))
    ranked = [score for score in scores if score.layer in free]
    document = spec.model_dump(mode="json", exclude_unset=True)

    def bytes_of(count: int) -> int:
        return state_bytes(spec, best(ranked, options.by, count), layers, teacher.source.folder, options.sequence)

    count, all_fit = options.keep, False
    if count is None:
        assert options.budget is not None, "either keep or budget is set"
        count = count_within(bytes_of, len(free) - 1, options.budget, "layer")
        all_fit = bytes_of(len(free)) <= options.budget
    keep = best(ranked, options.by, count)
    kept_apart, tokens = divergence_with(model, taught, rows, keep)
    name = f"{spec.name}-keep-{count}"
    selection = Selection(
        name=spec.name,
        teacher=teacher.reference,
        by=options.by,
        rows=len(rows),
        tokens=tokens,
        scores=scores,
        keep=keep,
        divergence=apart,
        kept_divergence=kept_apart,
        sequence=options.sequence,
        state_bytes=bytes_of(count),
        all_fit=all_fit,
        document={**keeping(document, keep, layers), "name": name},
        out=out,
    )
    write_result(STORE, selection, {PICTURE: draw_layers})
    return selection
