"""A fit from beginning to end: gates order the key heads once, and each composition within the budget is trained shortly and
measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, model_validator

from composer.building.build import ModelOptions, run_build_in_memory
from composer.errors import SelectionError
from composer.evaluation.arguments import NamedTask
from composer.reporting.words import plural, size
from composer.runs.identity import fingerprint
from composer.runs.store import RunStore
from composer.selection.choice import HeadSubject, KeyHead, candidate_heads, heads_within, rank_heads, subject_of
from composer.selection.fit_report import Fit, FittedHeads, LeftOut
from composer.selection.head_report import HeadScore
from composer.selection.head_runner import RUN as HEADS
from composer.selection.head_runner import STANDS_IN, HeadOptions, HeadSettings, select_heads
from composer.selection.needles import (
    JudgedRows,
    NeedleSettings,
    check_lengths,
    exact_pairs,
    logits_at,
    longest_text,
    rows_with_needles,
    shared_settings,
)
from composer.selection.report import SCORING, SELECTION, SPEC, By, write_result
from composer.selection.runner import learn_student
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.recipe import Recipe
from composer.spec.resolve import fresh_parameters
from composer.spec.writing import to_yaml
from composer.system.files import write_whole
from composer.system.json_files import read_state, write_state
from composer.training.loop import counter_of
from composer.training.run import TrainingOptions, load_student
from composer.training.student import read_student
from composer.training.teacher import Teacher

RUN, FIT, GATES, MEASURED, SPECS, STUDENTS = "run.json", "fit.json", "gates", "measured", "specs", "students"
STORE = RunStore("fit", SelectionError, mark=RUN, written=(GATES, MEASURED, SPECS, STUDENTS, SPEC, FIT), result=FIT)
EXPECTED_GATES = "Expected the folder of a finished `compose select … --heads` on this source."
RATE = 1e-2
"""The learning rate of the short training of a spec whose recipe has no transfer."""


class FitSettings(NeedleSettings):
    """The settings of a fit. specs: hashes of the compositions without kept key heads. gates: the folder that the user named, None
    if gates are learned here. counted_at: tokens at which states are counted."""

    specs: dict[str, str]
    gates: str | None
    budget: int
    counted_at: int
    rows: int
    steps: int
    gate_steps: int


class Ranking(BaseModel):
    """The fields of a selection of key heads that a fit reads."""

    by: By
    scores: tuple[HeadScore, ...]

    @model_validator(mode="after")
    def _check_scores(self) -> Ranking:
        if self.by != "gates" and any(getattr(score, self.by) is None for score in self.scores):
            raise ValueError(f"the key heads are ranked by {self.by}, and some have no such score")
        return self

    def heads(self) -> tuple[KeyHead, ...]:
        """Return the key heads, the first to be kept first."""
        return rank_heads([(score.layer, score.head) for score in self.scores], [score.value_by(self.by) for score in self.scores])


@dataclass(frozen=True, kw_only=True)
class FittingOptions:
    """budget: bytes of state at ``sequence`` tokens. rows: held-out rows to score on at most. row_tokens: None for the default.
    steps: of the short training. gate_steps: of the gates. gates: the folder of a selection of key heads, or None."""

    budget: int
    sequence: int
    rows: int
    row_tokens: int | None
    steps: int
    gate_steps: int
    tasks: tuple[NamedTask, ...]
    gates: Path | None


def fit_budget(
    subjects: Mapping[str, HeadSubject],
    teacher: Teacher,
    out: Path,
    training: TrainingOptions,
    options: FittingOptions,
    *,
    force: bool,
) -> Fit:
    """Measure each composition, and write the table and the spec of the best into ``out``, which the caller holds.

    subjects: the specs of the heads beside kept key heads, by name; at least one has a student within the budget. Raises
    SelectionError, TrainingError, TaskError and DataError.
    """
    if options.gates is not None:
        folder = _find_gates(options.gates)
        _check_gates(folder, teacher)
        options = replace(options, gates=folder)
    remedy = "Start again with --force." if options.gates is None else EXPECTED_GATES
    recipe = Recipe(sequence=options.row_tokens)
    window = subject_of(load_spec(STANDS_IN).model_copy(update={"recipe": recipe}), str(teacher.source.folder))
    checked: dict[str, Any] = {"heads": window.resolved, "longer": "--row-tokens "}
    _, rows = rows_with_needles(recipe, teacher, options.tasks, training, steps=1, most=options.rows, **checked)
    if options.gates is None:
        check_lengths(rows, **checked)
    settings = FitSettings(
        specs={name: subject.resolved.hash for name, subject in subjects.items()},
        gates=None if options.gates is None else str(options.gates),
        budget=options.budget,
        counted_at=options.sequence,
        rows=options.rows,
        steps=options.steps,
        gate_steps=options.gate_steps,
        **shared_settings(rows, teacher, options.tasks, training),
    )
    STORE.begin(out, settings, force=force)
    gates = options.gates or out / GATES
    if not (gates / SELECTION).is_file():
        _learn_gates(window, teacher, gates, training, options)
    ranking = read_state(gates / SELECTION, Ranking, SelectionError, remedy)
    if sorted(ranking.heads()) != sorted(candidate_heads(window.resolved)):
        raise SelectionError(f"{gates / SELECTION} does not rank each key head of {teacher.reference} once. {remedy}")

    @cache
    def held_out() -> JudgedRows:
        model = teacher.load(training.device, training.backend)
        advance = counter_of(SCORING, len(subjects) * len(rows), training.watch)
        return JudgedRows(rows, partial(logits_at, model), model.device, advance)

    measured, left_out = list[tuple[FittedHeads, dict[str, Any]]](), list[LeftOut]()
    for name, subject in subjects.items():
        smallest = subject.bytes((), options.sequence)
        if reason := _problem(subject, smallest, longest_text(rows), options):
            left_out.append(LeftOut(name=name, state_bytes=smallest, reason=reason))
            continue
        run = _Composing(name, subject, teacher, out, training, options)
        measured.append(run.measure(ranking.heads(), held_out))
    if not measured:
        raise SelectionError(f"No composition can be measured: {'; '.join(f'{entry.name}: {entry.reason}' for entry in left_out)}.")
    measured.sort(key=lambda pair: (pair[0].loss, pair[0].state_bytes))
    _, document = measured[0]
    fit = Fit(
        teacher=teacher.reference,
        budget=options.budget,
        sequence=options.sequence,
        gates=str(gates),
        candidates=len(ranking.scores),
        tasks=tuple(named.label for named in options.tasks),
        rows=len(rows),
        row_tokens=rows.sequence,
        compositions=tuple(composition for composition, _ in measured),
        left_out=tuple(left_out),
        document=document,
        out=out,
    )
    write_result(STORE, fit, {})
    return fit


def _find_gates(folder: Path) -> Path:
    """Return the folder of the selection in ``folder``: itself, its parent for the gates of a selection, or the gates of a fit."""
    places = (folder, *([folder.parent] if folder.name == GATES else ()), folder / GATES)
    return next((place for place in places if (place / HEADS).is_file() and (place / SELECTION).is_file()), folder)


def _check_gates(folder: Path, teacher: Teacher) -> None:
    """Raise SelectionError if a folder has no finished selection of this source's key heads."""
    try:
        settings = read_state(folder / HEADS, HeadSettings, SelectionError, EXPECTED_GATES)
    except FileNotFoundError:
        settings = None
    if settings is None or not (folder / SELECTION).is_file():
        raise SelectionError(f"--gates {folder}: no selection of key heads has ended there. {EXPECTED_GATES}")
    if settings.source != fingerprint(teacher.source):
        raise SelectionError(f"--gates {folder}: its gates are of another source than {teacher.reference}. {EXPECTED_GATES}")


