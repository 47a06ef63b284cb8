"""Errors that a user can fix. Each states what is wrong, where, what was expected and what to do. The command line exits with 2."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from converters.bounded import reason, shorten
from converters.errors import ConverterError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

if TYPE_CHECKING:
    from blocks.part import FieldPath


class ComposerError(Exception):
    """Base of all of them: shown as its message alone, never as a traceback."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without its final period, or the name of its class if it has none. Control
    characters are escaped, and a very long line is shortened."""
    return shorten((str(error).strip() or type(error).__name__).splitlines()[0].rstrip("."), LONGEST_LINE)


LONGEST_LINE = 500
"""The most characters of ``first_line``."""


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong with a document. line, column: from 1. path: such as ``head.memory[0].size``."""

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        """``file:line:column path: message``, without unknown elements."""
        spot = f"{self.path}: {self.message}" if self.path else self.message
        file_place = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        return spot if file_place is None else f"{file_place}  {spot}"


MOST_SHOWN = 100
"""The most mistakes of a document that one error has."""
LONGEST_MISTAKE, LONGEST_MESSAGE = 2_000, 50_000
"""The most characters of one mistake's message, and of an error with all of its mistakes."""


class SpecError(ComposerError):
    """The YAML document is not a spec. The message names file, line, column and path, and so do its mistakes, as fields.

    Of many mistakes it has the first ones, and a last one with the number of the others.
    """

    def __init__(self, *mistakes: Mistake | str) -> None:
        first: dict[object, Mistake] = {}
        for number, mistake in enumerate(Mistake(mistake) if isinstance(mistake, str) else mistake for mistake in mistakes):
            # A mistake in a head that others inherit occurs once in each of them; only the first is reported.
            first.setdefault(
                number if mistake.file is None else (mistake.message, mistake.file, mistake.line, mistake.column), mistake
            )
        self.mistakes = _limit_number(list(first.values()))
        super().__init__("\n".join(map(str, self.mistakes)))


def _limit_number(mistakes: list[Mistake]) -> tuple[Mistake, ...]:
    """Return the first mistakes, as many as one error has, with the beginnings of long messages, and the number of the others."""
    shown: list[Mistake] = []
    characters = 0
    for mistake in mistakes:
        short = replace(mistake, message=_beginning(mistake.message), path=mistake.path and _beginning(mistake.path, 200))
        characters += len(str(short))
        # One mistake more than MOST_SHOWN may be a line that counts others.
        if shown and (characters > LONGEST_MESSAGE or (len(shown) == MOST_SHOWN and len(mistakes) > MOST_SHOWN + 1)):
            return (*shown, Mistake(f"and {len(mistakes) - len(shown):,} more mistakes"))
        shown.append(short)
    return tuple(shown)


def _beginning(text: str, max_length: int = LONGEST_MISTAKE) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]}…"


class GraphError(SpecError):
    """The spec is well formed but cannot mean anything.

    path: where in the spec, such as ``("head", "memory", 1, "gate")``. ``composer.spec.loading.locate`` adds file and line to it.
    """

    def __init__(self, message: str, path: FieldPath = ()) -> None:
        super().__init__(message)
        self.path = path


def mistakes_of(error: Exception) -> tuple[Mistake, ...]:
    """Return the mistakes of an error, each as fields."""
    return error.mistakes if isinstance(error, SpecError) else (Mistake(str(error)),)


class SourceError(ComposerError):
    """The model to build from cannot be read, or no converter supports its family."""


class BuildError(ComposerError):
    """The weights do not cover the model, or the output cannot be written."""


class TrainingError(ComposerError):
    """A run cannot start, cannot continue, or does not learn. Its checkpoints are kept."""


class Stopped(KeyboardInterrupt):
    """A signal has stopped a run, which can be resumed. number: of the signal."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class OutputError(ComposerError):
    """Output of the command line cannot be written, for instance to a full disk."""


class PushError(ComposerError):
    """A model or a spec cannot be pushed to the Hub."""


class ExportError(ComposerError):
    """A model cannot be exported as a Python file."""


class TaskError(ComposerError):
    """A task cannot write its samples: too few tokens, a tokenizer without its words, or a missing file of texts."""


class DataError(ComposerError):
    """Texts to train or evaluate on cannot be read, or do not fit the options."""


class EvaluationError(ComposerError):
    """Models cannot be evaluated with these options, or the output folder has another evaluation."""


class AblationError(ComposerError):
    """Variants cannot be compared with these options, or the output folder has other files."""


class SelectionError(ComposerError):
    """Layers cannot be chosen with these options, or the output folder has other files."""


class BenchError(ComposerError):
    """Models cannot be timed with these options, or the output folder has other files."""


class InspectionError(ComposerError):
    """A model cannot be inspected with these options, or the output folder has other files."""


def name_of(reference: object) -> str:
    """Return a path, or the name of a model, as text. Raises SourceError for anything else, such as a model in memory."""
    if isinstance(reference, str | os.PathLike):
        return os.fspath(reference)
    raise SourceError(
        f"expected a folder, or the name of a model, got a {type(reference).__name__}. What is in memory is written to a folder "
        "first: model.save_pretrained(FOLDER), and beside it tokenizer.save_pretrained(FOLDER)."
    )


def system_message(error: OSError) -> str:
    """Return the message of an error of the operating system, with the file that it is about."""
    name = error.filename
    file = "" if name is None else os.fsdecode(name) if isinstance(name, str | bytes) else str(name)
    file = f"{shorten(file) if error.errno == errno.ENAMETOOLONG else file}: " if file else ""
    return f"{file}{reason(error)}"


def translate_errors(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap a function: raise its ConverterErrors as SourceErrors, and its OSErrors of named files as ComposerErrors. Readers and
    writers raise their own errors, which state what to do. The wrapper is for files that no code expects to fail, such as those in
    a folder that the user may not search.
    """

    @wraps(function)
    def translate(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        try:
            return function(*arguments, **options)
        except ConverterError as error:
            raise SourceError(str(error)) from error
        except OSError as error:
            if error.filename is None:  # no file, such as a closed pipe
                raise
            raise ComposerError(system_message(error)) from error

    return translate
