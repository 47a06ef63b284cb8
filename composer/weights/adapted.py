"""LoRA that PEFT saved in a folder, merged with the model that it belongs to: the folder's own weights, or those that it names."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from composer.errors import SourceError
from composer.system.notices import inform
from composer.system.trust import CONFIG, code_in_adapter, refuse_code, translate_transformers_errors
from composer.weights.output import copy_files, write_json
from composer.weights.stream import check_loaded
from converters.adapter import read_foreign_adapter
from converters.bounded import brief, list_first, read_object_within, within
from converters.composed import ADAPTER_CONFIG, ADAPTER_KEY, ADAPTER_WEIGHTS
from converters.licences import LicenceFields, read_card_licence
from converters.model_types import is_composed_type
from converters.quantised import without_quantisation
from converters.source import (
    BROUGHT_ALONG,
    GENERATION_CONFIG,
    TOKENIZER,
    Described,
    Source,
    describe,
    describe_config,
    open_source,
    small_files,
)
from converters.trunk import Dtype, dtype_name

BASE, REVISION = "base_model_name_or_path", "revision"
"""The keys of PEFT's config for the model that adapters belong to."""
SHARD_SIZE = "5GB"
"""The prefix that PEFT writes before names of tensors."""
OpenBase = Callable[[str, str | None], Source]


@dataclass(frozen=True)
class Adapted:
    """The adapters in a folder. config: the contents of ``adapter_config.json``. open_base: opens the model that it names."""

    path: Path
    config: Mapping[str, Any]
    open_base: OpenBase

    @property
    def quantisation(self) -> str:
        """What is merged, in words, for messages and records."""
        return "weights with LoRA"

    @cached_property
    def base(self) -> Source:
        """The model that the adapters belong to. Raises SourceError."""
        if os.path.lexists(self.path / CONFIG):
            return open_source(self.path)
        named, revision = self.config.get(BASE), self.config.get(REVISION)
        base_text = f"{self.path / ADAPTER_CONFIG} names the model {brief(named)} ({BASE})"
        if not isinstance(named, str) or not named or not isinstance(revision, str | None):
            raise SourceError(f"{base_text}; expected a folder or a model of the Hub. Name the model there.")
        if os.path.lexists(Path(named).expanduser() / ADAPTER_CONFIG):
            raise SourceError(f"{base_text}, which has adapters, too. To merge those first: {_LINES}")
        try:
            source = self.open_base(named, revision)
        except SourceError as error:
            raise SourceError(f"{base_text}, which cannot be opened: {error} Set {BASE} to the model's path.") from error
        if source.config.get(ADAPTER_KEY) is not None:
            raise SourceError(f"{base_text}, which has adapters, too. Merge those first: compose merge {shlex.quote(named)}")
        _announce(self.path, source.folder)
        return source

    @property
    def licence(self) -> LicenceFields:
        return read_card_licence(self.base.folder) if self.base.unpacked is None else self.base.unpacked.licence

    @property
    def dtype(self) -> Dtype:
        """The type of most of the model's tensors."""
        [(dtype, _)] = Counter(tensor.dtype for tensor in self.base.tensors.values()).most_common(1)
        return dtype_name(dtype)

    def files(self) -> dict[str, Path]:
        """Return the files that decide the merged model, by name. Raises SourceError if the adapters have no weights."""
        if not os.path.lexists(self.path / ADAPTER_WEIGHTS):
            raise SourceError(f"{self.path} has {ADAPTER_CONFIG}, and no {ADAPTER_WEIGHTS}. Only safetensors are read.")
        base = self.base
        names = (CONFIG, *base.small_files, *base.shards)
        inside = {name: self.path / name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, *small_files(self.path, TOKENIZER))}
        prefix = "" if base.folder == self.path else f"{base.folder.name}/"
        return {f"{prefix}{name}": base.folder / name for name in names} | inside

    def describe(self, dtype: Dtype) -> Described:
        """Describe the model, with weights of ``dtype``, from its config. A composed model keeps its own."""
        if self.is_composed:
            return describe(self.base.folder)
        config = without_quantisation(self.base.config, dtype)
        return describe_config(self.base.folder / CONFIG, config, json.dumps(config).encode())

    @property
    def is_composed(self) -> bool:
        """Whether the model was built by this project."""
        return self.base.is_composed

    def write(self, folder: Path, dtype: Dtype) -> None:
        """Write the merged model into an empty folder. dtype: of a model that is not composed. Raises SourceError and
        ConverterError."""
        base, fields = self.base, read_foreign_adapter(self.path)
        refuse_code(self.path, SourceError)
        model = _load(base, dtype)
        with translate_transformers_errors(f"PEFT cannot merge the adapters of {self.path} with {base.folder}", SourceError):
            _merge(model, fields, self.path).save_pretrained(folder, max_shard_size=SHARD_SIZE)
        if not base.is_composed:  # what transformers writes beside the weights of a composed model is that model's own
            for name in (CONFIG, GENERATION_CONFIG):
                (folder / name).unlink(missing_ok=True)
            write_json(folder / CONFIG, without_quantisation(base.config, dtype))
        tokenizer = small_files(self.path, TOKENIZER)
        copy_files(self.path, tokenizer, folder)
        patterns = tuple(pattern for pattern in BROUGHT_ALONG if not tokenizer or pattern not in TOKENIZER)
        copy_files(base.folder, [name for name in small_files(base.folder, patterns) if not (folder / name).exists()], folder)


