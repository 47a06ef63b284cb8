"""The folder of an exported model: its file, its weights, its configuration, and where it comes from."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from blocks.part import Closed
from composer.drawing.picture import picture
from composer.errors import ExportError
from composer.escape import escape_markdown, markdown_block, markdown_code
from composer.exporting.modeling import Exported, written
from composer.files import sha256
from composer.model.classes import Composed
from composer.model.modeling import ComposedForCausalLM
from composer.spec.writing import to_yaml
from composer.training.finetune import merge_adapters
from composer.versions import versions_of
from composer.weights.card import PICTURE, datasets_of, lineage
from composer.weights.load import load_model
from composer.weights.output import check_output, check_space, link_or_copy, whole_or_nothing, write_json, write_text
from composer.weights.record import CARD, CONFIG, RECORD, Record, read_record
from converters.bounded import MOST_RECORD, read_bytes, read_text
from converters.composed import ADAPTER_KEY, EXPORT, SPEC_FILE, SPEC_KEYS, TRUNK_KEYS
from converters.model_types import PREFIX
from converters.source import GENERATION_CONFIG, INDEX, TOKENIZER, open_source

LICENSE = "LICENSE"
PACKAGES = ("attention-composer", "torch", "transformers")


class ExportRecord(Closed):
    """``export.json``: where an export comes from."""

    model: str
    """The folder of the model."""
    command: str
    config: dict[str, Any]
    """``config.json`` of the composed model that it was made of, which says what its heads are."""
    files: dict[str, str]
    """SHA-256 of each file, by name."""
    versions: dict[str, str]


def read_export(folder: Path) -> ExportRecord | None:
    """The record of an export; None where the folder has none. Raises ExportError where it is damaged."""
    try:
        return ExportRecord.model_validate_json(read_bytes(folder / EXPORT, MOST_RECORD))
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        raise ExportError(f"{folder / EXPORT} cannot be read, or is damaged: {str(error).splitlines()[0]}") from error


def export_folder(folder: Path, out: Path, *, copy: bool = False, force: bool = False) -> Exported:
    """Write a composed model as a folder that loads where this package is not installed.

    copy: copy weight files, where they would be hard links otherwise. force: replace an export that stands there.
    Raises ExportError, BuildError and SourceError, with nothing written.
    """
    out = check_output(out, open_source(folder), force=force, check_replaceable=_check_export)
    with without_adapter(folder) as merged:
        model = load_model(merged, None, "cpu")
        exported = text_of(model)
        source, record = open_source(merged), read_record(merged)
        own_files = merged != folder
        check_space(out, sum(shard.bytes for shard in source.shards.values()) if copy or own_files else 0)
        with whole_or_nothing(out, force=force, check_replaceable=_check_export) as partial:
            for name, shard in source.shards.items():
                link_or_copy(shard.file, partial / name, copy=copy or own_files)
            _documents(partial, merged, folder, out, model, exported, record)
    return exported


def text_of(model: Composed) -> Exported:
    """The file of a loaded model. Raises ExportError for what is no causal language model."""
    if not isinstance(model, ComposedForCausalLM):
        raise ExportError("classifiers are not exported; a causal language model was expected")
    if model.config.resolved().direction != "causal":
        raise ExportError("bidirectional models are not exported; a causal language model was expected")
    if model.base.has_mixers:
        raise ExportError(
            f"models of the family {model.config.model_type.removeprefix(PREFIX)} are not exported: layers of the source keep "
            "states of another kind beside heads, and the file has code for heads alone. Use the folder of the composed model"
        )
    return written(model)


def differences(folder: Path, record: ExportRecord) -> dict[str, str]:
    """What is wrong with the files of an export, by their names: changed, missing or added ones."""
    found = {}
    for name, digest in record.files.items():
        if not (folder / name).is_file():
            found[name] = "it is missing"
        elif sha256(folder / name) != digest:
            found[name] = "its SHA-256 is another one"
    strangers = {path.name for path in folder.iterdir()} - {*record.files, EXPORT, "__pycache__"}
    return found | dict.fromkeys(sorted(strangers), "the export did not write it")


def _check_export(out: Path) -> None:
    """Raises ExportError for a folder that is no export, or was changed since: only exports are replaced."""
    record = read_export(out)
    if record is None:
        raise ExportError(f"{out} holds no {EXPORT}, so no export wrote it, and --force does not replace it.")
    if found := differences(out, record):
        raise ExportError(
            f"{out} holds files that were changed or added since the export ({', '.join(list(found)[:3])}), and --force does not "
            "replace them. Move them, or choose another folder."
        )


@contextmanager
def without_adapter(folder: Path) -> Iterator[Path]:
    """The folder, or a temporary one with its adapters merged into the weights."""
    if open_source(folder).config.get(ADAPTER_KEY) is None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="composer-export-") as scratch:
        merged = Path(scratch) / "merged"
        merge_adapters(folder, merged)
        yield merged


def _documents(partial: Path, merged: Path, folder: Path, out: Path, model: Any, exported: Exported, record: Record | None) -> None:
    """Write all files but the weights."""
    write_text(partial / f"{exported.file}.py", exported.text)
    write_json(partial / CONFIG, configuration(model, exported))
    for path in sorted(merged.iterdir()):
        if path.name in (GENERATION_CONFIG, INDEX) or any(path.match(pattern) for pattern in TOKENIZER):
            shutil.copyfile(path, partial / path.name)
    if record is not None:
        shutil.copyfile(merged / RECORD, partial / RECORD)
        write_text(partial / SPEC_FILE, to_yaml(record.spec))
        write_text(partial / PICTURE, picture(record.resolved, dtype=record.plan.dtype).svg)
    write_text(partial / LICENSE, license_text())
    command = f"compose export {shlex.quote(str(folder))} -o {shlex.quote(out.name)}"
    write_text(partial / CARD, card(exported, record, command))
    files = {path.name: sha256(path) for path in sorted(partial.iterdir())}
    config, versions = dict(open_source(merged).config), versions_of(PACKAGES)
    export = ExportRecord(model=str(folder.resolve()), command=command, config=config, files=files, versions=versions)
    write_text(partial / EXPORT, export.model_dump_json(indent=2) + "\n")


def configuration(model: Any, exported: Exported) -> dict[str, Any]:
    """``config.json`` of the export: the host's own fields, the heads of each layer, and the classes of the file."""
    left_out = {*SPEC_KEYS, *TRUNK_KEYS, ADAPTER_KEY, "_name_or_path", "transformers_version", "model_type", "architectures"}
    own = {name: value for name, value in model.config.to_dict().items() if name not in left_out}
    classes = {"AutoConfig": "Config", "AutoModel": "Model", "AutoModelForCausalLM": "ForCausalLM"}
    return {
        "architectures": [f"{exported.name}ForCausalLM"],
        "auto_map": {auto: f"{exported.file}.{exported.name}{suffix}" for auto, suffix in classes.items()},
        "model_type": exported.model_type,
        **own,
        "heads": [dict(names) for names in exported.heads],
    }


