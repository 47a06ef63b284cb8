"""Arguments as people write them: one value or several, numbers and their bounds, words of a list, and values of the right type.

``4k`` tokens are 4,096, and several numbers are separated by commas.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, get_args

from composer.errors import ComposerError, name_of
from composer.spec.places import brief, nearest
from converters.bounded import is_text
from converters.trunk import Dtype, dtype_name

if TYPE_CHECKING:
    import torch

THOUSAND = 1024
TokenCount = int | str
"""A number of tokens, or such as ``"4k"``, which is 4,096."""
ByteCount = int | str
"""A number of bytes, or such as ``"6MiB"``."""
CountOrShare = int | float | str
"""A number of things, or a share of them such as 0.15 or ``"15%"``."""
UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
Numbers = int | str | Sequence[int]
"""One number, several, or such as ``"512,4k"``, where 4k is 4,096."""
LEAST_SEED, MOST_SEED = -(2**63), 2**63 - 1
"""The range of seeds that every generator of random numbers accepts. Negative ones are for builds, and for earlier samples."""


def numbers_of(
    value: Numbers | None,
    option: str,
    error_class: type[ComposerError],
    *,
    minimum: int | None = 1,
    maximum: int | None = None,
    thousands: bool = True,
) -> tuple[int, ...]:
    """``read_numbers``, which raises ``error_class`` with the option's name."""
    with name_option(option, error_class):
        return read_numbers(value, minimum=minimum, maximum=maximum, thousands=thousands)


@contextmanager
def name_option(option: str, error_class: type[ComposerError]) -> Iterator[None]:
    """For the block, raise ValueErrors as ``error_class``, with the option's name in front."""
    try:
        yield
    except ValueError as error:
        raise error_class(f"{option}: {error}") from None


def whole_number(value: object, *, minimum: float | None = None, maximum: float | None = None, example: str = "") -> int:
    """Return a whole number within bounds. Raises ValueError. example: of what may be written."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        such = f", such as {example}" if example else ""
        raise ValueError(f"expected a whole number{_bound(None, minimum, None)}{such}, got {brief(value)}")
    if bound := _bound(int(value), minimum, maximum):
        raise ValueError(f"expected a whole number{bound}, got {int(value)}")
    return int(value)


def number_of(value: object, *, minimum: float | None = None, maximum: float | None = None) -> float:
    """Return a number within bounds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"expected a number{_bound(None, minimum, None)}, got {brief(value)}")
    if bound := _bound(float(value), minimum, maximum):
        raise ValueError(f"expected a number{bound}, got {float(value):g}")
    return float(value)


def read_numbers(
    value: Numbers | None, *, minimum: int | None = 1, maximum: int | None = None, thousands: bool = True
) -> tuple[int, ...]:
    """Return the numbers, in their order; in text ``k`` means 1,024 if ``thousands``. Raises ValueError."""
    if isinstance(value, str):
        values: Iterable[object] = [_read(word.strip(), thousands=thousands) for word in value.split(",")]
    else:
        values = () if value is None else value if isinstance(value, Sequence) else (value,)
    example = "512,4k, where 4k is 4,096" if thousands else "0,1,2"
    return tuple(whole_number(number, minimum=minimum, maximum=maximum, example=example) for number in values)


def read_tokens(value: TokenCount, *, minimum: int = 1) -> int:
    """Return a number of tokens, of which ``"4k"`` is 4,096. Raises ValueError."""
    count = _read(value.strip(), thousands=True) if isinstance(value, str) else value
    return whole_number(count, minimum=minimum, example="4096 or 4k")


def read_bytes(value: ByteCount, *, minimum: int = 1) -> int:
    """Return a number of bytes, of which ``"6MiB"`` is 6,291,456. Raises ValueError."""
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(B|KiB|MiB|GiB)?", value.strip())
        count = value if match is None else round(float(match[1]) * UNITS[match[2] or "B"])
    else:
        count = value
    return whole_number(count, minimum=minimum, example="6291456 or 6MiB")


def read_part(value: CountOrShare, *, minimum: int = 1) -> int | float:
    """Return a number of things, or a share of them between 0 and 1, also written as a percentage. Raises ValueError."""
    if isinstance(value, float) and 0 < value < 1:
        return value
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%", value.strip())):
        share = float(match[1]) / 100
        if not 0 < share < 1:
            raise ValueError(f"expected a share above 0% and below 100%, got {value.strip()}")
        return share
    count = _read(value.strip(), thousands=False) if isinstance(value, str) else value
    return whole_number(count, minimum=minimum, example="4 or 15%")


def _bound(value: float | None, minimum: float | None, maximum: float | None) -> str:
    """Return the bound that a value exceeds in words, or an empty text. None and NaN are within no bounds."""
    if minimum is not None and not (value is not None and value >= minimum):
        return f" of at least {minimum:,}"
    return f" of at most {maximum:,}" if maximum is not None and not (value is not None and value <= maximum) else ""


def _read(word: str, *, thousands: bool) -> int | str:
    """Return the number that a word represents, or the word itself if it is not a number."""
    match = re.fullmatch(r"(-?[0-9]{1,12})([kK]?)" if thousands else r"(-?[0-9]{1,12})()", word)
    return word if match is None else int(match[1]) * (THOUSAND if match[2] else 1)


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


def check_known(option: str, word: str, words: Iterable[str], refusal: type[ComposerError] = ComposerError) -> None:
    """Raise ``refusal`` for a word that is not in ``words``."""
    words = list(words)
    if word not in words:
        raise refusal(f"{option}: {brief(word)} is unknown{nearest(word, words) or '.'} Known: {', '.join(words)}.")


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
    if not any(_is_of_type(value, alternative) for alternative in alternatives):
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


def _is_of_type(value: object, alternative: str) -> bool:
    """Whether a value is of a type. Types that are not listed here are checked by the functions themselves, in words."""
    kind, _, inside = alternative.removesuffix("]").partition("[")
    if kind in _KINDS:
        return _KINDS[kind](value)
    if kind == "Sequence":
        is_several = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        items = value if isinstance(value, Collection) else ()  # what an iterator yields is left to the function
        return is_several and all(any(_is_of_type(item, inner) for inner in _split(inside)) for item in items)
    if kind == "Mapping":
        return isinstance(value, Mapping) and all(_is_of_type(item, inside.rpartition(", ")[2]) for item in value.values())
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
    "Overrides": lambda value: any(_is_of_type(value, alternative) for alternative in ("str", "Sequence[str]", "Mapping")),
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
