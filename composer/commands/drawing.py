"""``draw``, and the pictures of ``diff``: the heads and layers of a spec or a model, as SVG; nothing here needs torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from composer.api import SpecLike, load_spec
from composer.arguments import DtypeLike, Reference, named_dtype
from composer.drawing.beside import beside
from composer.drawing.picture import Picture, check_name, picture
from composer.errors import BuildError, ComposerError, in_words
from composer.files import failing_as, write_whole
from composer.numbers import TokenCount, tokens_of
from composer.spec.document import Spec
from composer.spec.overrides import Overrides
from composer.weights.picture_subject import of_model, on_source

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@in_words
def draw(
    spec: SpecLike | PreTrainedModel,
    source: Reference | None = None,
    *,
    overrides: Overrides = (),
    revision: str | None = None,
    sequence: TokenCount = 4096,
    dtype: DtypeLike | None = None,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Picture:
    """A picture of the spec, as SVG: the graph of each head and the map of layers. Of a model that was built, its own spec's.

    spec: a model, in memory or a folder, too. source: whose sizes it is drawn on; None takes those of the spec's own trunk, those
    that it was resolved for, or, where it has neither, of Llama-3.2-1B. sequence: tokens at which a state that grows is counted
    (``"4k"`` is 4,096). dtype: that states are counted in; left out, the source's own, or float32. out: an .svg file that it is
    written to, too; force: replaces what is there. Raises ComposerError.

        composer.draw("lola", "teacher").save("lola.svg")
    """
    dtype = named_dtype(dtype, BuildError)
    check_file(out, force=force)
    tokens = tokens_of(sequence, "sequence (--seq)", BuildError)
    given = of_model(spec)
    if given is None:
        given = on_source(load_spec(cast("SpecLike", spec), overrides), source, revision)
    elif source is not None or overrides or revision is not None:
        raise BuildError("a model is drawn as it is: leave its source, overrides and revision out, or name its spec instead")
    found = picture(given.resolved, on=given.on, sequence=tokens, dtype=dtype or given.dtype)
    if out is not None:
        _write(found, Path(out), force=force)
    return found


def draw_beside(specs: Sequence[Spec], source: Reference | None, revision: str | None, out: str | Path, *, force: bool) -> Picture:
    """Two specs beside each other, what differs marked, written to a file. Raises ComposerError."""
    check_file(out, force=force)
    one, other = (on_source(spec, source, revision) for spec in specs)
    found = beside(one.resolved, other.resolved, on=one.on, dtype=one.dtype)
    _write(found, Path(out), force=force)
    return found


def check_file(out: str | os.PathLike[str] | None, *, force: bool) -> None:
    """Raises ComposerError where a picture may not be written there."""
    if out is None:
        if force:
            raise ComposerError("--force replaces a file, and none is named to write the picture to")
        return
    check_name(out)
    if Path(out).exists() and not force:
        raise ComposerError(_taken(out))


def _write(found: Picture, out: Path, *, force: bool) -> None:
    with failing_as(ComposerError, f"{out} cannot be written"):
        try:
            write_whole(out, found.svg, replace=force)
        except FileExistsError:
            raise ComposerError(_taken(out)) from None


def _taken(out: str | os.PathLike[str]) -> str:
    return f"{out} is there already; --force replaces it, or choose another name"
