"""What the command line does, as functions. ``import composer`` brings them to the front."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.errors import BuildError, GraphError
from composer.graph.explain import BYTES, Explanation, explain_resolved
from composer.graph.lowering import BACKENDS, Backend
from composer.spec.document import Spec
from composer.spec.loading import load_spec, locate
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.weights.dimensions import dimensions
from composer.weights.naming import default_output
from composer.weights.sources import describe_model, open_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from composer.model.modeling import ComposedForCausalLM
    from composer.weights.build import BuildReport, Progress
    from converters.trunk import Dtype

__all__ = ["SpecLike", "build", "build_folder", "explain", "load", "load_spec", "resolve_spec"]

SpecLike = Spec | str | Path | Mapping[str, Any]
"""A spec, the path of one, the name of a shipped one, or what stands in one."""


def resolve_spec(spec: SpecLike, size: Dimensions, overrides: Sequence[str] = ()) -> Resolved:
    """The complete document for a source of this size. Raises SpecError with file, line and path."""
    loaded = _loaded(spec, overrides)
    try:
        return resolve(loaded, size)
    except GraphError as error:
        raise locate(error, loaded) from error


def build(
    spec: SpecLike,
    source: str | os.PathLike[str] | PreTrainedModel,
    *,
    overrides: Sequence[str] = (),
    revision: str | None = None,
    dtype: Dtype | None = None,
    seed: int = 0,
    share: bool = False,
    backend: Backend = "torch",
) -> ComposedForCausalLM:
    """The composed model, in memory, in evaluation mode.

    source: a folder, a repository of the Hub, or a model that is in memory already (Llama, or itself composed); of the last,
    ``share`` says whether the weights are shared with it or copied. dtype: of all weights; None leaves them as they are.
    seed: of the fresh parameters. Raises SpecError, SourceError or BuildError.
    """
    from composer.weights.memory import build_from_model, trunk_of

    known = _backend(backend)
    if isinstance(source, (str, os.PathLike)):
        import torch
        from transformers import AutoModelForCausalLM

        resolved = resolve_spec(spec, dimensions(describe_model(source, revision).trunk), overrides)
        opened = open_model(source, revision)
        kind = getattr(torch, dtype or opened.trunk.dtype)
        model, share = AutoModelForCausalLM.from_pretrained(opened.folder, dtype=kind, local_files_only=True), True
    else:
        if revision is not None:
            raise BuildError("`revision` is for models from the Hub, and this one is in memory: leave it out")
        model = source if dtype is None else _turned(source, dtype)
        resolved = resolve_spec(spec, dimensions(trunk_of(model)), overrides)
    student = build_from_model(resolved, model, seed=seed, share=share)
    student.model.backend = known
    return student


def build_folder(
    spec: SpecLike,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    overrides: Sequence[str] = (),
    revision: str | None = None,
    dtype: Dtype | None = None,
    seed: int = 0,
    copy: bool = False,
    hash_contents: bool = False,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> BuildReport:
    """The composed model as a folder that ``from_pretrained`` loads; it appears whole or not at all.

    out: left out, ``<spec>-<source>`` in the current folder. copy: give it bytes of its own instead of links to the source's
    files. hash_contents: read what is linked, too, so that every byte of it can be verified later. force: replace what stands
    there. dry_run: plan and check only. Raises SpecError, SourceError or BuildError.
    """
    from composer.weights.build import build_folder as write_folder

    loaded = _loaded(spec, overrides)
    resolved = resolve_spec(loaded, dimensions(describe_model(source, revision).trunk))
    opened = open_model(source, revision)
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
        progress=progress,
    )


def explain(
    spec: SpecLike,
    source: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    revision: str | None = None,
    sequence: int = 4096,
    backend: Backend = "torch",
    device: str = "cpu",
    dtype: str | None = None,
) -> Explanation:
    """What the spec costs on this source, from its config alone: forms, parameters, state bytes, operations, compression."""
    if sequence < 1:
        raise BuildError(f"the sequence has {sequence} tokens; it needs at least 1")
    described = describe_model(source, revision)
    resolved = resolve_spec(spec, dimensions(described.trunk), overrides)
    kind = dtype or described.trunk.dtype
    if kind not in BYTES:
        raise BuildError(f'there is no dtype "{kind}"; there are {", ".join(BYTES)}')
    return explain_resolved(resolved, sequence=sequence, backend=_backend(backend), device=device, dtype=kind)


def load(
    folder: str | os.PathLike[str], *, dtype: Dtype | None = None, device: str = "cpu", backend: Backend = "torch"
) -> ComposedForCausalLM:
    """A built model, in evaluation mode. Unlike ``from_pretrained`` it refuses a folder that lacks a parameter."""
    from composer.model.loading import load_model

    known = _backend(backend)
    model = load_model(Path(folder), dtype, device)
    model.model.backend = known
    return model


def _loaded(spec: SpecLike, overrides: Sequence[str]) -> Spec:
    if not isinstance(spec, Spec):
        return load_spec(spec, overrides)
    if overrides:
        return load_spec(spec.model_dump(mode="json", exclude_unset=True), overrides)
    return spec


def _backend(backend: str) -> Backend:
    for known in BACKENDS:
        if known == backend:
            return known
    raise BuildError(f'there is no backend "{backend}"; there are {", ".join(BACKENDS)}')


def _turned(model: PreTrainedModel, dtype: str) -> PreTrainedModel:
    import copy

    import torch

    return copy.deepcopy(model).to(getattr(torch, dtype))