def _learn_gates(subject: HeadSubject, teacher: Teacher, folder: Path, training: TrainingOptions, options: FittingOptions) -> None:
    """Select key heads beside a window with sinks, or continue such a selection."""
    heads = candidate_heads(subject.resolved)
    kept = heads_within(lambda count: subject.bytes(heads[:count], options.sequence), len(heads) - 1, options.budget, least=0)
    chosen = HeadOptions(
        keep=max(1, kept),
        budget=None,
        sequence=options.sequence,
        by="gates",
        score="answers",
        rows=options.rows,
        steps=options.gate_steps,
        tasks=options.tasks,
        student=None,
    )
    select_heads(subject, teacher, folder, training, chosen, force=False)


def _problem(subject: HeadSubject, smallest: int, longest: int, options: FittingOptions) -> str | None:
    """Return why a composition is left out; None if it is measured. smallest: the bytes of its smallest student. longest: tokens of
    the longest text."""
    if smallest > options.budget:
        return f"larger than the budget with no key head kept, at {options.sequence:,} tokens"
    if exact_pairs(subject.resolved) >= longest:
        return f"keeps {exact_pairs(subject.resolved):,} pairs exactly, and no text of the rows is longer: set --row-tokens"
    return None


@dataclass(frozen=True)
class _Composing:
    """One composition. name: of its row."""

    name: str
    subject: HeadSubject
    teacher: Teacher
    out: Path
    training: TrainingOptions
    options: FittingOptions

    def measure(self, ranked: Sequence[KeyHead], held_out: Callable[[], JudgedRows]) -> tuple[FittedHeads, dict[str, Any]]:
        """Return the row of the table, which is kept in the folder, and the spec."""
        own = set(candidate_heads(self.subject.resolved))
        heads = [head for head in ranked if head in own]
        sequence, budget = self.options.sequence, self.options.budget
        count = heads_within(lambda count: self.subject.bytes(heads[:count], sequence), len(heads) - 1, budget, least=0)
        document = {**self.subject.keeping(sorted(heads[:count])), "name": f"{self.name}-heads-{count}"}
        resolved = resolve_spec(load_spec(document), self.subject.target.size)
        is_fresh = bool(fresh_parameters(resolved))
        if is_fresh and (self.subject.spec.recipe or Recipe()).transfer is None:
            document["recipe"] = {"transfer": {"lr": RATE, "epochs": 1}}
        path = self.out / MEASURED / f"{self.name}.json"
        if path.is_file():
            row = read_state(path, FittedHeads, SelectionError, f"Remove {path} to measure again.")
            if row.spec_hash == resolved.hash:
                return row, document
        state_bytes = self.subject.bytes(heads[:count], sequence)
        self.training.tell(f"{self.name}: {plural(count, 'key head')} kept, {size(state_bytes)}.")
        figures = held_out().measure(partial(logits_at, self._student(document, is_fresh=is_fresh)))
        row = FittedHeads(
            name=self.name,
            kept=count,
            state_bytes=state_bytes,
            exact_pairs=exact_pairs(self.subject.resolved),
            steps=self.options.steps if is_fresh else 0,
            loss=figures.divergence + figures.answer_divergence,
            source_found=held_out().source_found,
            spec_hash=resolved.hash,
            **figures._asdict(),
        )
        with STORE.writing(self.out):
            write_whole(self.out / SPECS / f"{self.name}.yaml", to_yaml(document))
            write_state(path, row)
        return row, document

    def _student(self, document: dict[str, Any], *, is_fresh: bool) -> Any:
        """Return the student, after the short training if it has fresh parameters."""
        source = self.teacher.source.folder
        if not is_fresh:
            model: Any = run_build_in_memory(ModelOptions(document, source, dtype="float32", backend=self.training.backend))
            return model.to(self.training.device)
        folder = self.out / STUDENTS / self.name
        folder.mkdir(parents=True, exist_ok=True)
        training = replace(self.training, held_out_rows=1)
        # The spec's own recipe, with a transfer of some steps of one row.
        recipe = load_spec(document).recipe or Recipe()
        assert recipe.transfer is not None, "fresh parameters have one"
        short = {"steps": self.options.steps, "epochs": None, "tokens": None, "batch": 1, "accumulate": 1, "schedule": "cosine"}
        fixed = {"warmup": 0, "final": 0.0, "evaluate": self.options.steps, "patience": None, "keep": "last"}
        recipe = recipe.model_copy(
            update={"sequence": self.options.row_tokens, "transfer": recipe.transfer.model_copy(update=short | fixed)}
        )
        spec = load_spec({**document, "recipe": recipe.model_dump(mode="json")})
        student = learn_student(spec, source, folder, training, force=False)
        return load_student(read_student(student, (), Recipe()), self.training).eval()
