"""Compares exports with their models, in a process that loads the exports without this package.

An export is compared before its folder appears, and by ``compose verify``. The model computes its logits first and can be freed, so
the two are not in memory at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from composer.errors import ExportError
from composer.exporting import comparison_worker
from composer.exporting.comparison_worker import last_logits
from composer.system.subprocesses import environment_of_child

ROWS, PADDING = 2, 7
"""Rows of the text, and tokens of padding before the first one."""
SHORTEST, LONGEST = 96, 256
"""Tokens of a text: more than the pairs that memories hold, up to the second number."""
LARGE = 2**31
"""Bytes of weights in float32 above which a model is compared in its own dtype, so that it is not in memory twice."""
TOLERANCES: Mapping[torch.dtype, float] = {torch.bfloat16: 0.1, torch.float16: 0.02}
"""The largest difference of logits, as a share of the largest logit. Model and export compute the same in part by other forms,
which round differently."""
TOLERANCE = 1e-4
"""The same in float32 and wider dtypes."""


@dataclass(frozen=True)
class ModelText:
    """A text, and the logits of a model for its last tokens. mask: B T, 0 for padding."""

    tokens: Tensor
    mask: Tensor
    logits: Tensor
    dtype: torch.dtype


@dataclass(frozen=True)
class Comparison:
    """share: the largest difference of logits, of the largest logit; None where an export has no logits.

    problem: why the export does not equal its model; None if it does.
    """

    share: float | None
    problem: str | None


def sample_of(model: Any) -> ModelText:
    """Return the logits of a model. It is put into evaluation mode, and into float32 if it is not large."""
    if sum(parameter.numel() for parameter in model.parameters()) * 4 <= LARGE:
        model.float()
    max_length = getattr(model.config, "max_position_embeddings", None) or LONGEST
    length = min(max(SHORTEST, _most_held(model) + 32), LONGEST, max_length)
    tokens = torch.randint(0, model.config.vocab_size, (ROWS, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    mask[0, :PADDING] = 0
    return ModelText(tokens, mask, last_logits(model.eval(), tokens, mask), model.dtype)


def _most_held(model: Any) -> int:
    """Return the pairs that the bounded memories of a head hold, in the head that holds most."""
    heads = model.config.read_spec().heads.values()
    return max((sum(memory.capacity for memory in head.memory) for head in heads), default=0)


def compare(exports: Sequence[tuple[Path, bool, ModelText]]) -> list[Comparison]:
    """Load exports in a process without this package, one after the other, and compare their logits with those of their models.

    exports: folders, whether each has a Python file that may run, and what its model computes. Raises ExportError if the process
    does not end by itself.
    """
    with tempfile.TemporaryDirectory(prefix="composer-plain-") as scratch:
        texts, answers = Path(scratch) / "texts.safetensors", Path(scratch) / "answers.safetensors"
        samples = [sample for _, _, sample in exports]
        named = {f"{at} {name}": getattr(text, name) for at, text in enumerate(samples) for name in ("tokens", "mask")}
        save_file(named, texts)
        requests = [
            (str(folder.resolve()), has_code, str(sample.dtype).removeprefix("torch.")) for folder, has_code, sample in exports
        ]
        threads = str(torch.get_num_threads())
        environment = environment_of_child(HF_MODULES_CACHE=f"{scratch}/modules", HF_HUB_OFFLINE="1", OMP_NUM_THREADS=threads)
        command = [sys.executable, "-W", "ignore", comparison_worker.__file__, json.dumps(requests), str(texts), str(answers)]
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            last = (ended.stderr.strip().splitlines() or ["it wrote no error"])[-1]
            raise ExportError(
                f"the process that loads the export without this package ended with exit code {ended.returncode}: {last}"
            )
        with safe_open(answers, "pt") as file:
            problems = file.metadata() or {}
        logits = load_file(answers)
    answers_in_order: list[Tensor | str] = [
        logits[str(at)] if str(at) in logits else problems.get(str(at), "") for at in range(len(samples))
    ]
    return [_comparison(answer, sample) for answer, sample in zip(answers_in_order, samples, strict=True)]


def _comparison(answer: Tensor | str, sample: ModelText) -> Comparison:
    if isinstance(answer, str):
        return Comparison(None, answer)
    return compare_logits(answer, sample, TOLERANCES.get(sample.dtype, TOLERANCE))


def compare_logits(answer: Tensor, sample: ModelText, tolerance: float) -> Comparison:
    """Compare the logits of an export with those of its model."""
    if answer.shape != sample.logits.shape:
        return Comparison(None, f"its logits have the shape {list(answer.shape)}; expected {list(sample.logits.shape)}")
    share = float((answer - sample.logits).abs().max() / sample.logits.abs().max())
    different = f"its logits differ from the model's by {share:.1e} of the largest logit; expected at most {tolerance:.0e}"
    return Comparison(share, None if share <= tolerance else different)
