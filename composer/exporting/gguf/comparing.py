"""Compares GGUF files with their models, in a process that runs llama.cpp."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from composer.errors import ExportError
from composer.exporting.gguf import worker
from composer.exporting.gguf.types import TYPES, type_of_file
from composer.exporting.plain import TOLERANCES, Comparison, ModelText, compare_logits
from composer.exporting.plain_worker import KEPT, STEPS
from composer.system.subprocesses import environment_of_child
from composer.system.trust import load_tokenizer

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
