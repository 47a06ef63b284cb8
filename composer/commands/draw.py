"""``draw``, and the pictures of ``diff``: the heads and layers of a spec or a model, as SVG; nothing here needs torch."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from composer.drawing.picture import Picture, beside, check_name, picture
from composer.errors import BuildError, ComposerError, translate_errors
from composer.options.arguments import Reference
from composer.options.classes import argument, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import (
    OUT_FILE,
    SPEC,
    DtypeOption,
    ForceOption,
    PartsOption,
    SequenceOption,
    SetOption,
    SourceOfRevision,
    TextOnlyOption,
    complete_spec,
    to_optional_path,
)
from composer.reporting.terminal import print_document, say
from composer.spec.document import Spec
from composer.spec.loading import SpecLike, load_spec
from composer.system.files import failing_as, write_whole
from composer.weights.target import of_model, on_source

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@options_class
class OfSpecOrModel(PartsOption):
    spec: SpecLike | PreTrainedModel = argument(
        f"{SPEC} In Python, also a model in memory.", is_checked=False, complete=complete_spec
    )


@options_class
class DrawOptions(ForceOption, DtypeOption, SequenceOption, TextOnlyOption, SetOption, SourceOfRevision, OfSpecOrModel):
    """Draw a spec, or a built model, as SVG.

    The picture has the graph of each head, with the bytes of its memories, and the map of layers. Without --from, it has the sizes
    of the spec's own trunk or, if there is none, of Llama-3.2-1B. Only the source's config.json is read.
    """

    error: ClassVar[type[ComposerError]] = BuildError
    example: ClassVar[str] = 'composer.draw("lola", "teacher").save("lola.svg")'
    out: Path | None = option(
        "An .svg file. Left out, the command prints the picture, or writes SPEC.svg if it runs in a terminal.",
        default=None,
        converter=to_optional_path,
        **OUT_FILE,
    )


@translate_errors
def run_draw(options: DrawOptions) -> Picture:
    check_file(options.out, force=options.force)
    subject = of_model(options.spec)
    if subject is None:
        loaded = load_spec(cast("SpecLike", options.spec), options.overrides)
        subject = on_source(loaded, options.source, options.revision, text_only=options.text_only)
    elif options.source is not None or options.overrides or options.revision is not None:
        raise BuildError("a model is drawn as it is: leave its source, overrides and revision out, or name its spec instead")
    drawing = picture(subject.resolved, on=subject.on, sequence=options.sequence, dtype=options.dtype or subject.dtype)
    if options.out is not None:
        _write(drawing, options.out, force=options.force)
    return drawing


draw = function_of(DrawOptions, run_draw)


def draw_beside(
    specs: Sequence[Spec], source: Reference | None, revision: str | None, out: str | Path, *, text_only: bool, force: bool
) -> Picture:
    """Two specs beside each other, what differs marked, written to a file. Raises ComposerError."""
    check_file(out, force=force)
    first, second = (on_source(spec, source, revision, text_only=text_only) for spec in specs)
    drawing = beside(first.resolved, second.resolved, on=first.on, dtype=first.dtype)
    _write(drawing, Path(out), force=force)
    return drawing


def check_file(out: str | os.PathLike[str] | None, *, force: bool) -> None:
    """Raise ComposerError if a picture may not be written there."""
    if out is None:
        if force:
            raise ComposerError("--force replaces a file, and none is named to write the picture to")
        return
    check_name(out)
    if Path(out).exists() and not force:
        raise ComposerError(_exists_message(out))


def _write(drawing: Picture, out: Path, *, force: bool) -> None:
    with failing_as(ComposerError, f"{out} cannot be written"):
        try:
            write_whole(out, drawing.svg, replace=force)
        except FileExistsError:
            raise ComposerError(_exists_message(out)) from None


def _exists_message(out: str | os.PathLike[str]) -> str:
    return f"{out} is there already; --force replaces it, or choose another name"


@command(DrawOptions)
def draw_command(options: DrawOptions, screen: Screen) -> None:
    if options.out is None and sys.stdout.isatty():  # a terminal cannot show SVG
        options = replace(options, out=Path(f"{_name_of(options.spec)}.svg"))
    picture = run_draw(options)
    if options.out is None:
        print_document(picture.svg.removesuffix("\n"))
    else:
        say(f"{options.out}  {picture.width:.0f} × {picture.height:.0f} pixels")


def _name_of(spec: Any) -> str:
    """Return the last word of a spec's name, such as lolcats for specs/lolcats.yaml, as a file may be called."""
    name = Path(str(spec)).resolve().name if str(spec).strip("./") == "" else Path(str(spec)).name
    return re.sub(r"[^\w.-]+", "-", re.sub(r"\.ya?ml$", "", name)).strip("-.") or "spec"
