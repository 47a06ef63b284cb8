"""Models that are compared: named, opened, told apart, and loaded only when it is their turn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.devices import ran_out_of_memory
from composer.errors import EvaluationError
from composer.evaluation.report import ModelFacts, OpenedFacts
from composer.graph.graph import graphs_of
from composer.graph.lowering import AUTO, check_backend
from composer.trust import load_tokenizer, refuse_code
from composer.weights.contents import sha256
from composer.weights.record import read_record
from composer.weights.sources import open_model
from converters.composed import ADAPTER_KEY
from converters.hub import cached_sha256
from converters.source import TOKENIZER, Source, small_files
from converters.trunk import Dtype

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from composer.spec.resolve import Resolved

COMPOSED = "composed"


@dataclass(frozen=True)
class Opened:
    """A language model whose headers have been read."""

    label: str
    reference: str
    source: Source

    @property
    def composed(self) -> Resolved | None:
        """The heads of a built model; None of a source, which transformers runs. Raises SourceError where it lacks any."""
        from composer.model.loading import check_heads

        return check_heads(self.source) if self.source.family.model_type == COMPOSED else None

    def load(self, dtype: Dtype | None, device: str, backend: str = AUTO) -> Any:
        """In evaluation mode: a built model with its adapters, or a source as transformers has it. Raises EvaluationError.

        backend: of a built model, looked at by ``check_backends``.
        """
        from transformers import AutoModelForCausalLM

        from composer.api import load

        folder = self.source.folder
        try:
            if self.source.family.model_type == COMPOSED:
                built = load(folder, dtype=dtype, device=device).requires_grad_(False)
                built.run_on(backend)
                return built
            import torch

            refuse_code(folder, EvaluationError)
            kind = getattr(torch, dtype or self.source.trunk.dtype)
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, local_files_only=True, trust_remote_code=False)
            return model.to(device).requires_grad_(False).eval()
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
            raise EvaluationError(
                f"{self.reference} does not fit into the memory of {device}. Take a smaller --dtype, or another --device."
            ) from error

    def facts(self, dtype: Dtype | None) -> OpenedFacts:
        """What tells it from others. Reads all weights whose hash nobody has noted."""
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
            weights={name: cached_sha256(path) or sha256(path) for name, path in files.items()},
            dtype=dtype or source.trunk.dtype,
        )


@dataclass(frozen=True)
class Subject(Opened):
    """A model to evaluate, and its tokenizer."""

    tokenizer: PreTrainedTokenizerBase

    def facts(self, dtype: Dtype | None) -> ModelFacts:
        """The same with its tokenizer's hash."""
        folder = self.source.folder
        return ModelFacts(**dict(super().facts(dtype)), tokenizer_sha256=_hash_of(folder, small_files(folder, TOKENIZER)))


def open_models(models: Sequence[str | Path] | Mapping[str, str | Path]) -> tuple[Opened, ...]:
    """Folders or models of the Hub (``owner/name``, or ``owner/name@revision``), or such by a label of one's own.

    Raises SourceError, and EvaluationError where one is no language model.
    """
    references = [str(one) for one in (models.values() if isinstance(models, Mapping) else models)]
    if not references:
        raise EvaluationError("No models are named: name at least one.")
    sources = [_open(reference) for reference in references]
    labels = list(models) if isinstance(models, Mapping) else labels_of(sources)
    return tuple(Opened(label, reference, source) for label, reference, source in zip(labels, references, sources, strict=True))


def open_subjects(models: Sequence[str | Path] | Mapping[str, str | Path]) -> tuple[Subject, ...]:
    """The same with their tokenizers. Raises EvaluationError where one has none, too."""
    return tuple(
        Subject(one.label, one.reference, one.source, _tokenizer(one.reference, one.source)) for one in open_models(models)
    )


def check_backends(backend: str, models: Sequence[Opened]) -> None:
    """Whether it is built in, or any part of these models has a form on it. Raises BuildError."""
    check_backend(backend, graphs_of(*(heads for one in models if (heads := one.composed) is not None)))


def labels_of(sources: Sequence[Source]) -> list[str]:
    """Each model's name: that of its folder with as many of those above as tell it from the others, or the Hub's.

    Where one is named again, it is numbered.
    """
    paths = [Path(source.repo_id) if source.repo_id else source.folder for source in sources]
    labels: list[str] = []
    for path in paths:
        others = [other for other in paths if other != path]
        depth = 1 if path.is_absolute() else len(path.parts)
        while depth < len(path.parts) - 1 and any(other.parts[-depth:] == path.parts[-depth:] for other in others):
            depth += 1
        label = "/".join(path.parts[-depth:])
        again = labels.count(label) + sum(one.startswith(f"{label} (") for one in labels)
        labels.append(f"{label} ({again + 1})" if again else label)
    return labels


def _open(reference: str) -> Source:
    name, found, revision = reference.rpartition("@")
    here = Path(reference).expanduser().is_dir()
    source = open_model(name, revision) if found and not here else open_model(reference)
    if source.trunk.labels is not None:
        raise EvaluationError(f"{reference} is a classifier, and this is for language models.")
    record = read_record(source.folder) if source.family.model_type == COMPOSED else None
    if record is not None and record.resolved.direction == "bidirectional":
        raise EvaluationError(
            f"{reference} is bidirectional: each token sees those after it, too, so it neither writes nor predicts one."
        )
    return source


def _tokenizer(reference: str, source: Source) -> PreTrainedTokenizerBase:
    if not small_files(source.folder, TOKENIZER):
        raise EvaluationError(f"{reference} has no tokenizer, so it can read no task: copy one into its folder.")
    return load_tokenizer(source.folder, EvaluationError, f"{reference} has no tokenizer that transformers can read")


def _hash_of(folder: Path, names: Sequence[str]) -> str:
    """One hash of several files, their names included."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name} {sha256(folder / name)}\n".encode())
    return digest.hexdigest()
