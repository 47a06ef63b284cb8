"""Prepares calls of ``generate``: their cache, their settings, and whether a text continues what its cache has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerationMode

from composer.model.cache import CACHE, SEEN, ComposedCache, cache_among, check_cache, new_cache
from composer.model.cuda_graph import ANSWERED, FOLLOWING, may_record

PIECE = 1024
"""Tokens of a long text that are read in one call."""
LONG = 128
"""Tokens of a prompt from which on assisted generation reads it before it records."""
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def keep_tokens_alone(model: Any) -> None:
    """Remove beams, penalties and lengths from a model's generation settings: the caller of ``generate`` sets them."""
    from transformers import GenerationConfig

    settings = model.generation_config
    model.generation_config = GenerationConfig(**{name: getattr(settings, name, None) for name in TOKENS})


@torch.no_grad()
def read_in_pieces(model: Any, ids: Tensor, cache: ComposedCache, watch: Callable[[int, int], None] | None = None) -> None:
    """Read tokens into a cache, piece by piece, so that memory does not grow with their number.

    ids: 1 T. watch: called after each piece with the number of tokens so far, and of all.
    """
    length = ids.shape[1]
    for start in range(0, length, PIECE):
        piece = ids[:, start : start + PIECE]
        model(input_ids=piece, **{CACHE: cache}, use_cache=True, logits_to_keep=1)
        if watch is not None:
            watch(start + piece.shape[1], length)


def prepare_cache(model: Any, settings: Any, options: dict[str, Any], mode: GenerationMode | None) -> None:
    """Put a cache into the options of ``generate``, where they have none. settings: transformers' ``GenerationConfig``. In assisted
    generation the caches of both models record their calls. Raises ValueError if the model, or the settings, do not generate text
    with states, and TypeError for a cache of another class."""
    check_cache(options.get(CACHE))  # transformers looks into a cache before it calls the model
    if model.base.both_ways:
        raise ValueError("a bidirectional model cannot generate: each token depends on the tokens after it")
    if settings.cache_implementation is not None and not settings.is_assistant:  # older versions set it for a model that drafts
        raise ValueError(
            f"cache_implementation={settings.cache_implementation!r} is for caches of keys and values; "
            "a composed model has its own states. Remove this argument"
        )
    if options.get(CACHE) is None and settings.use_cache:
        options[CACHE] = new_cache(model.config)
    cache = options.get(CACHE)
    if not isinstance(cache, ComposedCache):
        return
    assisted = mode is GenerationMode.ASSISTED_GENERATION
    if assisted and cache.get_seq_length():
        raise ValueError("assisted generation reads the whole input again, so it cannot continue a cache: leave the cache out")
    if (assisted or settings.is_assistant) and model.base.has_mixers:
        raise ValueError(
            "assisted generation removes tokens from the cache, which the states of this host's own mixers do not allow: leave "
            "assistant_model and prompt_lookup_num_tokens out"
        )
    cache.activate_past_recording(assisted or bool(settings.is_assistant))
    is_one_prefill = getattr(settings, "prefill_chunk_size", None) is None  # else pieces of a prompt may look like steps
    if model.use_graph and is_one_prefill and not cache.is_recording and may_record(model):
        model.recording(cache)


def read_prompt(model: Any, cache: ComposedCache, options: dict[str, Any]) -> dict[str, Any]:
    """Read a long prompt into an empty cache that records its calls, but for the tokens whose logits are needed: only these may be
    removed again, and the inputs of all others need not be recorded. Return the arguments of the call for the tokens that are left.
    """
    ids, logits_to_keep, mask, positions = (
        options.get(name) for name in ("input_ids", "logits_to_keep", "attention_mask", "position_ids")
    )
    more = {name for name, value in options.items() if value is not None and value is not False} - ANSWERED - FOLLOWING
    if (
        more
        or torch.is_grad_enabled()
        or cache.get_seq_length()
        or ids is None
        or not isinstance(logits_to_keep, int)
        or not logits_to_keep
    ):
        return options
    count = ids.shape[1] - logits_to_keep
    places = torch.arange(ids.shape[1], device=ids.device)
    real = mask is None or (mask.shape == ids.shape and bool(mask.all()))
    if count < LONG or not real or (positions is not None and not bool((positions == places).all())):
        return options
    cache.activate_past_recording(False)
    read_in_pieces(model, ids[:, :count], cache)
    cache.activate_past_recording()
    return options | {"input_ids": ids[:, count:], "attention_mask": None, "position_ids": None}


def continuation(count: int, cache: ComposedCache) -> dict[str, Any]:
    """Return the arguments of ``generate`` for ``count`` new tokens of one row after the text of a cache.

    The mask is wider than the input, which states that the input has new tokens alone. One more column is enough: transformers
    makes tensors of the mask's width, and a state from a file may claim any number of tokens.
    """
    seen = cache.get_seq_length()
    device = cache.state(0).tensors[SEEN].device
    return {
        "attention_mask": torch.ones(1, count + 1, dtype=torch.bool, device=device),
        "position_ids": torch.arange(seen, seen + count, device=device)[None],
        CACHE: cache,
    }


def unread_tokens(model: Any, sequences: Tensor, cache: ComposedCache, before: int) -> Tensor:
    """Return the last tokens of a call of ``generate`` that its cache has not seen, without a final EOS token: 1 T, perhaps empty.

    sequences: 1 T, the result of ``generate``. before: tokens that the cache had seen before the call.
    """
    unread = sequences[:, cache.get_seq_length() - before :]
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    return unread[:, :-1] if unread.shape[1] and int(unread[0, -1]) in ends else unread


def check_continuation(arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raise ValueError if the cache of a call of ``generate`` has seen all tokens of its input, so that none is left to read.
    transformers reads the input from the column after the last one that the cache has seen. A mask that is wider than the input
    states that the input has new tokens alone.
    """
    cache, embeddings = cache_among(options), options.get("inputs_embeds")
    stated = (embeddings, *arguments[:1], options.get("inputs"), options.get("input_ids"))
    inputs = next((value for value in stated if value is not None), None)
    if not isinstance(cache, ComposedCache) or inputs is None or not (seen := cache.get_seq_length()):
        return
    length, mask = inputs.shape[1], options.get("attention_mask")
    columns = length if mask is None or embeddings is not None else mask.shape[1]
    new_alone = columns > length
    remedy = (
        f"To continue its text, pass the whole text with new tokens after it, or the new tokens alone with an attention_mask of "
        f"{seen:,} columns and one more for each of them. For another text, leave the cache out."
    )
    states_place = columns == length + 1 and options.get("position_ids") is not None  # as ``continuation`` does
    if new_alone and columns != seen + length and not states_place:
        raise ValueError(
            f"the cache has seen {seen:,} tokens, the input has {length:,} new ones, and attention_mask has "
            f"{columns:,} columns. {remedy}"
        )
    if not new_alone and length <= seen:
        raise ValueError(f"the cache has seen {seen:,} tokens, and the input has {length:,}: none is new. {remedy}")
