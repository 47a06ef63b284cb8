"""Loads built models, with all of their parameters or not at all, and opens language models to compare them."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from blocks.part import Closed
from composer.errors import ComposerError, SourceError
from composer.graph.lowering import AUTO, check_backend
from composer.spec.external_parts import find_changed_parts, find_unregistered_kind, needed_part_message, read_recorded_parts
from composer.spec.resolve import Resolved, graphs_of
from composer.system.devices import check_place, room
from composer.system.files import sha256
from composer.system.json_files import FileName, first_problem
from composer.system.notices import warn_user
from composer.system.trust import refuse_code, translate_transformers_errors
from composer.tasks.catalogue import TASKS
from composer.weights.config import dimensions
from composer.weights.record import read_record
from composer.weights.sources import open_model
from composer.weights.stream import check_loaded
from composer.weights.verify import find_uncovered
from converters.adapter import check_adapter
from converters.bounded import list_first
from converters.composed import ADAPTER_CONFIG, ADAPTER_KEY
from converters.errors import ConverterError
from converters.source import Source, models_inside, open_source
from converters.trunk import Dtype, Sizes

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


class OpenedFacts(Closed):
    """The identity of a model. reference: as the user wrote it. weights: SHA-256 of each file, adapters included."""

    label: str
    reference: str
    family: str
    repo_id: str | None
    revision: str | None
    commit: str | None
    config_sha256: str
    spec_hash: str | None
    """The hash of a composed model's spec; None of other models."""
    weights: dict[FileName, str]
    dtype: str


@dataclass(frozen=True)
class Opened:
    """A language model whose headers have been read. refusal: raised where there is no room for it."""

    label: str
    reference: str
    source: Source
    refusal: type[ComposerError]

    @property
    def composed(self) -> Resolved | None:
        """The heads of a built model; None of a source, which transformers runs. Raises SourceError if it lacks any."""
        return check_heads(self.source) if self.source.is_composed else None

    def load(self, dtype: Dtype | None, device: str, backend: str = AUTO) -> Any:
        """In evaluation mode: a built model with its adapters, or a source as transformers has it. Raises ``refusal``.

        backend: of a built model; ``check_backends`` has checked it.
        """
        from composer.model.mixers import serve_cpu

        folder = self.source.folder
        full = f"{self.reference} does not fit into the memory of {device}. Choose a smaller --dtype, or another --device."
        problem = f"transformers cannot open {self.reference}"
        with translate_transformers_errors(problem, self.refusal), room(lambda: self.refusal(full)):
            if self.source.is_composed:
                built = load_model(folder, dtype, device).requires_grad_(False)
                built.run_on(backend)
                return built
            import torch

            refuse_code(folder, self.refusal)
            torch_dtype = getattr(torch, dtype or self.source.trunk.dtype)
            model: Any = auto_class(self.source.trunk).from_pretrained(
                folder, dtype=torch_dtype, local_files_only=True, trust_remote_code=False
            )
            check_loaded(model, self.source)
            serve_cpu(sys.modules[type(model).__module__])
            return model.to(device).requires_grad_(False).eval()

    def facts(self, dtype: Dtype | None) -> OpenedFacts:
        """Return the model's identity. Reads all weights."""
        folder, source = self.source.folder, self.source
        files = {name: shard.file for name, shard in source.shards.items()}
        adapter = source.config.get(ADAPTER_KEY)
        if adapter is not None:
            files |= {f"{adapter}/{path.name}": path for path in sorted((folder / adapter).iterdir()) if path.is_file()}
        record = read_record(folder)
        return OpenedFacts(
            label=self.label,
            reference=self.reference,
            family=source.family.model_type,
            repo_id=source.repo_id,
            revision=source.revision,
            commit=source.commit,
            config_sha256=source.config_sha256,
            spec_hash=record.spec_hash if record is not None else None,
            weights={name: sha256(path) for name, path in files.items()},
            dtype=dtype or source.trunk.dtype,
        )


def open_models(
    models: Sequence[str | Path] | Mapping[str, str | Path], refusal: type[ComposerError], dtype: Dtype | None = None
) -> tuple[Opened, ...]:
    """Folders or models of the Hub (``owner/name``, or ``owner/name@revision``), or a mapping from labels to them.

    dtype: of weights that are quantised, and unpacked here. Raises SourceError, and ``refusal`` if one is no language model.
    """
    references = list(map(str, models.values() if isinstance(models, Mapping) else models))
    if not references:
        raise refusal("No models are named: name at least one.")
    sources = [_open(reference, refusal, dtype) for reference in references]
    labels = list(models) if isinstance(models, Mapping) else labels_of(sources)
    return tuple(Opened(*named, refusal) for named in zip(labels, references, sources, strict=True))


def check_backends(backend: str, models: Sequence[Opened]) -> None:
    """Raise BuildError for a backend that is not built in, and that no part of these models has a form on."""
    check_backend(backend, graphs_of(*(heads for model in models if (heads := model.composed) is not None)))


def labels_of(sources: Sequence[Source]) -> list[str]:
    """Return a label for each model: its name on the Hub, or its folder's, with as many parent folders as distinguish it.

    A repeated model is numbered.
    """
    paths = [source.named for source in sources]
    labels: list[str] = []
    for path in paths:
        others = [other for other in paths if other != path]
        depth = 1 if path.is_absolute() else len(path.parts)
        while depth < len(path.parts) - 1 and any(other.parts[-depth:] == path.parts[-depth:] for other in others):
            depth += 1
        label = "/".join(path.parts[-depth:])
        again = labels.count(label) + sum(other.startswith(f"{label} (") for other in labels)
        labels.append(f"{label} ({again + 1})" if again else label)
    return labels


def _open(reference: str, refusal: type[ComposerError], dtype: Dtype | None) -> Source:
    if not Path(reference).expanduser().is_dir():
        meant = f"{reference} is not a model. Separate {{}} of one option by commas, such as {{}}."
        if re.fullmatch("[0-9]+[kK]?", reference):
            raise refusal(meant.format("numbers", "--lengths 512,1k"))
        if reference in TASKS:
            raise refusal(meant.format("tasks", "--tasks passkey,recall"))
    source = open_model(reference, dtype=dtype)
    if source.trunk.labels is not None:
        raise refusal(f"{reference} is a classifier, and this is for language models.")
    record = read_record(source.folder) if source.is_composed else None
    if record is not None and record.resolved.direction == "bidirectional":
        raise refusal(f"{reference} is bidirectional: each token sees those after it, too, so it neither writes nor predicts one.")
    return source
