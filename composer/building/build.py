"""Builds a model out of a spec and a source, as a folder or in memory, and loads such a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from composer.errors import BuildError, ComposerError, translate_errors
from composer.graph.lowering import AUTO
from composer.options.arguments import DtypeLike, named_dtype
from composer.options.classes import option, options_class
from composer.options.shared import (
    OUT,
    PROGRESS,
    SOURCE,
    BackendOption,
    DtypeOption,
    ForceOption,
    FreshOption,
    SetOption,
    SignedSeedOption,
    SourceOfRevision,
    SpecArgument,
    TextOnlyOption,
    TokenizerOption,
    to_optional_path,
    to_references,
)
from composer.reporting.progress import BarUpdate, progress_callback, silent_transformers
from composer.spec.external_parts import PartReference, use_parts
from composer.spec.loading import load_spec, resolve_spec
from composer.system.trust import refuse_code, translate_transformers_errors
from composer.weights.config import dimensions
from composer.weights.sources import check_merged, default_output, describe_model, local_folder, open_model
from composer.weights.tokenizer import open_tokenizer
from converters.bounded import brief

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from composer.building.folder import BuildReport, Progress
    from composer.model.classes import Composed


@options_class
class ModelOptions(
    BackendOption, SignedSeedOption, DtypeOption, FreshOption, TextOnlyOption, SetOption, SourceOfRevision, SpecArgument
):
    """Build a model in memory, in evaluation mode: the source's weights, the spec's heads."""

    error: ClassVar[type[ComposerError]] = BuildError
    example: ClassVar[str] = 'composer.build("lawcat", "teacher")'
    source: str | os.PathLike[str] | PreTrainedModel | None = option(  # pyright: ignore[reportIncompatibleVariableOverride]
        f"{SOURCE} Or a model in memory: transformers' own, or composed.",
        default=None,
        is_checked=False,
        kw_only=False,
        flags=("--from",),
    )
    share: bool = option("Share the weights with a model in memory. Left out, they are copied.", default=False)

    def check(self) -> None:
        source = self.source
        check_origin(source, self.fresh, self.revision)
        if source is not None and not isinstance(source, str | os.PathLike) and not hasattr(source, "config"):
            raise BuildError(f"a source is a folder, a repository of the Hub or a model of transformers, not {brief(source)}")
        if self.text_only and not isinstance(source, str | os.PathLike):
            raise BuildError("--text-only is for a source in a folder or on the Hub: name one, or pass the text decoder itself")


@translate_errors
def run_build_in_memory(options: ModelOptions) -> Composed:
    from composer.building.in_memory import build_from_model, trunk_of
    from composer.weights.stream import check_loaded

    source, dtype, share, seed = options.source, options.dtype, options.share, options.seed
    loaded = load_spec(options.spec, options.overrides)
    document, opened = loaded.model_dump(mode="json", exclude_unset=True), None
    if source is None:
        from composer.building.in_memory import build_fresh

        built = build_fresh(resolve_spec(loaded, None), spec_document=document, dtype=dtype, seed=seed)
        built.set_backend(options.backend)
        return built
    if isinstance(source, (str, os.PathLike)):
        with silent_transformers():
            import torch

            from composer.weights.load import auto_class

        resolved = resolve_spec(loaded, dimensions(describe_model(source, options.revision, text_only=options.text_only).trunk))
        opened = open_model(source, options.revision, dtype, text_only=options.text_only)
        check_merged(opened)
        refuse_code(opened.folder, BuildError)
        torch_dtype = getattr(torch, dtype or opened.trunk.dtype)
        with silent_transformers(), translate_transformers_errors(f"transformers cannot open {opened.folder}", BuildError):
            model = auto_class(opened.trunk).from_pretrained(
                opened.folder, dtype=torch_dtype, local_files_only=True, trust_remote_code=False
            )
        check_loaded(model, opened)
        share, dtype = True, None  # the source has just been read, in this dtype, and nothing else refers to it
    else:
        if options.revision is not None:
            raise BuildError("`revision` is for models from the Hub, and this one is in memory: leave it out")
        model = source
        resolved = resolve_spec(loaded, dimensions(trunk_of(model)))
    student = build_from_model(resolved, model, dtype=dtype, seed=seed, share=share, spec_document=document, opened=opened)
    student.set_backend(options.backend)
    return student


@options_class
class BuildOptions(
    TokenizerOption,
    FreshOption,
    TextOnlyOption,
    ForceOption,
    SignedSeedOption,
    DtypeOption,
    SetOption,
    SourceOfRevision,
    SpecArgument,
):
    """Build a model: the source's weights, the spec's heads.

    With --fresh there is no source: the spec also describes the trunk, and all weights are random. transformers loads the folder.
    It appears whole or not at all.
    """

    error: ClassVar[type[ComposerError]] = BuildError
    example: ClassVar[str] = 'composer.build_folder("lawcat", "teacher", "lawcat-mine")'
    out: Path | None = option(
        "Output folder. Left out, SPEC-SOURCE or SPEC-fresh here.", default=None, converter=to_optional_path, kw_only=False, **OUT
    )
    copy: bool = option("Copy the source's weights. Left out, the folder links to them.", default=False)
    hash_contents: bool = option(
        "Also read large linked files, so that `verify` can check each byte of them later.", default=False, flags=("--hash",)
    )
    dry_run: bool = option("Show the plan, and write nothing.", default=False)
    lolcats: tuple[str, ...] = option(
        "LoLCATs checkpoint for SOURCE (model.pt): trained heads, and adapters, which are merged. May be repeated.",
        default=(),
        converter=to_references,
        metavar="FILE",
    )
    progress: bool | Progress = option(PROGRESS, default=False, is_checked=False, is_hidden=True)

    def check(self) -> None:
        check_origin(self.source, self.fresh, self.revision)
        super().check()
        if self.source is None and self.lolcats:
            raise BuildError("--lolcats is for a model with a source: name the source with --from")


@translate_errors
def run_build(options: BuildOptions) -> BuildReport:
    from composer.building.folder import build_folder as write_folder

    loaded = load_spec(options.spec, options.overrides)
    source, tokenizer = None, None if options.tokenizer is None else open_tokenizer(options.tokenizer)
    if options.source is None:
        resolved = resolve_spec(loaded, None)
    else:
        described = describe_model(options.source, options.revision, text_only=options.text_only)
        resolved = resolve_spec(loaded, dimensions(described.trunk))
        source = open_model(options.source, options.revision, options.dtype, text_only=options.text_only)
    with progress_callback(options.progress, _bar_of, "name", "bar", "bytes", "speed") as moved:
        return write_folder(
            resolved,
            source,
            options.out or default_output(loaded.name, source),
            spec_document=loaded.model_dump(mode="json", exclude_unset=True),
            dtype=options.dtype,
            seed=options.seed,
            tokenizer=tokenizer,
            copy=options.copy,
            hash_contents=options.hash_contents,
            force=options.force,
            dry_run=options.dry_run,
            progress=moved,
            lolcats=options.lolcats,
        )


def _bar_of(name: str, done: int, total: int) -> BarUpdate:
    return BarUpdate(f"writing {name}", done, total)


def check_origin(source: object, fresh: bool, revision: str | None) -> None:
    """Raise BuildError if options of a source contradict each other."""
    if source is not None and fresh:
        raise BuildError("a model is built from a source (--from) or from nothing (--fresh), not both: leave one of them out")
    if source is None and not fresh:
        raise BuildError("no source is named: set --from SOURCE, or --fresh, which uses the spec's own trunk")
    if fresh and revision is not None:
        raise BuildError("--revision is for a source of the Hub, and --fresh has no source: leave one of them out")


@translate_errors
def load(
    folder: str | os.PathLike[str],
    *,
    dtype: DtypeLike | None = None,
    device: str = "cpu",
    backend: str = AUTO,
    parts: PartReference | Sequence[PartReference] = (),
) -> Composed:
    """Return a built model, in evaluation mode. Unlike ``from_pretrained`` it refuses a folder that lacks a parameter.

    - backend: which forms run its heads: auto (the first that fits), reference, torch, fla, triton, or another that a part has.
    - parts: Python modules or files (.py) with your own parts. Those of installed packages need no option.
    """
    use_parts(parts)
    dtype = named_dtype(dtype, BuildError)
    local = local_folder(folder)
    with silent_transformers():
        from composer.weights.load import load_model

        return load_model(local, dtype, device, backend)
