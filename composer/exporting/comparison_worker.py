"""The program of the process in which exports are loaded without this package: see ``composer/exporting/comparison.py``.

It imports torch and transformers alone. This project's packages and others that an export does not need cannot be imported here,
even if they are installed. Its arguments are the requests as JSON, each a folder with its options, the file of their texts, and
the file of the answers. An answer is a tensor of logits by the number of its request, or a problem in the file's metadata.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ABSENT = ("composer", "blocks", "converters", "jaxtyping", "fla", "causal_conv1d", "mamba_ssm")
"""Packages that an export does not need. Without the last three, transformers computes by its own functions, which run on a CPU."""
STEPS = 3
"""Tokens at the end of a text that are read one by one, with a cache."""
KEPT = 16
"""Tokens of a text whose logits are compared, with those of the steps. They depend on all earlier tokens."""
LISTED = 3
"""The most tensors that a problem names."""


@torch.no_grad()
def last_logits(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the logits of the last tokens of a text, B KEPT + STEPS V: a prefill, and cached steps of one token."""
    prompt = tokens.shape[1] - STEPS
    answer = model(tokens[:, :prompt], attention_mask=mask[:, :prompt], use_cache=True)
    logits = [answer.logits[:, -KEPT:]]
    for end in range(prompt + 1, tokens.shape[1] + 1):
        name = "cache" if "cache" in answer else "past_key_values"  # transformers 5.24 renamed it
        answer = model(tokens[:, end - 1 : end], attention_mask=mask[:, :end], use_cache=True, **{name: answer[name]})
        logits.append(answer.logits)
    return torch.cat(logits, dim=1)


def answer_of(folder: str, has_code: bool, dtype: str, tokens: Tensor, mask: Tensor) -> Tensor | str:
    """Return the logits of an export, or why there are none."""
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            trust_remote_code=has_code,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:
        return f"it does not load: {first_line(error)}"
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(str(name[0] if isinstance(name, tuple) else name) for name in report[kind]):
            more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
            return f"its weights do not fit its class ({kind.replace('_', ' ')}): {', '.join(names[:LISTED])}{more}"
    try:
        return last_logits(model.eval(), tokens, mask)
    except Exception as error:
        return f"it does not compute a text: {first_line(error)}"


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def main(requests: str, texts: str, answers: str) -> None:
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(ABSENT))  # an entry of None is a package that is not installed
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    inputs, logits, problems = load_file(texts), dict[str, Tensor](), dict[str, str]()
    for at, (folder, has_code, dtype) in enumerate(json.loads(requests)):
        answer = answer_of(folder, has_code, dtype, inputs[f"{at} tokens"], inputs[f"{at} mask"])
        if isinstance(answer, str):
            problems[str(at)] = answer
        else:
            logits[str(at)] = answer.contiguous()
    save_file(logits, answers, problems)


if __name__ == "__main__":
    main(*sys.argv[1:])
