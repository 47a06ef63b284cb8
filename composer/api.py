"""The functions behind the command line, which ``import composer`` exports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from composer.arguments import DtypeLike, Reference, named_dtype, several
from composer.devices import device_type
from composer.errors import BuildError, GraphError, in_words, name_of
from composer.graph.lowering import AUTO
from composer.numbers import LEAST_SEED, TokenCount, check_seed, tokens_of
from composer.progress import BarUpdate, progress_callback, silent_transformers
from composer.spec.document import Spec
from composer.spec.explain import Explanation, explain_resolved
from composer.spec.loading import SpecLike, load_spec, locate
from composer.spec.overrides import Overrides
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.trust import refuse_code, refused_by_transformers
from composer.weights.default_folder import default_output
from composer.weights.dimensions import dimensions
from composer.weights.sources import check_merged, describe_model, open_model
from composer.weights.target import TRUNK, Target, target_of
from converters.bounded import brief

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from composer.model.classes import Composed
    from composer.weights.build import BuildReport, Progress

__all__ = ["SpecLike", "build", "build_folder", "explain", "load", "load_spec", "resolve_spec", "specs_of"]

SourceLike = TypeVar("SourceLike")


def specs_of(said: SpecLike | Sequence[SpecLike]) -> tuple[SpecLike, ...]:
    """One spec, or several. What is neither counts as one, and reading it says what a spec is."""
    if isinstance(said, Spec | str | os.PathLike | Mapping) or not isinstance(said, Iterable):
        return (said,)
    return tuple(said)


def resolve_spec(spec: SpecLike, size: Dimensions | None, overrides: Overrides = ()) -> Resolved:
    """The complete document for a source of this size, or, for None, on the spec's own trunk.

    Raises SpecError with file, line and path.
    """
    loaded = load_spec(spec, overrides)
    try:
        return resolve(loaded, size)
    except GraphError as error:
        raise locate(error, loaded) from error


@in_words
def build(
    spec: SpecLike,
    source: str | os.PathLike[str] | PreTrainedModel | None = None,
    *,
    fresh: bool = False,
    overrides: Overrides = (),
    revision: str | None = None,
    dtype: DtypeLike | None = None,
    seed: int = 0,
    share: bool = False,
    backend: str = AUTO,
) -> Composed:
    """The composed model, in memory, in evaluation mode.

    - source: a folder, a repository of the Hub, a GGUF file, or a model that is in memory already (transformers' own, or composed).
    - fresh: there is no source, and the spec has a trunk of its own.
    - dtype: of all weights; None leaves them as they are, unpacks quantised ones to bfloat16, and makes fresh ones float32.
    - seed: of the fresh parameters.
    - share: whether the weights are shared with a model in memory (as they are: without a ``dtype``) or copied.

    Raises SpecError, SourceError or BuildError.
    """
    from composer.weights.finite import check_loaded
    from composer.weights.from_model import build_from_model, trunk_of

    dtype = named_dtype(dtype, BuildError)
    check_seed(seed, BuildError, least=LEAST_SEED)
    source = _origin(source, fresh, revision)
    if source is not None and not isinstance(source, str | os.PathLike) and not hasattr(source, "config"):
        raise BuildError(f"a source is a folder, a repository of the Hub or a model of transformers, not {brief(source)}")
    loaded = load_spec(spec, overrides)
    document, opened = loaded.model_dump(mode="json", exclude_unset=True), None
    if source is None:
        from composer.weights.fresh import build_fresh

        made = build_fresh(resolve_spec(loaded, None), spec_document=document, dtype=dtype, seed=seed)
        made.set_backend(backend)
        return made
    if isinstance(source, (str, os.PathLike)):
        with silent_transformers():
            import torch
            from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

        resolved = resolve_spec(loaded, dimensions(describe_model(source, revision).trunk))
        opened = open_model(source, revision, dtype)
        check_merged(opened)
        refuse_code(opened.folder, BuildError)
        torch_dtype = getattr(torch, dtype or opened.trunk.dtype)
        auto = AutoModelForCausalLM if opened.trunk.labels is None else AutoModelForSequenceClassification
        with silent_transformers(), refused_by_transformers(f"transformers cannot open {opened.folder}", BuildError):
            model = auto.from_pretrained(opened.folder, dtype=torch_dtype, local_files_only=True, trust_remote_code=False)
        check_loaded(model, opened)
        share, dtype = True, None  # the source has just been read, in this dtype, and nothing else refers to it
    else:
        if revision is not None:
            raise BuildError("`revision` is for models from the Hub, and this one is in memory: leave it out")
        model = source
        resolved = resolve_spec(loaded, dimensions(trunk_of(model)))
    student = build_from_model(resolved, model, dtype=dtype, seed=seed, share=share, spec_document=document, opened=opened)
    student.set_backend(backend)
    return student


@in_words
def build_folder(
    spec: SpecLike,
    source: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    fresh: bool = False,
    tokenizer: str | os.PathLike[str] | None = None,
    overrides: Overrides = (),
    revision: str | None = None,
    dtype: DtypeLike | None = None,
    seed: int = 0,
    copy: bool = False,
    hash_contents: bool = False,
    force: bool = False,
    dry_run: bool = False,
    progress: bool | Progress | None = False,
    lolcats: Reference | Sequence[Reference] = (),
) -> BuildReport:
    """The composed model as a folder that ``from_pretrained`` loads; it appears whole or not at all.

    - out: left out, ``<spec>-<source>`` in the current folder.
    - fresh: there is no source, and the spec has a trunk of its own.
    - tokenizer: with ``fresh``, a folder or a model of the Hub whose tokenizer comes along.
    - copy: write bytes of its own instead of links to the source's files.
    - hash_contents: read linked files, too, so that every byte can be verified later.
    - force: replace what stands there.
    - dry_run: plan and check only.
    - lolcats: LoLCATs' checkpoints (pickles of tensors) for this source: trained heads, and adapters, which are merged.
    - progress: True shows a bar; a function is called with a file's name, its bytes so far, and all of its bytes.

    Raises SpecError, SourceError or BuildError.

        composer.build_folder("lawcat", "teacher", "lawcat-mine")
    """
    from composer.weights.build import build_folder as write_folder

    dtype = named_dtype(dtype, BuildError)
    check_seed(seed, BuildError, least=LEAST_SEED)
    source = _origin(source, fresh, revision)
    loaded = load_spec(spec, overrides)
    if source is None and several(lolcats):
        raise BuildError("LoLCATs' checkpoints (--lolcats) stand on a model: name it with --from")
    if source is None:
        from composer.weights.fresh import build_fresh_folder
        from composer.weights.tokenizer import open_tokenizer

        with progress_callback(progress or False, _written, "name", "bar", "bytes", "speed") as moved:
            return build_fresh_folder(
                resolve_spec(loaded, None),
                default_output(loaded.name, None) if out is None else out,
                spec_document=loaded.model_dump(mode="json", exclude_unset=True),
                dtype=dtype,
                seed=seed,
                tokenizer=None if tokenizer is None else open_tokenizer(tokenizer),
                force=force,
                dry_run=dry_run,
                progress=moved,
            )
    if tokenizer is not None:
        raise BuildError(
            "a source brings its own tokenizer: leave `tokenizer` (--tokenizer) out, it is for what is built from nothing"
        )
    resolved = resolve_spec(loaded, dimensions(describe_model(source, revision).trunk))
    opened = open_model(source, revision, dtype)
    with progress_callback(progress or False, _written, "name", "bar", "bytes", "speed") as moved:
        return write_folder(
            resolved,
            opened,
            default_output(loaded.name, opened) if out is None else out,
            spec_document=loaded.model_dump(mode="json", exclude_unset=True),
            dtype=dtype,
            seed=seed,
            copy=copy,
            hash_contents=hash_contents,
            force=force,
            dry_run=dry_run,
            progress=moved,
            lolcats=several(lolcats),
        )


@in_words
def explain(
    spec: SpecLike,
    source: str | os.PathLike[str] | None = None,
    *,
    overrides: Overrides = (),
    revision: str | None = None,
    sequence: TokenCount = 4096,
    backend: str = AUTO,
    device: str = "cpu",
    dtype: DtypeLike | None = None,
) -> Explanation:
    """What the spec costs on this source, from its config alone: forms, parameters, state bytes, operations, compression.

    source: None takes what the spec says itself: its own trunk, the sizes that it was resolved for, or, of a built model, that one.
    sequence: tokens at which states that grow, and the source's cache, are counted; ``"4k"`` is 4,096.
    """
    dtype = named_dtype(dtype, BuildError)
    tokens = tokens_of(sequence, "sequence (--seq)", BuildError)
    loaded = load_spec(spec, overrides)
    target = target_of(spec, loaded, source, revision=revision) or Target(TRUNK, None, "float32")
    resolved = resolve_spec(loaded, target.size)
    return explain_resolved(
        resolved,
        on=target.on,
        sequence=tokens,
        backend=backend,
        device=device_type(device),
        dtype=dtype or target.dtype,
        windows=target.windows,
        rotations=target.rotations,
    )


@in_words
def load(folder: str | os.PathLike[str], *, dtype: DtypeLike | None = None, device: str = "cpu", backend: str = AUTO) -> Composed:
    """A built model, in evaluation mode. Unlike ``from_pretrained`` it refuses a folder that lacks a parameter.

    backend: which forms run its heads: auto (each part's fastest), reference, torch, fla, triton, or another that a part has.
    """
    dtype = named_dtype(dtype, BuildError)
    where = Path(name_of(folder))
    with silent_transformers():
        from composer.weights.loading import load_model

        return load_model(where, dtype, device, backend)


def _written(name: str, done: int, total: int) -> BarUpdate:
    return BarUpdate(f"writing {name}", done, total)


def _origin(source: SourceLike | None, fresh: bool, revision: str | None) -> SourceLike | None:
    """The source, or None with ``fresh``. Raises BuildError where the arguments contradict each other."""
    if source is not None and fresh:
        raise BuildError("a model is built from a source (--from) or from nothing (--fresh), not both: leave one of them out")
    if source is None and not fresh:
        raise BuildError(
            "nothing says what to build from: a source (--from SOURCE), or nothing (--fresh), with the spec's own trunk"
        )
    if fresh and revision is not None:
        raise BuildError("a revision is for a source of the Hub, and there is none: leave it out")
    return source
