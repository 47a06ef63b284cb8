"""Which layers of a hybrid have no softmax attention, read from its ``config.json``.

Such layers have a state of another kind (Mamba, a gated delta net, a short convolution), or no state at all (an MLP by itself).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from converters.bounded import brief
from converters.config import MOST_LAYERS, positive_int
from converters.errors import ConfigError
from converters.family import Config

KEYS = ("layer_types", "layers_block_type")
"""The keys of a config for the type of each layer, the newer name first."""
ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention", "hybrid"})
"""The types of layers with softmax attention; ``hybrid`` layers have a state of another kind beside it."""
OTHERS = frozenset({"linear_attention", "mamba", "conv", "moe", "mlp"})
"""The types of layers without."""
LETTERS: Mapping[str, str] = {"*": "attention", "M": "mamba", "-": "mlp", "E": "moe"}
"""The letters of Nemotron-H's ``hybrid_override_pattern``."""
PATTERN = "hybrid_override_pattern"


def _each_nth(config: Config, layers: int, *, key: str = "full_attention_interval", usual: int = 4) -> list[bool]:
    """The last of each so many layers. key: of the config, for their number. usual: the default of transformers."""
    interval = positive_int(config, key, usual)
    return [(layer + 1) % interval == 0 for layer in range(layers)]


def _by_period(config: Config, layers: int) -> list[bool]:
    """Jamba's period, and the place of the attention in it."""
    period, offset = positive_int(config, "attn_layer_period", 8), config.get("attn_layer_offset", 4)
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < period:
        raise ConfigError(
            f"config.json has attn_layer_offset: {brief(offset)}; expected a whole number from 0 to {period - 1:,}, below "
            "attn_layer_period."
        )
    return [layer % period == offset for layer in range(layers)]


def _every_fourth(config: Config, layers: int) -> list[bool]:
    """Olmo-Hybrid's: the last of each four layers, or the last of all."""
    fourth = [layer % 4 == 3 for layer in range(layers)]
    return fourth if any(fourth) else [layer == layers - 1 for layer in range(layers)]


def _kimi(config: Config, layers: int) -> list[bool]:
    """Kimi-Linear's lists of layers, which count from 1; the default of transformers where a config has none."""
    lists = config.get("linear_attn_config")
    listed = lists.get("full_attn_layers") if isinstance(lists, Mapping) else None
    if listed is None:
        return [layer % 4 == 0 and layer > 0 for layer in range(layers)]
    if not isinstance(listed, list) or not all(type(number) is int and 0 < number <= layers for number in listed):
        raise ConfigError(
            f"config.json has linear_attn_config.full_attn_layers: {brief(listed)}; expected a list of layers, counted from 1 to "
            f"{layers:,}."
        )
    return [layer + 1 in set(listed) for layer in range(layers)]


def _at_listed(key: str, *, otherwise: bool) -> Callable[[Config, int], list[bool]]:
    """The layers whose indices a key lists. otherwise: whether all layers have attention where the key is missing."""

    def read(config: Config, layers: int) -> list[bool]:
        indices = config.get(key)
        if indices is None:
            return [otherwise] * layers
        if not isinstance(indices, list) or not all(type(index) is int and 0 <= index < layers for index in indices):
            raise ConfigError(f"config.json has {key}: {brief(indices)}; expected a list of layers, from 0 to {layers - 1:,}.")
        return [layer in set(indices) for layer in range(layers)]

    return read


HYBRIDS: Mapping[str, Callable[[Config, int], list[bool]]] = {
    "bailing_hybrid": partial(_each_nth, key="layer_group_size", usual=6),
    "bamba": _at_listed("attn_layer_indices", otherwise=False),
    "falcon_h1": lambda _, layers: [True] * layers,
    "granitemoehybrid": lambda _, layers: [False] * layers,
    "jamba": _by_period,
    "kimi_linear": _kimi,
    "lfm2": _at_listed("full_attn_idxs", otherwise=True),
    "lfm2_moe": lambda _, layers: [True] * layers,
    "lfm3": lambda _, layers: [layer % 4 == 2 or (layer % 4 == 0 and layer > 0) for layer in range(layers)],
    "minimax": lambda _, layers: [layer % 2 == 0 for layer in range(layers)],
    "nemotron_h": lambda _, layers: [False] * layers,
    "olmo_hybrid": _every_fourth,
    "qwen3_5_moe_text": _each_nth,
    "qwen3_5_text": _each_nth,
    "qwen3_next": _each_nth,
}
"""The hybrid families, each with a function that returns which layers have attention where the config names no types of layers."""


def layers_without_attention(model_type: str, config: Config, layers: int) -> tuple[int, ...]:
    """Return the layers that have no softmax attention; none for a family that is no hybrid.

    Raises ConfigError for types of layers that are unknown, or not one a layer, and if no layer has attention.
    """
    if model_type not in HYBRIDS:
        return ()
    key, types = _types(config)
    if types is None:
        has = HYBRIDS[model_type](config, layers)
    else:
        if len(types) != layers:
            raise ConfigError(f"config.json has {key} for {len(types):,} layers; expected one for each of its {layers:,} layers.")
        unknown = [kind for kind in types if not isinstance(kind, str) or kind not in ATTENTION | OTHERS]
        if unknown:
            raise ConfigError(
                f"config.json has {key}: {brief(unknown[0])}; expected some of {', '.join(sorted(ATTENTION | OTHERS))}."
            )
        has = [kind in ATTENTION for kind in types]
    if not any(has):
        raise ConfigError("config.json describes no layer with softmax attention, so there are no heads to compose.")
    return tuple(layer for layer, attends in enumerate(has) if not attends)


def count_of_layers(model_type: str, config: Config) -> int | None:
    """Return the number of layers of a family whose config may state it by their types alone; None for others."""
    if model_type != "nemotron_h":
        return None
    key, types = _types(config)
    if types is None:
        return None
    if not 0 < len(types) <= MOST_LAYERS:
        raise ConfigError(f"config.json has {key} for {len(types):,} layers; expected 1 to {MOST_LAYERS:,}.")
    return len(types)


def _types(config: Config) -> tuple[str, Sequence[object] | None]:
    """The key for the types of layers, and the types; None where the config names none."""
    for key in KEYS:
        if (types := config.get(key)) is not None:
            if not isinstance(types, list):
                raise ConfigError(f"config.json has {key}: {brief(types)}; expected a list of types of layers.")
            return key, types
    pattern = config.get(PATTERN)
    if pattern is None:
        return KEYS[0], None
    if not isinstance(pattern, str) or not set(pattern) <= LETTERS.keys():
        raise ConfigError(f"config.json has {PATTERN}: {brief(pattern)}; expected a text of the letters {' '.join(LETTERS)}.")
    return PATTERN, [LETTERS[letter] for letter in pattern]
