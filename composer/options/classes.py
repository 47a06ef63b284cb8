"""The options of a command: declared once, in a frozen class, for the command line and for Python.

    @options_class
    class SampleOptions:
        \"\"\"Write texts with a model.\"\"\"

        model: Reference = argument("The model that writes.", metavar="SOURCE")
        out: Path = option("File for the texts.", converter=to_path, kw_only=False, flags=("-o", "--out"), metavar="FILE")
        texts: int = option("Number of texts.", default=1000, minimum=1)

    def run_sample(options: SampleOptions) -> Sampled: ...

    sample = function_of(SampleOptions, run_sample)

``function_of`` makes the Python function, and ``command`` in ``command.py`` the command. Both read names, types, defaults and
descriptions from the class, and the class checks the values.

Type checkers need neither stubs nor a ``TypedDict``. ``options_class`` is a ``dataclass_transform``, so a checker knows the
parameters of the class, and ``function_of`` passes them on by a ``ParamSpec``. With a ``converter``, a parameter may have a wider
type than its attribute: ``out`` above also accepts text, and is a ``Path``.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from types import UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, dataclass_transform, get_args, get_origin

from pydantic import ConfigDict, Field, PlainValidator, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from composer.errors import ComposerError
from composer.options.arguments import check_known, number_of, whole_number
from composer.spec.places import brief

Arguments = ParamSpec("Arguments")
Options = TypeVar("Options")
Result = TypeVar("Result")
Taken = TypeVar("Taken")
Attribute = TypeVar("Attribute")

SAME: Any = object()
"""Marks a default that is the same on the command line."""
_FLAG = re.compile(
    r"`compose [^`]*`|^(?P<argument>[A-Z_]+)(?=: )"
    r"|(?P<tick>`?)(?<![\w-])(?P<flag>--?[a-z][a-z-]*)(?: (?P<value>\w(?:[\w.,=…-]*[\w…])?))?(?P=tick)"
)
"""A command between backticks, the label of an argument, or an option, perhaps with its value."""
CONFIG = ConfigDict(extra="forbid", strict=True, validate_default=True, arbitrary_types_allowed=True)
NUMBERS: Mapping[str, Callable[..., Any]] = {"int": whole_number, "float": number_of}
"""The checks of fields that are numbers."""


@dataclass(frozen=True)
class Option:
    """One field of an options class.

    - minimum, maximum: bounds of a number.
    """

    description: str
    """Sentences for the help of the command and of the function. The command omits those that begin with "In Python,", the function
    those that begin with "On the command line,"."""
    default: Any
    converter: Callable[[Any], Any] | None = None
    """Reads the caller's value; its parameter's annotation is that of the function's parameter."""
    is_checked: bool = True
    """False leaves the type to the function that runs."""
    kw_only: bool = True
    """Whether it is a keyword-only parameter in Python."""
    flags: tuple[str, ...] = ()
    """Its names on the command line; left out, ``--`` and the field's name. An argument has none."""
    metavar: str | None = None
    """The name of the value in the help of the command."""
    complete: Callable[[str], list[str]] | None = None
    """The shell's completions."""
    is_argument: bool = False
    """Positional on the command line."""
    is_hidden: bool = False
    """For Python alone."""
    kind: Any = None
    """The type that the command line reads, before ``converter``."""
    takes: str = ""
    """The annotation of the function's parameter."""
    minimum: float | None = None
    maximum: float | None = None
    command_default: Any = SAME
    """The default on the command line, if it differs."""

    @property
    def flag(self) -> str:
        """The name in messages of the command line."""
        return self.flags[-1].partition("/")[0]


def option(
    description: str,
    *,
    default: Any = MISSING,
    converter: Callable[[Taken], Attribute] | None = None,
    kw_only: bool = True,
    **more: Any,
) -> Any:
    """Declare an option. more: further fields of ``Option``."""
    return Option(description, default, converter, kw_only=kw_only, **more)


def argument(
    description: str,
    *,
    default: Any = MISSING,
    converter: Callable[[Taken], Attribute] | None = None,
    kw_only: bool = False,
    **more: Any,
) -> Any:
    """Declare an argument: positional on the command line, and in Python."""
    return Option(description, default, converter, kw_only=kw_only, is_argument=True, **more)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, argument))