def license_text() -> str:
    """The licence of this package, under which the exported file stands."""
    try:
        stored = distribution("attention-composer").read_text(f"licenses/{LICENSE}")
    except PackageNotFoundError:
        stored = None
    return stored or read_text(Path(__file__).parents[2] / LICENSE, MOST_RECORD)


def card(exported: Exported, record: Record | None, command: str) -> str:
    """``README.md``, with the Hub's front matter."""
    source = None if record is None else record.source
    front: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["linear-attention", "custom_code"],
    }
    if source is not None and source.repo_id:
        front["base_model"] = source.repo_id
    if record is not None and (datasets := datasets_of(record)):
        front["datasets"] = datasets
    load = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'model = AutoModelForCausalLM.from_pretrained("FOLDER", trust_remote_code=True, dtype="auto")\n'
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER", trust_remote_code=True)'
    )
    file = markdown_code(f"{exported.file}.py")
    slow = "" if exported.one_by_one is None else "\nIts heads take one token after the other, so that long prompts take long.\n"
    spec = "" if record is None else f"\n{lineage(record)}\n## Spec\n\n{markdown_block(to_yaml(record.spec), 'yaml')}\n"
    drawn = "" if record is None else f"\n![The graph of each head, and the map of layers]({PICTURE})\n"
    paper = "" if record is None or not record.resolved.paper else f" Its heads follow {escape_markdown(record.resolved.paper)}."
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {escape_markdown(exported.name)}

A {escape_markdown(exported.host_type)} model whose attention is composed of linear-attention parts.{paper} All of its attention
is in {file}, which needs PyTorch and transformers alone.
{drawn}{slow}
{markdown_block(load, "python")}

Written by {markdown_code(command)}. {markdown_code(EXPORT)} has the SHA-256 of all files. {markdown_code(RECORD)} says how the
model was built and trained.
{spec}"""
