"""Resolve a spec that a user has typed, within bounds, as the text may be from anybody. Nothing in the text is executed. It can
only extend shipped specs and, if the page was opened on a file, files in its folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from composer.drawing.picture import TYPICAL
from composer.errors import GraphError, SpecError
from composer.spec.dimensions import Dimensions
from composer.spec.loading import load_text, locate
from composer.spec.places import at, problem_of
from composer.spec.reading import read_spec
from composer.spec.resolve import Resolved, resolve
from composer.spec.shipped import shipped_specs, specs_folder
from converters.bounded import is_text

MOST_TEXT = 2**14
"""Characters of a text: a shipped spec has a few thousand."""
MOST_LAYERS, MOST_TOKENS, MOST_SIZE = 512, 10**9, 2**17
MOST_KINDS, MOST_MEMORIES = 12, 64
"""The most kinds of heads that a page shows, and the most memories in all of them."""
TYPED = ("layers", "hidden_size", "heads", "key_heads", "head_dim")
"""The sizes that a user may type, in their order on the page."""


@dataclass(frozen=True)
class EditorContext:
    """The surroundings of the text in the editor. called: its name in messages. folder: where the names that it extends start;
    None: it may extend shipped specs only. base: the source's sizes, before those that the user types. dtype: the first choice
    on the page."""

    called: str = "spec.yaml"
    folder: Path | None = None
    base: Dimensions = TYPICAL
    dtype: str = "float32"


def resolve_text(text: str, place: EditorContext, sizes: tuple[float | None, ...]) -> Resolved:
    """Return the spec on sizes as ``TYPED`` has them, or on its own trunk. Raises SpecError with line and column."""
    if len(text) > MOST_TEXT:
        raise SpecError(f"{place.called}: {len(text):,} characters; this page reads {MOST_TEXT:,} at most")
    _check_extends(text, place)
    spec = load_text(text, place.called, place.folder or specs_folder())
    try:
        if spec.trunk is not None and spec.trunk.layers > MOST_LAYERS:
            raise GraphError(f"{spec.trunk.layers:,} layers; this page draws {MOST_LAYERS} at most", ("trunk", "layers"))
        resolved = resolve(spec, None if spec.trunk else dimensions_of(place.base, sizes))
    except GraphError as error:
        raise locate(error, spec) from error
    kinds = resolved.kinds()
    memories = sum(len(head.memory) for head, _, _ in kinds.values())
    if len(kinds) > MOST_KINDS or memories > MOST_MEMORIES:
        raise SpecError(
            f"{place.called}: {len(kinds)} kinds of heads with {memories} memories; this page shows {MOST_KINDS} with "
            f"{MOST_MEMORIES} at most, and `compose draw` and `compose explain` any"
        )
    return resolved


def dimensions_of(base: Dimensions, sizes: tuple[float | None, ...]) -> Dimensions:
    """Return the base with the typed sizes in it. Raises SpecError."""
    typed: dict[str, int] = {}
    for name, size in zip(TYPED, sizes, strict=True):
        limit = MOST_LAYERS if name == "layers" else MOST_SIZE
        typed[name] = parse_whole_number(size, name.replace("_", " "), limit)
    try:
        return Dimensions.model_validate({**base.model_dump(), **typed})
    except ValidationError as error:
        raise SpecError(f"sizes: {problem_of(error.errors()[0])}") from None


def parse_whole_number(number: float | None, name: str, maximum: int) -> int:
    """Return a typed number as a whole number, at most ``maximum``. Raises SpecError."""
    if number is None or not 1 <= number <= maximum or number != int(number):
        described = "nothing" if number is None else f"{number:g}"
        raise SpecError(f"{name}: {described}; expected a whole number from 1 to {maximum:,}")
    return int(number)


def _check_extends(text: str, place: EditorContext) -> None:
    """Raise SpecError if the text extends a file that this page may not read. It is not looked at, even whether it exists."""
    extends = read_spec(text, place.called).child("extends")
    if extends is None or not isinstance(extends.value, str) or extends.value.removesuffix(".yaml") in shipped_specs():
        return
    if place.folder is None or not _is_inside(extends.value, place.folder):
        allowed = "alone" if place.folder is None else "and files in the folder of its file"
        message = f"on this page a spec extends shipped ones {allowed}, by their names: it reads no other files"
        raise SpecError(at(extends.start, ("extends",), message))


def _is_inside(name: str, folder: Path) -> bool:
    """Whether a name is that of something in a folder, once links are followed."""
    if "\0" in name or not is_text(name):
        return False
    try:
        return (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a circle of links
        return False
