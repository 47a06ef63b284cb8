"""Writes a model under another name: its weights are linked, its record, card and config written anew."""

from __future__ import annotations

from pathlib import Path

from composer.errors import BuildError
from composer.spec.document import Spec
from composer.spec.resolve import Resolved
from composer.weights.build import complete_folder
from composer.weights.card import PICTURE
from composer.weights.config import config_dict, recorded_trunk
from composer.weights.output import check_output, copy_file, link_or_copy, whole_or_nothing
from composer.weights.record import RECORD, Record, read_record, stored_file
from composer.weights.side_files import CARD, CONFIG
from converters.composed import ADAPTER_KEY
from converters.source import INDEX, open_source


def write_renamed(model: Path, out: Path, spec: Spec, resolved: Resolved) -> Path:
    """Writes the model of the folder ``model`` to ``out``, with the name of ``spec``, which means the same, in its record and card.
    A build that stands at ``out`` is replaced. Raises BuildError.

    resolved: the spec on the model's source. Where it calls the heads by other names than the model does, the model's stay.
    """
    record, config = read_record(model), open_source(model).config
    if record is None or record.resolved.hash != resolved.hash:
        raise BuildError(f"{model} is no model of {spec.name}.")
    same = (resolved.heads.keys(), resolved.layers) == (record.resolved.heads.keys(), record.resolved.layers)
    if same:
        named = {"name": resolved.name, "paper": resolved.paper, "recipe": resolved.recipe}
        update = {"resolved": record.resolved.model_copy(update=named), "spec": spec.model_dump(mode="json", exclude_unset=True)}
        record = record.model_copy(update=update)
    if _is_written(out, record):
        return out
    target = check_output(out, None, force=out.exists())
    with whole_or_nothing(target, force=out.exists()) as folder:
        files = {}
        for path in sorted(path for path in model.rglob("*") if path.is_file()):
            name = path.relative_to(model).as_posix()
            if name in (CARD, CONFIG, PICTURE, RECORD):
                continue
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name not in record.files:
                copy_file(path, folder / name)
                continue
            how, known = link_or_copy(path, folder / name), record.files[name]
            placed = stored_file(folder / name, known.how, origin=None, contents=known.sha256)
            files[name] = placed.model_copy(update={"how": known.how if how == "linked" else how, "origin": known.origin})
        whole = config_dict(recorded_trunk(record.trunk), record.resolved, record.plan.dtype)
        if config.get(ADAPTER_KEY) is not None:
            whole[ADAPTER_KEY] = config[ADAPTER_KEY]
        complete_folder(folder, whole, record.model_copy(update={"files": files}), target.name)
    return out


def _is_written(out: Path, record: Record) -> bool:
    """Whether a folder has this model under this name."""
    if not out.is_dir():
        return False
    there = read_record(out)
    if there is None or (there.spec, there.resolved, there.training) != (record.spec, record.resolved, record.training):
        return False
    return {name: file.header_sha256 for name, file in there.files.items()} == {
        name: file.header_sha256 for name, file in record.files.items()
    } and all((out / name).is_file() for name in (INDEX, CARD, *there.files))
