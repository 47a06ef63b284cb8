"""Checks an exported folder against its record, and its logits against those of its model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from composer.errors import ComposerError, ExportError, first_line
from composer.exporting.comparison import Comparison, compare, sample_of
from composer.exporting.folder import ExportRecord, configuration, differences, read_export, text_of, without_adapter
from composer.exporting.gguf.folder import compare_gguf
from composer.exporting.gguf.types import INSTALL
from composer.system.files import sha256
from composer.weights.load import load_model
from composer.weights.record import CONFIG
from composer.weights.verify import Check, VerifyReport, make_check
from converters.bounded import MOST_CONFIG, read_json
from converters.composed import EXPORT
from converters.gguf import is_gguf


def verify_export(folder: Path) -> VerifyReport:
    """Check the hashes of all files, the Python file against the text that the model has today, and logits against the model's.

    The file runs only if it is the text that ``compose export`` writes. Raises ExportError if there is no record.
    """
    record = read_export(folder)
    if record is None:
        raise ExportError(f"{folder} has no {EXPORT}; expected a folder that `compose export` has written")
    checks = list(_contents(folder, record))
    is_intact = not any(check.outcome == "failed" for check in checks)
    checks += (
        _against_model(folder, record) if is_intact else [make_check("logits", CONFIG, "unknown", "files differ from the record")]
    )
    return VerifyReport(folder=folder, record_sha256=sha256(folder / EXPORT), checks=tuple(checks))


def _contents(folder: Path, record: ExportRecord) -> Iterator[Check]:
    problems = differences(folder, record)
    for name in dict.fromkeys((*record.files, *problems)):
        if name in problems:
            yield make_check("contents", name, "failed", problems[name])
        else:
            yield make_check("contents", name, "passed", f"SHA-256 {record.files[name]}")


def _against_model(folder: Path, record: ExportRecord) -> Iterator[Check]:
    """Check the file and the logits against those of the model's folder, if it still exists."""
    source = Path(record.model)
    if not (source / CONFIG).is_file():
        yield make_check("logits", CONFIG, "unknown", f"the model {source} no longer exists")
        return
    if file := next((name for name in record.files if is_gguf(name)), None):
        yield _under_llama_cpp(folder / file, source)
        return
    try:
        classes = read_json(folder / CONFIG, MOST_CONFIG).get("auto_map")
    except (OSError, ValueError, AttributeError) as error:
        yield make_check("logits", CONFIG, "failed", f"it is no JSON object: {first_line(error)}")
        return
    try:
        with without_adapter(source) as merged:
            model = load_model(merged, None, "cpu")
            exported = None if classes is None else text_of(model)
    except ComposerError as error:
        yield make_check("logits", CONFIG, "unknown", str(error))
        return
    if exported is not None:
        name = f"{exported.file}.py"
        if name not in record.files or record.files[name] != hashlib.sha256(exported.text.encode()).hexdigest():
            yield make_check("code", name, "failed", "it differs from what this version of the package writes for the model")
            return
        if classes != configuration(model, exported)["auto_map"]:
            yield make_check("code", CONFIG, "failed", "its auto_map names other classes than this version of the package writes")
            return
        yield make_check("code", name, "passed")
    sample = sample_of(model)
    del model  # the export's weights take its place in memory
    (comparison,) = compare([(folder, exported is not None, sample)])
    yield _check_of(CONFIG, comparison)


def _under_llama_cpp(file: Path, source: Path) -> Check:
    """Return the check of a GGUF file's logits, and of its tokenizer."""
    try:
        with without_adapter(source) as merged:
            comparison = compare_gguf(file, sample_of(load_model(merged, None, "cpu")), merged)
    except ComposerError as error:
        return make_check("logits", file.name, "unknown", str(error))
    if comparison is None:
        return make_check("logits", file.name, "unknown", f"llama-cpp-python is not installed: {INSTALL}")
    return _check_of(file.name, comparison)


def _check_of(name: str, comparison: Comparison) -> Check:
    if comparison.problem is not None:
        return make_check("logits", name, "failed", comparison.problem)
    return make_check("logits", name, "passed", f"largest difference {comparison.share:.1e} of the largest logit")
