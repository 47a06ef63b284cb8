"""Prepares calls of ``generate``: their cache, their settings, and whether a text continues what its cache has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer.model.cache import ComposedCache, new_cache
from composer.model.cuda_graph import may_record

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def keep_tokens_alone(model: Any) -> None:
    """Remove beams, penalties and lengths from a model's generation settings: the caller of ``generate`` sets them."""
    from transformers import GenerationConfig

    said = model.generation_config
    model.generation_config = GenerationConfig(**{name: getattr(said, name, None) for name in TOKENS})


def prepare_cache(model: Any, settings: Any, options: dict[str, Any]) -> None:
    """Put a cache into the options of ``generate``, where they have none. settings: transformers' ``GenerationConfig``. Raises
    ValueError where the model, or the settings, do not generate text with states."""
    if model.base.both_ways:
        raise ValueError("a bidirectional model cannot write: what a token says would depend on those not yet written")
    if settings.cache_implementation is not None:
        raise ValueError(
            f"cache_implementation={settings.cache_implementation!r} is for caches of keys and values; "
            "a composed model keeps states of its own: leave it out"
        )
    if options.get("past_key_values") is None and settings.use_cache:
        options["past_key_values"] = new_cache(model.config)
    cache = options.get("past_key_values")
    whole = getattr(settings, "prefill_chunk_size", None) is None  # else pieces of a prompt may look like steps
    if model.use_graph and whole and isinstance(cache, ComposedCache) and may_record(model):
        model.recording(cache)


def check_continuation(arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raise ValueError where the cache of a call of ``generate`` has seen all tokens of its input, so that none is left to read.

    transformers reads the input from the column behind the last one that the cache has seen. A mask that is wider than the input
    states that the input has new tokens alone.
    """
    cache, embeddings = options.get("past_key_values"), options.get("inputs_embeds")
    stated = (embeddings, *arguments[:1], options.get("inputs"), options.get("input_ids"))
    given = next((value for value in stated if value is not None), None)
    if not isinstance(cache, ComposedCache) or given is None or not (seen := cache.get_seq_length()):
        return
    length, mask = given.shape[1], options.get("attention_mask")
    columns = length if mask is None or embeddings is not None else mask.shape[1]
    new_alone = columns > length
    remedy = (
        f"To continue its text, pass the whole text with new tokens behind it, or the new tokens alone with an attention_mask of "
        f"{seen:,} columns and one more for each of them. For another text, leave past_key_values out."
    )
    if new_alone and columns != seen + length:
        raise ValueError(
            f"past_key_values has seen {seen:,} tokens, the input has {length:,} new ones, and attention_mask has "
            f"{columns:,} columns. {remedy}"
        )
    if not new_alone and length <= seen:
        raise ValueError(f"past_key_values has seen {seen:,} tokens, and the input has {length:,}: none is new. {remedy}")