def options_class(cls: type[Options]) -> type[Options]:
    """Make a frozen pydantic dataclass of declared options.

    Its ``error`` is the class of errors, and its ``check`` method, where it has one, raises such an error if values contradict
    each other. Messages name options as the command line does (``--held-out-rows``); ``function_of`` writes them as parameters.
    """
    declared = {name: value for name, value in vars(cls).items() if isinstance(value, Option)}
    annotations = dict(inspect.get_annotations(cls))
    for name, entry in declared.items():
        annotation = str(annotations[name])
        required_type = annotation.removesuffix(" | None")
        validator = entry.converter
        if validator is None and required_type in NUMBERS:
            validator = partial(
                _optional,
                partial(NUMBERS[required_type], minimum=entry.minimum, maximum=entry.maximum),
                annotation != required_type,
            )
        if validator is not None:
            annotations[name] = Annotated[Any, PlainValidator(validator)]
        elif not entry.is_checked:
            annotations[name] = Any
        declared[name] = replace(
            entry,
            flags=entry.flags or ((entry.metavar or name.upper()) if entry.is_argument else f"--{name.replace('_', '-')}",),
            takes=annotation if entry.converter is None else _annotation_of(entry.converter),
            kind=entry.kind
            or getattr(entry.converter, "kind", None)
            or {"int": int, "float": float, "bool": bool}.get(required_type),
        )
        default = {} if entry.default is MISSING else {"default": entry.default}
        setattr(cls, name, Field(**default, kw_only=entry.kw_only))
    cls.__annotations__ = annotations
    new_class: Any = pydantic_dataclass(frozen=True, config=CONFIG)(cls)
    for name, entry in declared.items():
        if entry.kind is None:
            words = _words_of(new_class, name)
            declared[name] = replace(entry, kind=Literal[*words] if words else str)
    # A command's own options are first in its help, before those that it inherits.
    entries = dict(declared)
    for base in cls.__mro__[1:]:
        entries |= {name: entry for name, entry in vars(base).get("__options__", {}).items() if name not in entries}
    by_position = [field.name for field in fields(new_class) if not field.kw_only]
    new_class.__options__ = {
        name: entries[name] for name in (*by_position, *(name for name, entry in entries.items() if entry.kw_only))
    }
    new_class.__init__ = _checking(new_class.__init__)
    return new_class


def _words_of(cls: Any, name: str) -> tuple[str, ...]:
    """Return the words of a field of a ``Literal``; none for other fields."""
    hint = cls.__pydantic_fields__[name].annotation
    hints = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(word for entry in hints if get_origin(entry) is Literal for word in get_args(entry))


def _annotation_of(converter: Callable[..., Any]) -> str:
    """Return the annotation of a converter's parameter."""
    (parameter, *_) = inspect.signature(converter).parameters.values()
    return str(parameter.annotation)


def _optional(check: Callable[[Any], Any], is_optional: bool, value: Any) -> Any:
    return None if value is None and is_optional else check(value)


def options_of(cls: Any) -> dict[str, Option]:
    """Return the options of a class by their names: first positional parameters of Python, then the others."""
    return cls.__options__


