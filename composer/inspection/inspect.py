"""Inspects a model: chooses the text, runs the model and its teacher on it, and writes the findings and their pictures."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from composer.errors import InspectionError, SourceError, TrainingError
from composer.graph.lowering import AUTO
from composer.inspection.findings import Findings
from composer.inspection.options import InspectOptions
from composer.inspection.texts import LookedText, prepare_text
from composer.reporting.words import layers_in_words, ranges
from composer.spec.dimensions import Dimensions
from composer.system.devices import check_device
from composer.tasks.writer import without_embedding
from composer.weights.config import check_positions

BINS = 1024
"""The most bins of columns: in a text of so many tokens or fewer, each token is a bin."""
MOST_WEIGHTS = 2**28
"""The most attention weights of a layer, in numbers."""


def inspect(
    model: str | os.PathLike[str] | Any,
    options: InspectOptions,
    *,
    tokenizer: Any = None,
    tell: Callable[[str], None] | None = None,
) -> Findings:
    """Return the findings on a model, by the head; with ``out``, also as a folder with JSON, pictures and a page.

    model: the folder of a built or distilled model, a source (which is run with softmax in all of its heads), or a composed model
    in memory, which needs its ``tokenizer``. options: checked already. Raises InspectionError, and the errors of opening a model,
    a task or a teacher.
    """
    check_device(options.device)
    if options.out is not None:
        from composer.inspection.folder import check_place

        check_place(options.out, force=options.force)
    opened = _open_models(model, tokenizer, options)
    text = prepare_text(opened.tokenizer, options)
    vocabulary = opened.model.config.get_text_config().vocab_size
    if problem := without_embedding(f"the text ({text.label})", text.ids, vocabulary, opened.tokenizer):
        raise InspectionError(f"{problem}.")
    findings = look(opened.model, opened.teacher, text, options, label=opened.label, teacher_label=opened.teacher_label, tell=tell)
    if options.out is not None:
        from composer.inspection.folder import write

        write(findings, options.out, force=options.force)
    return findings


def look(
    student: Any,
    teacher: Any,
    text: LookedText,
    options: InspectOptions,
    *,
    label: str = "model",
    teacher_label: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Findings:
    """Return the findings on a model in memory, and its teacher if there is one, on a text."""
    from composer.building.in_memory import trunk_of
    from composer.inspection.models import TextRun, stream_likeness

    resolved = student.config.read_spec()
    layers = _layers(options, resolved.dimensions)
    if teacher is not None and _sizes(teacher) != _sizes(student):
        raise InspectionError(
            f"The teacher {teacher_label} does not fit the model: heads are compared one by one, so both need as many layers, "
            "heads, key heads and channels, and the same vocabulary. Name the model that the student was built from."
        )
    for model, name in ((student, label), (teacher, f"The teacher {teacher_label}")):
        if model is not None:
            check_positions(trunk_of(model), name, len(text.ids), "the largest possible --length is", InspectionError)
    queries = text.queries(options.queries)
    if len(queries) * len(text.ids) * resolved.dimensions.heads > MOST_WEIGHTS:
        raise InspectionError(
            f"{len(queries):,} queries over {len(text.ids):,} tokens have too many weights for memory; set fewer queries: --queries"
        )
    size = math.ceil(len(text.ids) / BINS)
    run = TextRun(text, queries, layers, size, tell or (lambda _: None))
    with _evaluating(student):
        answered, streams = run.student(student)
        teacher_answered, theirs = (None, None) if teacher is None else run.teacher(teacher, student)
    return Findings(
        model=label,
        teacher=teacher_label,
        spec=resolved.name,
        text=text.label,
        tokens=text.tokens,
        answers=text.answers,
        found_at=text.found_at,
        queries=queries,
        bin=size,
        heads=run.heads,
        answered=answered,
        teacher_answered=teacher_answered,
        stream=None if theirs is None else stream_likeness(streams, theirs),
    )


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """For the block, the model is in evaluation mode; then each module has its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _sizes(model: Any) -> tuple[int, ...]:
    size = model.config.read_spec().dimensions
    vocabulary = model.config.get_text_config().vocab_size
    return size.layers, size.heads, size.key_heads, size.head_dim, size.size_of_values, size.hidden_size, vocabulary


class _Opened(NamedTuple):
    model: Any
    tokenizer: Any
    label: str
    teacher: Any
    teacher_label: str | None


def _open_models(model: Any, tokenizer: Any, options: InspectOptions) -> _Opened:
    """Return the model and the teacher that it is compared with, in float32. Raises the errors of opening them."""
    if not isinstance(model, (str, os.PathLike)):
        from composer.model.modeling import ComposedForCausalLM

        if not isinstance(model, ComposedForCausalLM):
            raise InspectionError(f"A {type(model).__name__} is no composed language model: build one, or name a folder.")
        if tokenizer is None:
            raise InspectionError("A model in memory has no tokenizer: pass one as tokenizer=.")
        if model.base.both_ways:
            raise InspectionError(
                "The model is bidirectional: each token sees those after it, so no answer is predicted by its past."
            )
        if options.backend != AUTO or options.device != "cpu":
            raise InspectionError("A model in memory runs where it is and as it is: leave device and backend out.")
        return _Opened(model, tokenizer, "model", *_teacher(None, options))
    from composer.evaluation.lengths import open_subjects
    from composer.weights.opened import check_backends

    (subject,) = open_subjects([os.fspath(model)])
    check_backends(options.backend, [subject])
    student_folder = subject.source.folder if subject.source.is_composed else None
    if student_folder is not None:
        built = subject.load("float32", options.device, options.backend)
    else:
        from composer.training.teacher import Teacher

        built = Teacher(subject.reference, subject.source).load(options.device, options.backend)
    return _Opened(built, tokenizer or subject.tokenizer, subject.label, *_teacher(student_folder, options))


def _teacher(folder: Path | None, options: InspectOptions) -> tuple[Any, str | None]:
    """Return the teacher and its name: the one that the options name, or the student's source; None where there is neither.

    folder: of the student.
    """
    from composer.training.teacher import open_language_model, open_teacher
    from composer.weights.record import read_record

    record = None if folder is None or options.alone else read_record(folder)
    try:
        if record is not None and (options.teacher is not None or record.source is not None):
            teacher = open_teacher(record, options.teacher)
        elif options.teacher is not None:
            teacher = open_language_model(options.teacher)
        else:
            return None, None
    except (TrainingError, SourceError) as error:
        raise InspectionError(f"{error} To look at the student alone: --alone") from error
    return teacher.load(options.device, options.backend), _name_of(teacher.reference)


def _name_of(reference: str) -> str:
    """Return the name of a folder without its path, which means nothing to a reader of the report elsewhere."""
    return Path(reference).expanduser().resolve().name if Path(reference).expanduser().is_dir() else reference


def _layers(options: InspectOptions, size: Dimensions) -> tuple[int, ...]:
    """Return the layers to inspect; by default all that have attention. Raises InspectionError."""
    count, having = size.layers, size.with_attention
    if options.layers is None:
        return having
    layers = tuple(layer + count if layer < 0 else layer for layer in options.layers)
    wrong = [layer for layer, number in zip(options.layers, layers, strict=True) if not 0 <= number < count]
    if wrong or not layers:
        raise InspectionError(
            f"There is no layer {', '.join(map(str, wrong)) or 'named'}: the model has {count}, from 0 to {count - 1}."
        )
    if others := sorted(set(layers) - set(having)):
        raise InspectionError(f"{layers_in_words(others)} of the model has no attention to inspect: {ranges(having)} have.")
    return tuple(sorted(set(layers)))
