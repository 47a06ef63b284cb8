"""``show`` and ``code``: a spec, complete and in canonical form, and the program of its heads. Neither needs torch."""

from __future__ import annotations

from typing import Any, ClassVar

from blocks.part import Closed
from composer.devices import device_type
from composer.errors import ComposerError, translate_errors
from composer.options import function_of, options_class
from composer.shared_options import FreshOrNot, InDtype, OfSource, OfSpec, OnDevice, Overriding, TextDecoderAlone, WithBackend
from composer.spec.code import Listing, code_of
from composer.spec.document import Spec
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.locked_spec import lock_document
from composer.spec.recipe import Stage
from composer.spec.writing import to_yaml
from composer.tables import Readable, View
from composer.weights.target import target_of


class ShownSpec(Readable, Closed):
    """A spec as a self-contained document. on: the source that it is resolved on. hash: of the resolved spec."""

    name: str
    on: str | None
    document: dict[str, Any]
    hash: str | None

    @property
    def yaml(self) -> str:
        """The document as YAML that reads back as itself, below a comment with its hash."""
        heading = f"# {self.name} on {self.on}, resolved. Hash of what it means: {self.hash}\n" if self.hash else ""
        return heading + to_yaml(lock_document(self.document) if self.hash else self.document)

    def view(self) -> View:
        return View("", verbatim=self.yaml)


@options_class
class ShowOptions(FreshOrNot, TextDecoderAlone, Overriding, OfSource, OfSpec):
    """Print a spec as YAML, or the names of the shipped specs.

    The document is printed after `extends` and --set. With --from, or with --fresh for a spec with its own trunk, every default and
    every dimension is written out, layer by layer: a spec that leaves nothing to its source, and means the same on it.
    """

    example: ClassVar[str] = 'print(composer.show("lawcat", "teacher").yaml)'


@translate_errors
def run_show(options: ShowOptions) -> ShownSpec:
    loaded = load_spec(options.spec, options.overrides)
    if options.source is None and not options.fresh:
        return ShownSpec(name=loaded.name, on=None, document=_document(loaded), hash=None)
    target = target_of(
        options.spec, loaded, options.source, fresh=options.fresh, revision=options.revision, text_only=options.text_only
    )
    assert target is not None, "there is a source, or fresh"
    resolved = resolve_spec(loaded, target.size)
    return ShownSpec(name=loaded.name, on=target.on, document=resolved.model_dump(mode="json"), hash=resolved.hash)


def _document(spec: Spec) -> dict[str, Any]:
    """Return a spec with the fields that were set, and the rows of a step: the time of a run depends on them."""
    document = spec.model_dump(mode="json", exclude_unset=True)
    for stage in (document.get("recipe") or {}).values():
        if isinstance(stage, dict):
            stage.setdefault("batch", Stage.model_fields["batch"].default)
    return document


@options_class
class CodeOptions(InDtype, OnDevice, WithBackend, FreshOrNot, TextDecoderAlone, Overriding, OfSource, OfSpec):
    """Print what each head of a spec computes: a line for each step, with shapes and forms."""

    example: ClassVar[str] = 'print(composer.code("lawcat", "teacher").text)'


@translate_errors
def run_code(options: CodeOptions) -> Listing:
    loaded = load_spec(options.spec, options.overrides)
    target = target_of(
        options.spec, loaded, options.source, fresh=options.fresh, revision=options.revision, text_only=options.text_only
    )
    if target is None:
        raise ComposerError(f"{loaded.name} has no sizes, which a program needs. Add a source: --from SOURCE.")
    device, dtype = device_type(options.device), options.dtype or target.dtype
    return code_of(resolve_spec(loaded, target.size), target.on, backend=options.backend, device=device, dtype=dtype)


show = function_of(ShowOptions, run_show)
code = function_of(CodeOptions, run_code)
