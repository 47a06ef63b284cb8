"""The folder of an exported model: its file, its weights, its configuration, and its origin.

The folder has a Python file with the model's attention. For a model that a class of transformers computes, it can have the files of
that class instead.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from blocks.part import Closed
from composer.drawing.picture import picture
from composer.errors import ExportError, first_line
from composer.exporting.card import card
from composer.exporting.comparison import compare, sample_of
from composer.exporting.gguf.writing import Gguf
from composer.exporting.modeling import Exported, write_file
from composer.exporting.native import Native, native_of, write_weights
from composer.model.classes import Composed
from composer.model.modeling import ComposedForCausalLM
from composer.spec.writing import to_yaml
from composer.system.files import sha256
from composer.system.json_files import Digest, FileName
from composer.system.versions import versions_of
from composer.training.finetune import merge_adapters
from composer.weights.card import PICTURE
from composer.weights.load import load_model
from composer.weights.output import check_output, check_space, copy_files, link_or_copy, whole_or_nothing, write_json, write_text
from composer.weights.record import CARD, CONFIG, RECORD, Record, files_in, read_record
from converters.bounded import MOST_RECORD, read_json_bytes, read_text, reason, within
from converters.composed import ADAPTER_KEY, EXPORT, SPEC_FILE, SPEC_KEYS, TRUNK_KEYS
from converters.hosts import LATENT
from converters.licences import LICENCE_FILES
from converters.model_types import PREFIX
from converters.source import GENERATION_CONFIG, INDEX, TOKENIZER, open_source, small_files

LICENSE = "LICENSE"
PACKAGES = ("attention-composer", "torch", "transformers")


class ExportRecord(Closed):
    """``export.json``: the origin of an export."""

    model: str
    """The folder of the model."""
    command: str
    config: dict[str, Any]
    """``config.json`` of the composed model that it was made of, with the fields of its heads."""
    files: dict[FileName, Digest]
    """SHA-256 of each file, by name."""
    versions: dict[str, str]


def read_export(folder: Path) -> ExportRecord | None:
    """Return the record of an export, or None if the folder has none. Raises ExportError if it is damaged."""
    try:
        return ExportRecord.model_validate_json(read_json_bytes(within(folder, EXPORT), MOST_RECORD))
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        raise ExportError(f"{folder / EXPORT} cannot be read, or is damaged: {first_line(error)}") from error


def export_folder(
    folder: Path,
    out: Path,
    *,
    native: bool = False,
    target: str | None = None,
    copy: bool = False,
    force: bool = False,
) -> Exported | Native:
    """Write a composed model as a folder that loads where this package is not installed.

    native: write the folder of the class of transformers that computes the model, without a Python file. target: its name, or
    None for the first class that fits. copy: copy weight files, which are hard links otherwise. force: replace an export in
    ``out``.

    The export is loaded in a process without this package, and its logits are compared with the model's. Raises ExportError,
    BuildError and SourceError; nothing is written then.
    """
    named, out = out, check_output(out, open_source(folder), force=force, check_replaceable=check_export)
    with without_adapter(folder) as merged:
        model = load_model(merged, None, "cpu")
        exported = native_of(causal(model), target) if native else text_of(model)
        source, record = open_source(merged), read_record(merged)
        own_files, converts = merged != folder, isinstance(exported, Native) and exported.weights is not None
        check_space(out, sum(shard.bytes for shard in source.shards.values()) if copy or own_files or converts else 0)
        with whole_or_nothing(out, force=force, check_replaceable=check_export) as partial:
            if isinstance(exported, Native) and exported.weights is not None:
                write_weights(exported, partial)
            else:
                for name, shard in source.shards.items():
                    link_or_copy(shard.file, partial / name, copy=copy or own_files)
            _documents(partial, merged, folder, named, model, exported, record, target)
            sample = sample_of(model)
            del model  # the export's weights take its place in memory
            (comparison,) = compare([(partial, isinstance(exported, Exported), sample)])
            if comparison.problem is not None:
                raise ExportError(
                    f"the export of {folder} was loaded without this package, and {comparison.problem}. Nothing was written. Use "
                    "the folder of the composed model, and report its spec and its family"
                )
    return exported


def text_of(model: Composed) -> Exported:
    """Return the Python file of a loaded model. Raises ExportError if the model cannot be exported."""
    return write_file(causal(model))


def causal(model: Composed) -> ComposedForCausalLM:
    """Return the model. Raises ExportError if its class, its direction or its family cannot be exported."""
    if not isinstance(model, ComposedForCausalLM):
        raise ExportError("classifiers are not exported; a causal language model was expected")
    if model.config.read_spec().direction != "causal":
        raise ExportError("bidirectional models are not exported; a causal language model was expected")
    if model.base.is_inside:
        raise ExportError(
            f"models of the family {model.config.model_type.removeprefix(PREFIX)} are not exported: they read images, and the file "
            "has code for a text decoder alone. Build from the source with --text-only, and export that"
        )
    if model.base.has_mixers:
        raise ExportError(
            f"models of the family {model.config.model_type.removeprefix(PREFIX)} are not exported: layers of the source keep "
            "states of another kind beside heads, and the file has code for heads alone. Use the folder of the composed model"
        )
    if model.config.model_type.removeprefix(PREFIX) in LATENT:
        raise ExportError(
            f"models of the family {model.config.model_type.removeprefix(PREFIX)} are not exported: only a part of each key is "
            "rotated (multi-head latent attention), and the file rotates whole keys. Use the folder of the composed model"
        )
    return model


def differences(folder: Path, record: ExportRecord) -> dict[str, str]:
    """Return the changed, missing and added files of an export, by name, with what is wrong."""
    problems = {}
    for name, digest in record.files.items():
        try:
            if sha256(within(folder, name)) != digest:
                problems[name] = "its SHA-256 is another one"
        except FileNotFoundError:
            problems[name] = "it is missing"
        except OSError as error:
            problems[name] = reason(error)
    strangers = [name for name in files_in(folder) if name not in (*record.files, EXPORT) and not name.startswith("__pycache__/")]
    return problems | dict.fromkeys(strangers, "the export did not write it")


def check_export(out: Path) -> None:
    """Raise ExportError if a folder is not an export, or was changed: only unchanged exports are replaced."""
    record = read_export(out)
    if record is None:
        raise ExportError(f"{out} holds no {EXPORT}, so no export wrote it, and --force does not replace it.")
    if changed := differences(out, record):
        raise ExportError(
            f"{out} holds files that were changed or added since the export ({', '.join(list(changed)[:3])}), and --force does not "
            "replace them. Move them, or choose another folder."
        )


@contextmanager
def without_adapter(folder: Path) -> Iterator[Path]:
    """Yield the folder, or a temporary one with its adapters merged into the weights."""
    if open_source(folder).config.get(ADAPTER_KEY) is None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="composer-export-") as scratch:
        merged = Path(scratch) / "merged"
        merge_adapters(folder, merged)
        yield merged


def _documents(
    partial: Path,
    merged: Path,
    folder: Path,
    out: Path,
    model: Any,
    exported: Exported | Native,
    record: Record | None,
    target: str | None,
) -> None:
    """Write all files but the weights."""
    is_native = isinstance(exported, Native)
    write_json(partial / CONFIG, exported.config if isinstance(exported, Native) else configuration(model, exported))
    if isinstance(exported, Exported):
        write_text(partial / f"{exported.file}.py", exported.text)
        write_text(partial / f"{exported.file}.{LICENSE}", license_text())
    has_own_index = isinstance(exported, Native) and exported.weights is not None
    beside = (*TOKENIZER, GENERATION_CONFIG, *([] if has_own_index else [INDEX]))
    copy_files(merged, small_files(merged, beside), partial)
    if record is not None and not is_native:  # a class of transformers can be a source like any other, which has no record
        copy_files(merged, (RECORD,), partial)
    flag = f"--native --for {target} " if target else "--native " if is_native else ""
    write_origin(
        partial, merged, folder, exported, record, f"compose export {shlex.quote(str(folder))} {flag}-o {shlex.quote(str(out))}"
    )


def write_origin(
    partial: Path, merged: Path, folder: Path, exported: Exported | Native | Gguf, record: Record | None, command: str
) -> None:
    """Write the terms, the spec, the picture, the card and, at last, the record of an export."""
    copy_files(merged, small_files(merged, LICENCE_FILES), partial)
    if record is not None:
        write_text(partial / SPEC_FILE, to_yaml(record.spec))
        write_text(partial / PICTURE, picture(record.resolved, dtype=record.plan.dtype).svg)
    write_text(partial / CARD, card(exported, record, command))
    files = {name: sha256(path) for name, path in files_in(partial).items()}
    config, versions = dict(open_source(merged).config), versions_of(PACKAGES)
    export = ExportRecord(model=str(folder.resolve()), command=command, config=config, files=files, versions=versions)
    write_text(partial / EXPORT, export.model_dump_json(indent=2) + "\n")


def configuration(model: Any, exported: Exported) -> dict[str, Any]:
    """Return ``config.json`` of the export: the host's own fields, the heads of each layer, and the classes of the file."""
    left_out = {*SPEC_KEYS, *TRUNK_KEYS, ADAPTER_KEY, "auto_map"}
    left_out |= {"_name_or_path", "transformers_version", "model_type", "architectures"}
    config = {name: value for name, value in model.config.to_dict().items() if name not in left_out}
    classes = {"AutoConfig": "Config", "AutoModel": "Model", "AutoModelForCausalLM": "ForCausalLM"}
    return {
        "architectures": [f"{exported.name}ForCausalLM"],
        "auto_map": {auto: f"{exported.file}.{exported.name}{suffix}" for auto, suffix in classes.items()},
        "model_type": exported.model_type,
        **config,
        **({"heads": [dict(names) for names in exported.heads]} if exported.heads else {}),
        **({"key_heads": [dict(numbers) for numbers in exported.key_heads]} if exported.key_heads else {}),
    }


def license_text() -> str:
    """Return the licence of this package, which is that of the exported file."""
    try:
        stored = distribution("attention-composer").read_text(f"licenses/{LICENSE}")
    except PackageNotFoundError:
        stored = None
    return stored or read_text(Path(__file__).parents[2] / LICENSE, MOST_RECORD)
