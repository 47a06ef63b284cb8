"""Opens language models, built or not, to compare them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blocks.part import Closed
from composer.errors import ComposerError
from composer.graph.lowering import AUTO, check_backend
from composer.spec.resolve import Resolved, graphs_of
from composer.system.devices import room
from composer.system.files import sha256
from composer.system.json_files import FileName
from composer.system.trust import refuse_code, translate_transformers_errors
from composer.tasks.catalogue import TASKS
from composer.weights.load import auto_class, check_heads, load_model
from composer.weights.record import read_record
from composer.weights.sources import open_model
from composer.weights.stream import check_loaded
from converters.composed import ADAPTER_KEY
from converters.source import Source
from converters.trunk import Dtype


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
