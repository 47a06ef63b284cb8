"""Models with random heads, and the outputs of their exported files in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from composer.exporting.comparison import Comparison
from composer.exporting.folder import configuration
from composer.exporting.modeling import Exported, write_file

LENGTH, SHORT = 85, 41
"""Tokens of a text: more than the windows of shipped specs, and more than the small windows around single parts."""


@contextmanager
def uncompared() -> Iterator[None]:
    """For the block, exports are written without the process that loads them and compares their logits, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("composer.exporting.folder.compare", lambda _: [Comparison(0.0, None)])
        yield


def randomised(model: Any, seed: int = 0) -> Any:
    """Put the model into evaluation mode and change every parameter of its heads, so that none is an identity or 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".composed." in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


FILES: dict[str, Exported] = {}
"""The files of models that have been exported, by their configs, on which alone they depend."""


def of_file(model: Any) -> tuple[Exported, Any]:
    """Return the exported file of a model, and the model that this file builds with the same weights."""
    config = json.dumps(model.config.to_dict(), sort_keys=True, default=str)
    if config not in FILES:
        with torch.enable_grad():
            FILES[config] = write_file(model)
    exported = FILES[config]
    module = ModuleType(f"exported_{exported.file}")
    sys.modules[module.__name__] = module  # dataclasses look there
    exec(compile(exported.text, f"{exported.file}.py", "exec"), vars(module))
    fields = {name: value for name, value in configuration(model, exported).items() if name not in ("auto_map", "model_type")}
    own = getattr(module, f"{exported.name}ForCausalLM")(getattr(module, f"{exported.name}Config")(**fields))
    own.load_state_dict(model.state_dict())
    return exported, own.eval()


def texts(vocabulary: int, length: int) -> tuple[Tensor, Tensor]:
    """Return three rows of tokens and their mask: left padding, a single real token, no padding."""
    tokens = torch.randint(3, vocabulary, (3, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[0, : length // 4] = 0
    mask[1, : length - 1] = 0
    return tokens, mask


def padded(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the logits of the real tokens in one call."""
    return model(tokens, attention_mask=mask, use_cache=False).logits[mask.bool()]


def in_pieces(model: Any, tokens: Tensor) -> Tensor:
    """Return the logits of rows without padding in several calls with a cache, some of one token."""
    cache, result, first = None, [], 0
    for length in (17, 7, 1, 1, tokens.shape[1] - 26):
        answer = model(tokens[:, first : first + length], past_key_values=cache, use_cache=True)
        cache, first = answer.past_key_values, first + length
        result.append(answer.logits)
    return torch.cat(result, dim=1)


def generated(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return greedy text after rows with left padding."""
    mask = mask.clone()
    mask[1] = 1
    settings = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    prompt = tokens.shape[1] // 2
    return model.generate(tokens[:, :prompt], attention_mask=mask[:, :prompt], **settings)


def gradient(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the gradient of the loss with respect to the embeddings."""
    model.zero_grad()
    real = mask.bool()
    real[:, 1:] &= mask[:, :-1].bool()  # what a padding token predicts has no meaning
    labels = tokens.masked_fill(~real, -100)
    model(tokens, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
    return model.get_input_embeddings().weight.grad


def check_equal(model: Any, own: Any, vocabulary: int, *, length: int = LENGTH, gradients: bool = True) -> None:
    """Check that both compute the same logits, text and gradients, with partly different forms."""
    tokens, mask = texts(vocabulary, length)
    if gradients:
        _close(gradient(model, tokens, mask), gradient(own, tokens, mask))
    with torch.no_grad():
        _close(padded(model, tokens, mask), padded(own, tokens, mask))
        _close(in_pieces(model, tokens), in_pieces(own, tokens))
        assert torch.equal(generated(model, tokens, mask), generated(own, tokens, mask))


def _close(item: Tensor, other: Tensor) -> None:
    tolerance = 1e-11 if item.dtype == torch.float64 else 3e-5
    torch.testing.assert_close(other, item, rtol=0, atol=tolerance * float(item.detach().abs().max()))
