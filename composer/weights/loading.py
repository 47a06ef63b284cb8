"""Loads a built model from its folder, with all of its parameters or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from pydantic import ValidationError

from composer.devices import check_place
from composer.errors import SourceError
from composer.graph.lowering import AUTO, check_backend
from composer.model.classes import Composed, class_of, configuration_for
from composer.notices import warn_user
from composer.spec.outside import changed_parts, needed_part, recorded_parts, unregistered_kind
from composer.spec.parameters import graphs_of
from composer.spec.resolve import Resolved
from composer.trust import refuse_code, refused_by_transformers
from composer.weights.check import uncovered
from composer.weights.dimensions import dimensions
from composer.weights.finite import check_loaded
from composer.weights.saved import keep_records
from converters.adapter import check_adapter
from converters.bounded import listed, shortened
from converters.composed import ADAPTER_CONFIG, ADAPTER_KEY
from converters.errors import ConverterError
from converters.source import Source, open_source


def check_heads(source: Source) -> Resolved:
    """The heads of a built model, before memory is allocated. Raises SourceError where the folder lacks any of their parameters."""
    config = source.folder / "config.json"
    try:
        resolved = Resolved.model_validate(source.config.get("spec"))
    except ValidationError as error:
        if (kind := unregistered_kind(error)) is not None:
            raise SourceError(f"{needed_part(source.folder, kind, recorded_parts(source.folder))}.") from error
        first = error.errors()[0]
        where = shortened(".".join(str(part) for part in first["loc"]))
        raise SourceError(f"{config} has no spec of heads, at {where or 'its start'}: {first['msg']}") from error
    if resolved.dimensions != dimensions(source.trunk):
        raise SourceError(f"{config} has a spec for a model of other sizes than its own")
    if problems := uncovered(source, resolved):
        more = f"`compose verify {source.folder}` says more"
        raise SourceError(f"{source.folder} lacks parameters of its spec, or has others: {listed(problems)}; {more}")
    return resolved


def load_model(folder: Path, dtype: str | None, device: str, backend: str = AUTO) -> Composed:
    """The model in evaluation mode. dtype: None keeps that of the weights.

    Raises SourceError, BuildError for a backend that none of its parts has, and ComposerError where there is no such device.
    """
    check_place(device)
    if not (folder / "config.json").is_file():
        raise SourceError(f"{folder} has no config.json: it is not a built model; `compose build` makes one")
    try:
        source = open_source(folder)
        if (adapter := source.config.get(ADAPTER_KEY)) is not None:
            check_adapter(folder, adapter)
    except ConverterError as error:
        raise SourceError(f"{error} `compose verify {folder}` may say more") from error
    for change in changed_parts(recorded_parts(folder)):
        warn_user(f"{folder}: {change}.")
    if not source.is_composed:
        raise SourceError(f"{folder} is not a composed model; build one from it: `compose build SPEC --from {folder}`")
    refuse_code(folder, SourceError)
    if (folder / ADAPTER_CONFIG).exists():
        raise SourceError(f"{folder} has adapters at its top ({ADAPTER_CONFIG}), which are no part of it: move them elsewhere")
    check_backend(backend, graphs_of(check_heads(source)))
    keep_records()
    kind = "auto" if dtype is None else getattr(torch, dtype)
    problem = f"{folder} cannot be loaded; `compose verify {folder}` says what is wrong with it"
    try:
        with refused_by_transformers(problem, SourceError):
            config = configuration_for(str(source.config["model_type"])).from_pretrained(folder, local_files_only=True)
            answer: Any = class_of(config).from_pretrained(folder, dtype=kind, local_files_only=True, output_loading_info=True)
    except ConverterError as error:
        raise SourceError(f"{problem}: {error}") from error
    loaded, report = cast("tuple[Composed, dict[str, Any]]", answer)
    if report["missing_keys"] or report["mismatched_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise SourceError(f"{folder} lacks parameters of its spec, {missing} among them; `compose verify {folder}` says more")
    check_loaded(loaded, source)
    loaded.run_on(backend)
    torch.nn.Module.to(loaded, device)
    return loaded.eval()
