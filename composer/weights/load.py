"""Loads built models, with all of their parameters or not at all."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from composer.errors import SourceError
from composer.graph.lowering import AUTO, check_backend
from composer.spec.external_parts import find_changed_parts, find_unregistered_kind, needed_part_message, read_recorded_parts
from composer.spec.resolve import Resolved, graphs_of
from composer.system.devices import check_place
from composer.system.json_files import first_problem
from composer.system.notices import warn_user
from composer.system.trust import refuse_code, translate_transformers_errors
from composer.weights.config import dimensions
from composer.weights.stream import check_loaded
from composer.weights.verify import find_uncovered
from converters.adapter import check_adapter
from converters.bounded import list_first
from converters.composed import ADAPTER_CONFIG, ADAPTER_KEY
from converters.errors import ConverterError
from converters.source import Source, models_inside, open_source
from converters.trunk import Sizes

if TYPE_CHECKING:
    from composer.model.classes import Composed


def check_heads(source: Source) -> Resolved:
    """Return the heads of a built model, before memory is allocated. Raises SourceError if any of their parameters is missing."""
    config = source.folder / "config.json"
    try:
        resolved = Resolved.model_validate(source.config.get("spec"))
    except ValidationError as error:
        if (kind := find_unregistered_kind(error)) is not None:
            raise SourceError(f"{needed_part_message(source.folder, kind, read_recorded_parts(source.folder))}.") from error
        raise SourceError(f"{config} has no spec of heads, at {first_problem(error)}") from error
    if resolved.dimensions != dimensions(source.trunk):
        raise SourceError(f"{config} has a spec for a model of other sizes than its own")
    if problems := find_uncovered(source, resolved):
        more = f"run `compose verify {shlex.quote(str(source.folder))}` for details"
        raise SourceError(f"{source.folder} lacks parameters of its spec, or has others: {list_first(problems)}; {more}")
    return resolved


def load_model(folder: Path, dtype: str | None, device: str, backend: str = AUTO) -> Composed:
    """Return the model of a folder in evaluation mode, with all of its parameters. dtype: None keeps that of the weights.

    Raises SourceError, BuildError for a backend that none of its parts has, and ComposerError if there is no such device.
    """
    import torch

    from composer.model.classes import class_of, configuration_for
    from composer.weights.save import keep_records

    check_place(device)
    if not (folder / "config.json").is_file():
        raise SourceError(
            f"{folder} has no config.json: it is not a built model; `compose build` makes one.{models_inside(folder)}"
        )
    try:
        source = open_source(folder)
        if (adapter := source.config.get(ADAPTER_KEY)) is not None:
            check_adapter(folder, adapter)
    except ConverterError as error:
        raise SourceError(f"{error} Run `compose verify {shlex.quote(str(folder))}` for details") from error
    for change in find_changed_parts(read_recorded_parts(folder)):
        warn_user(f"{folder}: {change}.")
    if not source.is_composed:
        raise SourceError(
            f"{folder} is not a composed model; build one from it: `compose build SPEC --from {shlex.quote(str(folder))}`"
        )
    refuse_code(folder, SourceError)
    if (folder / ADAPTER_CONFIG).exists():
        raise SourceError(f"{folder} has adapters at its top ({ADAPTER_CONFIG}), which are no part of it: move them elsewhere")
    check_backend(backend, graphs_of(check_heads(source)))
    keep_records()
    kind = "auto" if dtype is None else getattr(torch, dtype)
    problem = f"{folder} cannot be loaded; run `compose verify {shlex.quote(str(folder))}` for the cause"
    try:
        with translate_transformers_errors(problem, SourceError):
            config = configuration_for(str(source.config["model_type"])).from_pretrained(folder, local_files_only=True)
            loading: Any = class_of(config).from_pretrained(folder, dtype=kind, local_files_only=True, output_loading_info=True)
    except ConverterError as error:
        raise SourceError(f"{problem}: {error}") from error
    loaded, report = cast("tuple[Composed, dict[str, Any]]", loading)
    if report["missing_keys"] or report["mismatched_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise SourceError(
            f"{folder} lacks parameters of its spec, {missing} among them. "
            f"Run `compose verify {shlex.quote(str(folder))}` for details"
        )
    check_loaded(loaded, source)
    loaded.run_on(backend)
    torch.nn.Module.to(loaded, device)
    return loaded.eval()


def auto_class(trunk: Sizes) -> Any:
    """Return transformers' Auto class for the models of a source."""
    import transformers

    if trunk.labels is not None:
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForCausalLM if trunk.decoder is None else transformers.AutoModelForImageTextToText