def _load(base: Source, dtype: Dtype) -> Any:
    """Return the model without the adapters in its folder. dtype: of a model that is not composed. Raises SourceError."""
    import torch

    from composer.weights.load import auto_class, load_model

    if base.is_composed:
        return load_model(base.folder, None, "cpu")
    refuse_code(base.folder, SourceError)
    with tempfile.TemporaryDirectory(prefix="composer-") as links:
        for path in base.folder.iterdir():
            if path.name not in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):  # transformers would add them
                (Path(links) / path.name).symlink_to(path.resolve())
        load_options: Any = {"pretrained_model_name_or_path": links, "local_files_only": True, "trust_remote_code": False}
        with translate_transformers_errors(f"transformers cannot open {base.folder}", SourceError):
            model: Any = auto_class(base.trunk).from_pretrained(**load_options, dtype=getattr(torch, dtype))
    check_loaded(model, base)
    return model


def find_adapted(path: Path, open_base: OpenBase) -> Adapted | None:
    """Return the adapters in a folder; None where it has none, and for a composed model, whose own are named in its config.

    open_base: opens a model by its name and revision. Raises SourceError for adapters that are not LoRA, or need code.
    """
    if (
        not path.is_dir()
        or not os.path.lexists(path / ADAPTER_CONFIG)
        or is_composed_type(read_object_within(path, CONFIG).get("model_type"))
    ):
        return None
    config = read_object_within(path, ADAPTER_CONFIG)
    if problem := code_in_adapter(config):
        raise SourceError(f"{path / ADAPTER_CONFIG} {problem}. To merge adapters that you trust: {_LINES}")
    return Adapted(path, config, open_base)


_LINES = (
    "base = AutoModelForCausalLM.from_pretrained(BASE); "
    "PeftModel.from_pretrained(base, FOLDER).merge_and_unload().save_pretrained(NEW_FOLDER)."
)


@cache
def _announce(adapters: Path, base: Path) -> None:
    inform(f"{adapters} has adapters for {base}. Both are opened, merged.")


def _merge(model: Any, fields: Mapping[str, Any], adapters: Path) -> Any:
    """Return the model with adapters in its weights. Raises SourceError for tensors that have no place in it, or the reverse."""
    from peft import LoraConfig, PeftModel, set_peft_model_state_dict
    from peft.tuners.tuners_utils import BaseTunerLayer
    from safetensors.torch import load_file

    wrapped = PeftModel(model, LoraConfig(**fields, inference_mode=True))
    if getattr(model.config, "tie_word_embeddings", False):
        ends = {model.get_input_embeddings(), model.get_output_embeddings()}
        if any(isinstance(module, BaseTunerLayer) for module in ends):
            raise SourceError(f"{adapters} changes an embedding that is tied to the output, so it cannot be merged.")
    tensors = load_file(within(adapters, ADAPTER_WEIGHTS))
    report: Any = set_peft_model_state_dict(wrapped, tensors)
    missing = [name for name in report.missing_keys if ".lora_" in name or ".modules_to_save." in name]
    if unfit := [*report.unexpected_keys, *missing]:
        raise SourceError(f"{adapters} and the model have different adapters: {list_first(unfit)}")
    return wrapped.merge_and_unload(safe_merge=True)
