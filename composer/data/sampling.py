"""Texts that a model writes by itself, to train a student of it on where its own training data are not at hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch

from composer.errors import DataError
from composer.model.generation import keep_tokens_alone
from composer.system.devices import seed_for_block
from composer.tasks.writer import without_embedding


def sample_texts(
    model: Any,
    tokenizer: Any,
    texts: int,
    length: int,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    batch: int = 32,
) -> Iterator[str]:
    """Yield texts from the model's own distribution, each of at most ``length`` tokens, BOS included, or up to its end.

    model: a model with transformers' ``generate``. tokenizer: of transformers. The texts depend on ``seed`` and ``batch`` only; the
    first ones are the same for any number of texts. Empty texts are drawn again. Raises DataError if the tokenizer has no BOS
    token.
    """
    begin = tokenizer.bos_token_id
    if begin is None:
        raise DataError(
            "The tokenizer has no BOS token, so the model has no token to begin a text from. Use a model whose tokenizer has one."
        )
    if problem := without_embedding("the beginning of a text", [begin], len(model.get_input_embeddings().weight), tokenizer):
        raise DataError(f"{problem}.")
    # A model that was trained on concatenated texts may write BOS at the end of one.
    ends = [token for token in (tokenizer.eos_token_id, begin) if token is not None]
    keep_tokens_alone(model)
    written, draw = 0, 0
    while written < texts:
        bits = random.Random(f"{seed} {draw}").getrandbits(32)  # its generator accepts no more
        with seed_for_block(bits, str(model.device)):
            rows = model.generate(
                input_ids=torch.full((batch, 1), begin, device=model.device),
                attention_mask=torch.ones(batch, 1, dtype=torch.long, device=model.device),
                max_new_tokens=length - 1,
                do_sample=True,
                trust_remote_code=False,
                temperature=temperature,
                top_p=top_p,
                top_k=0,
                eos_token_id=ends,
                pad_token_id=ends[0],
            )
        draw += 1
        decoded_texts = [text for row in rows if (text := tokenizer.decode(row, skip_special_tokens=True)).strip()]
        if not decoded_texts:
            raise DataError(f"The model ends its texts where they begin: {batch} of {batch} are empty.")
        yield from decoded_texts[: texts - written]
        written += len(decoded_texts)
