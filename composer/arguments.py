"""Reads arguments as people write them: one value or several, words out of a list, and values of the right type."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, get_args

from composer.errors import ComposerError, name_of
from composer.spec.places import brief, nearest
from converters.bounded import is_text
from converters.trunk import Dtype, dtype_name

if TYPE_CHECKING:
    import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
DtypeLike: TypeAlias = "Dtype | torch.dtype"
"""A type of weights: ``"bfloat16"`` or ``torch.bfloat16``."""
Reference = str | os.PathLike[str]
"""A folder, or a model of the Hub: ``OWNER/NAME``."""


def several(references: Reference | Sequence[Reference] | None) -> tuple[str, ...]:
    """Return one or more references, as a tuple of text."""
    if references is None:
        return ()
    return tuple(
        name_of(reference)
        for reference in (
            [references] if isinstance(references, str | os.PathLike) or not isinstance(references, Iterable) else references
        )
    )


def check_known(option: str, word: str, known: Iterable[str], refusal: type[ComposerError] = ComposerError) -> None:
    """Raise ``refusal`` for a word that is not in ``known``."""
    known = list(known)
    if word not in known:
        raise refusal(f"{option}: {brief(word)} is unknown{nearest(word, known) or '.'} Known: {', '.join(known)}.")


def named_dtype(dtype: object, refusal: type[ComposerError] = ComposerError) -> Dtype | None:
    """Return a type of weights by its name; ``torch.bfloat16`` is ``bfloat16``, too. Raises ``refusal`` if there is no such
    type."""
    if dtype is None:
        return None
    name = dtype_name(dtype)
    check_known("dtype", name, get_args(Dtype), refusal)
    return name


def check_arguments(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the function with its arguments checked against their annotations, before it does anything.

    It raises ComposerError for a value of another type, for text that cannot be encoded, and for a path that no file can have. An
    unknown name, or a missing argument, is a TypeError, as for any function.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def check_and_call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        for name, value in signature.bind(*arguments, **options).arguments.items():
            _check_argument(name, value, str(signature.parameters[name].annotation))
        return function(*arguments, **options)

    return check_and_call


def _check_argument(name: str, value: object, annotation: str) -> None:
    alternatives = _split(annotation)
    if not any(_fits(value, alternative) for alternative in alternatives):
        if _PATHS.intersection(alternatives):
            items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else (value,)
            for item in items:
                if not isinstance(item, str | bytes | int | float | Collection | None):
                    name_of(item)  # the message explains what to do with a model in memory
        words = " or ".join(dict.fromkeys(_in_words(alternative) for alternative in alternatives))
        raise ComposerError(f"{name}: expected {words}, got {brief(value)}")
    _check_text(name, value, is_path=bool(_PATHS.intersection(alternatives)))


def _check_text(name: str, value: object, *, is_path: bool) -> None:
    """Raise ComposerError for text with lone surrogates, and for a path with a zero byte or of an unknown user's home."""
    if not isinstance(value, str | os.PathLike):
        return
    text = os.fspath(value)
    if not is_text(text):
        raise ComposerError(f"{name}: {brief(text)} cannot be encoded as UTF-8. Use another name, or save the text as UTF-8.")
    if is_path and "\0" in text:
        raise ComposerError(f"{name}: no file can be called {brief(text)}, which has a zero byte")
    if is_path and text.startswith("~") and os.path.expanduser(text) == text:
        raise ComposerError(f"{name}: there is no home folder for {brief(text)}. Write the whole path.")


def _fits(value: object, alternative: str) -> bool:
    """Whether a value is of a type. Types that are not listed here are checked by the functions themselves, in words."""
    kind, _, inside = alternative.removesuffix("]").partition("[")
    if kind in _KINDS:
        return _KINDS[kind](value)
    if kind == "Sequence":
        is_several = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        items = value if isinstance(value, Collection) else ()  # what an iterator yields is left to the function
        return is_several and all(any(_fits(item, inner) for inner in _split(inside)) for item in items)
    if kind == "Mapping":
        return isinstance(value, Mapping) and all(_fits(item, inside.rpartition(", ")[2]) for item in value.values())
    if kind == "Callable" or kind in _FUNCTIONS:
        return callable(value)
    return not isinstance(value, bytes | type(None))


def _in_words(alternative: str) -> str:
    kind, _, inside = alternative.removesuffix("]").partition("[")
    if kind == "Sequence":
        return "several of them" if inside in _WORDS else f"a list of {inside}"
    return _WORDS.get(kind, "a function" if kind == "Callable" or kind in _FUNCTIONS else kind)


def _split(annotation: str) -> list[str]:
    """Return the alternatives of an annotation, apart from those inside brackets."""
    return [alternative.strip() for alternative in re.split(r"\|(?![^\[]*\])", annotation)]


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str)


_PATHS = frozenset({"Reference", "PartReference", "Path", "os.PathLike[str]"})
_FUNCTIONS = frozenset({"OnStep", "Progress", "Tell"})
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "None": lambda value: value is None,
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, Integral) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, Real) and not isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "By": lambda value: isinstance(value, str),
    "Which": lambda value: isinstance(value, str),
    "Reference": _is_path,
    "PartReference": _is_path,
    "Path": _is_path,
    "os.PathLike": _is_path,
    "Overrides": lambda value: any(_fits(value, alternative) for alternative in ("str", "Sequence[str]", "Mapping")),
    "Any": lambda _: True,
}
_WORDS = {
    "None": "None",
    "bool": "True or False",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "By": "text",
    "Which": "text",
    "Reference": "a path or a name",
    "PartReference": "a module or a file",
    "Path": "a path",
    "os.PathLike": "a path",
    "Numbers": "numbers",
    "Overrides": "path=value, several of them or a mapping",
    "SpecLike": "a spec",
    "Task": "a task",
}
