"""The folder of a GGUF file: the file, the spec, a card and the record of its origin."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from composer.errors import ExportError
from composer.exporting.comparison import TOLERANCES, Comparison, ModelText, compare_logits, sample_of
from composer.exporting.comparison_worker import KEPT, STEPS
from composer.exporting.folder import causal, check_export, without_adapter, write_origin
from composer.exporting.gguf import worker
from composer.exporting.gguf.types import TYPES, name_of_file, type_of_file
from composer.exporting.gguf.writing import Gguf, gguf_of, write_gguf
from composer.exporting.native import native_of
from composer.system.files import system_errors
from composer.system.subprocesses import environment_of_child
from composer.system.trust import load_tokenizer
from composer.weights.card import licence_fields
from composer.weights.load import load_model
from composer.weights.output import check_output, check_space, whole_or_nothing
from composer.weights.record import Record, read_record
from converters.source import open_source

TEXT = "Once upon 12 times,  it's 3:45 o'clock!\n\n\tA girl's dog (Ärger, 日本) ran: x+=1;"
"""Spaces, digits, contractions, letters outside of ASCII and line ends, which kinds of tokenizers divide differently."""


def compare_gguf(file: Path, sample: ModelText, folder: Path) -> Comparison | None:
    """Compare logits, and the tokens of a text, under llama.cpp. None if llama-cpp-python is not installed.

    folder: that of the model's tokenizer. Raises ExportError if the process does not end by itself.
    """
    if find_spec("llama_cpp") is None:
        return None
    tokenizer: Any = load_tokenizer(folder, ExportError, f"{folder} has no tokenizer that transformers can read")
    rows = [row[mask.bool()].tolist() for row, mask in zip(sample.tokens, sample.mask, strict=True)]
    threads = torch.get_num_threads()
    request = {"file": str(file), "rows": rows, "text": TEXT, "threads": threads, "kept": KEPT, "steps": STEPS}
    with tempfile.TemporaryDirectory(prefix="composer-llama-cpp-") as scratch:
        answers = Path(scratch) / "logits.npy"
        command = [sys.executable, "-W", "ignore", worker.__file__, str(answers)]
        ended = subprocess.run(
            command, input=json.dumps(request), env=environment_of_child(), capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            last = (ended.stderr.strip().splitlines() or ["it wrote no error"])[-1]
            raise ExportError(f"the process that runs the file by llama.cpp ended with exit code {ended.returncode}: {last}")
        logits = torch.from_numpy(np.load(answers))
    tokens = json.loads(ended.stdout.strip().splitlines()[-1])
    if tokens != (expected := tokenizer(TEXT).input_ids):
        return Comparison(None, f"its tokenizer makes {tokens} of a text; expected {expected}")
    return compare_logits(logits, sample, max(TYPES[type_of_file(file)], TOLERANCES.get(sample.dtype, 0.0)))


def export_gguf(folder: Path, out: Path, kind: str, *, target: str | None = None, force: bool = False) -> Gguf:
    """Write a composed model as a folder with a GGUF file.

    kind: the type of matrices. target: the class of transformers as which it is written, or None for the first one that
    fits. force: replace an export in ``out``.

    Where llama-cpp-python is installed, the file runs under llama.cpp before the folder appears, and its logits and the tokens of a
    text are compared with the model's. Raises ExportError, BuildError and SourceError; nothing is written then.
    """
    named, out = out, check_output(out, open_source(folder), force=force, check_replaceable=check_export)
    with without_adapter(folder) as merged:
        model: Any = causal(load_model(merged, None, "cpu"))
        record = read_record(merged)
        gguf = gguf_of(native_of(model, target), model, merged, _general(folder, record))
        gguf = dataclasses.replace(gguf, file=name_of_file(kind))
        check_space(out, sum(tensor.numel() for tensor in model.parameters()) * 4)
        with whole_or_nothing(out, force=force, check_replaceable=check_export) as partial:
            with system_errors(partial / gguf.file):
                write_gguf(gguf, partial / gguf.file, kind)
            options = f"--gguf --quantize {kind} {f'--for {target} ' if target else ''}-o {shlex.quote(str(named))}"
            write_origin(partial, merged, folder, gguf, record, f"compose export {shlex.quote(str(folder))} {options}")
            comparison = compare_gguf(partial / gguf.file, sample_of(model), merged)
            if comparison is not None and comparison.problem is not None:
                raise ExportError(
                    f"the GGUF file of {folder} was run by llama.cpp, and {comparison.problem}. Nothing was written. Try "
                    "--quantize f32, or export with --native"
                )
    return dataclasses.replace(gguf, share=None if comparison is None else comparison.share)


def _general(folder: Path, record: Record | None) -> dict[str, str]:
    """Return what a file states of its model: its name, its licence, and the repository of its source."""
    fields = {"name": folder.resolve().name}
    if isinstance(licence := licence_fields(record).get("license"), str):
        fields["license"] = licence
    if record is not None and record.source is not None and record.source.repo_id:
        fields["source.huggingface.repository"] = record.source.repo_id
    return fields