def _checking(init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` that raises the class's own error."""

    def __init__(self: Any, *values: Any, **named: Any) -> None:
        try:
            init(self, *values, **named)
        except ValidationError as error:
            place = error.errors()[0]["loc"][0]
            name = place if isinstance(place, str) else list(options_of(type(self)))[place]  # of a value by its position
            if error.errors()[0]["type"].startswith(("missing", "unexpected", "multiple")):  # as for any function
                raise TypeError(f"{type(self).__name__}: {error.errors()[0]['msg']}: {name}") from None
            error_class = getattr(type(self), "error", ComposerError)
            raise error_class(f"{options_of(type(self))[name].flag}: {_problem(error, type(self), name)}") from None
        if hasattr(self, "check"):
            self.check()

    return __init__


def _problem(error: ValidationError, cls: type, name: str) -> str:
    first = error.errors()[0]
    value = first["input"]
    if first["type"] == "literal_error" and isinstance(value, str):
        try:
            check_known("", value, _words_of(cls, name))
        except ComposerError as refused:
            return str(refused).removeprefix(": ")
    if first["type"] in ("value_error", "assertion_error"):
        return str(first.get("ctx", {}).get("error", first["msg"]))
    words = {"bool_type": "True or False", "string_type": "text"}.get(first["type"], first["msg"])
    return f"expected {words}, got {brief(value)}"


def without_sentences(beginning: str, text: str) -> str:
    """Remove the sentences that begin so, each with a comma after it."""
    return re.sub(rf" {beginning}, .*?\.(?=\s|$)", "", text)


def in_python(text: str, options: Mapping[str, Option]) -> str:
    """Write options of the command line as parameters: ``--merge`` as ``merge=True``, ``--keep N`` as ``keep=N``.

    Commands between backticks are not changed.
    """
    names = {flag: name for name, entry in options.items() for part in entry.flags for flag in part.split("/")}

    def write(match: re.Match[str]) -> str:
        flag, value = match["flag"] or match["argument"], match["value"] or ""
        if flag not in names:
            return match[0]
        name, kind = names[flag], options[names[flag]].kind
        if match.start() == 0 and not value and match.string.startswith(":", match.end()):  # the label of a message
            return name
        if kind is bool:
            value, word = str(not any(part.endswith(f"/{flag}") for part in options[name].flags)), value
        elif "=" in value:
            value, word = f'["{value}"]', ""
        elif value.isupper() or (kind in (int, float) and value[:1].isdigit()):
            word = ""
        elif value[:1].isdigit() or (get_origin(kind) is Literal and value in get_args(kind)):
            value, word = f'"{value}"', ""
        else:
            value, word = "", value
        return f"`{name}{value and '='}{value}`{word and ' '}{word}"

    return _FLAG.sub(write, text).replace('"]` `overrides=["', '", "')


def function_of(
    options: Callable[Arguments, Options], run: Callable[[Options], Result], name: str | None = None
) -> Callable[Arguments, Result]:
    """Return the Python function of an options class: it makes the options, and returns what ``run`` returns.

    name: left out, that of ``run`` without ``run_``.
    """
    cls: Any = options

    def function(*values: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            with default_modes():
                return run(options(*values, **named))
        except ComposerError as error:
            error.args = (in_python(str(error), options_of(cls)), *error.args[1:])
            raise

    function.__name__ = function.__qualname__ = name or run.__name__.removeprefix("run_")
    function.__module__ = run.__module__
    function.__doc__ = documentation(cls)
    parameters = [
        inspect.Parameter(
            key,
            inspect.Parameter.KEYWORD_ONLY if entry.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if entry.default is MISSING else entry.default,
            annotation=entry.takes,
        )
        for key, entry in options_of(cls).items()
    ]
    returned = inspect.unwrap(run).__annotations__["return"]
    function.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    function.__annotations__ = {entry.name: entry.annotation for entry in parameters} | {"return": returned}
    return function


@contextmanager
def default_modes() -> Iterator[None]:
    """For the block, PyTorch's modes are those of a new process. Under a caller's ``torch.no_grad`` nothing could be trained, and
    an export would have no gradients; under ``torch.autocast`` calibration would solve equations in bfloat16.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    cpu, cuda = (torch.autocast(device, enabled=False) for device in ("cpu", "cuda"))
    with torch.inference_mode(False), torch.enable_grad(), cpu, cuda:
        yield


def documentation(cls: Any) -> str:
    """Return the docstring of the Python function: the class's, its options, and its ``example``."""
    options = options_of(cls)
    lines = [f"- {name}: {in_python(entry.description, options)}" for name, entry in options.items()]
    listed = without_sentences("On the command line", "\n".join(lines)).replace("May be repeated.", "One or several.")
    example = getattr(cls, "example", "")
    parts = [
        in_python(inspect.cleandoc(cls.__doc__), options),
        listed,
        "Raises ComposerError.",
        *([f"    {example}"] if example else []),
    ]
    return "\n\n".join(parts)


def convert_options(options: Any, target: Callable[..., Result], **changes: Any) -> Result:
    """Return a dataclass with the values of all fields that the options have, too, and ``changes``."""
    target_class: Any = target
    shared = options_of(options).keys() & {field.name for field in fields(target_class)} - changes.keys()
    return target(**{name: getattr(options, name) for name in shared}, **changes)
