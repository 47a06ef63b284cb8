"""Families whose model around the heads is transformers' own class, and whose tensors keep their names.

Only the sizes that a spec needs are read here, from ``config.json`` alone. transformers checks the weights as a model is built.
Most families need no line in this file. Which layers of a model see the last tokens alone is read here, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from converters.bounded import brief, shorten
from converters.config import MOST_LAYERS, encode_floats, positive_int
from converters.errors import ConfigError
from converters.family import Config, Family
from converters.hybrid_layers import count_of_layers, layers_without_attention
from converters.model_types import AUTO_MAP, PREFIX
from converters.rotary import LengthRotation, check_rotary, length_rotations
from converters.trunk import DTYPE_KEYS, OF_CACHES, Sizes, read_dtype

ATTENTIONS = ("self_attn", "attention", "attn", "self_attention", "mixer")
"""Names of a layer's attention in hosts."""
OWN_KEYS = ("spec", "spec_hash", "adapter")
"""Keys that a composed model's config has beside its host's."""


@dataclass(frozen=True)
class Line:
    """Exceptions of a family: the name of a layer's attention; transformers' defaults for keys that a config leaves out; and names
    of masks that earlier versions of transformers stored, and that it passes over."""

    attention: str = "model.layers.{layer}.self_attn"
    head_dim: int | None = None
    key_heads: int | None = None
    masks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Latent:
    """A family's multi-head latent attention: transformers' defaults for keys that a config leaves out.

    Keys and values of all heads are computed from one compressed vector a token, which the model caches. A part of each key, the
    same in all heads, turns.
    """

    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int | None = 128
    """None: ``hidden_size`` over the number of heads."""
    kv_lora_rank: int = 512


@dataclass(frozen=True)
class HeadSizes:
    """The numbers of a key and of a value, those of a key that turn, and those that the model caches of a token where these are not
    all keys and values."""

    key: int
    value: int
    turned: int
    cached: int | None = None


LATENT: Mapping[str, Latent] = {
    **dict.fromkeys(("axk1", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "kimi_linear", "youtu"), Latent()),
    "glm4_moe_lite": Latent(qk_nope_head_dim=192, v_head_dim=256),
    "minicpm3": Latent(qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=None, kv_lora_rank=256),
}
"""Families with multi-head latent attention."""
USUAL = Line()
LINES: Mapping[str, Line] = {
    "biogpt": Line("biogpt.layers.{layer}.self_attn"),
    "gemma": Line(head_dim=256),
    "gemma2": Line(head_dim=256),
    "gemma3_text": Line(head_dim=256),
    "glm": Line(head_dim=128),
    "glm4": Line(head_dim=128),
    "gpt2": Line("transformer.h.{layer}.attn"),
    "gpt_bigcode": Line("transformer.h.{layer}.attn", key_heads=1),
    "gpt_neox": Line(
        "gpt_neox.layers.{layer}.attention",
        masks=("gpt_neox.layers.{i}.attention.bias", "gpt_neox.layers.{i}.attention.masked_bias"),
    ),
    "gpt_oss": Line(head_dim=64),
    "helium": Line(head_dim=128),
    "jetmoe": Line("model.layers.{layer}.self_attention"),
    "lfm3": Line(head_dim=128),
    "modernbert-decoder": Line("model.layers.{layer}.attn"),
    "nemotron_h": Line("model.layers.{layer}.mixer", head_dim=128),
    "qwen3": Line(head_dim=128),
    "qwen3_5_moe_text": Line(head_dim=256),
    "qwen3_5_text": Line(head_dim=256),
    "qwen3_next": Line(head_dim=256),
    "seed_oss": Line(head_dim=128),
}

LEARNED = frozenset({"biogpt", "gpt2", "gpt_bigcode", "gpt_neo", "openai-gpt", "opt"})
"""Families with a vector for each position, those among them that write without being sources."""

PAST_BASE = "its language model runs its layers without its base model, which passes the tokens of a call to the heads"
NO_INTERFACE = "its attention does not use transformers' attention interface, through which heads are called"
CHOSEN = "each query sees the tokens that a learned index chooses, and heads see all tokens"
UNEVEN = "its layers with a local window have twice as many key heads as the others, and a spec has one number of key heads"
TWO_ATTENTIONS = "each of its layers has two attentions, and heads replace one a layer"
NO_ATTENTION = "none of its layers has softmax attention, which heads could replace"
INNER_STATE = "its attention has its own state, from which queries and keys are computed, and heads need plain ones"
SHARED_KEYS = "some of its layers use keys and values of earlier layers, and heads need those of their own layer"
SHARED_ATTENTION = "several of its layers share one attention, and heads have parameters of their own in each layer"


def _gemma4(config: Config) -> str | None:
    """Return why a Gemma 4 cannot be a source; None where its layers share no keys and have heads of one size."""
    if shared := config.get("num_kv_shared_layers"):
        return f"its last {brief(shared)} layers use keys and values of earlier layers, and heads need those of their own layer"
    by_layer = config.get("per_layer_config")
    if by_layer is None:
        sizes = (config.get("global_head_dim", 512), config.get("head_dim", 256))
        heads = (config.get("num_global_key_value_heads"), config.get("num_key_value_heads", 4))
        uneven = sizes[0] != sizes[1] or (config.get("attention_k_eq_v") is True and heads[0] not in (None, heads[1]))
    else:
        uneven = bool(by_layer)
    return "its layers that see all tokens have heads of another size than the others, and a spec has one size" if uneven else None


REFUSED: Mapping[str, str | Callable[[Config], str | None]] = {
    **dict.fromkeys(("bloom", "codegen", "ctrl", "falcon", "gpt_neo", "gptj", "mpt", "openai-gpt", "xglm"), NO_INTERFACE),
    **dict.fromkeys(("diffllama", "doge", "inkling"), "it computes its weights in a way of its own, and not by one softmax"),
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"), CHOSEN),
    "longcat_flash": TWO_ATTENTIONS,
    "mimo_v2_flash": UNEVEN,
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2", "rwkv", "xlstm"), NO_ATTENTION),
    **dict.fromkeys(("qwen4_exp_text", "zaya"), INNER_STATE),
    **dict.fromkeys(("zamba", "zamba2"), SHARED_ATTENTION),
    "recurrent_gemma": "its recurrent layers keep their states in their modules, and not in a cache, which has them by rows",
    "gemma3n_text": SHARED_KEYS,
    "gemma4_text": _gemma4,
    "llama4_text": "it norms and scales queries and keys after their rotation, and heads need them before it",
    "mllama_text_model": "its layers of cross-attention look at images, which heads do not see",
    "opt": PAST_BASE,
}  # fmt: skip
"""Families that cannot be sources, and why; a function returns the reason for a config, None where it can be one."""
OTHER_PARTS = ("vision_config", "audio_config", "vision_tower_config", "audio_encoder_config")
"""Keys of a config for the parts of a model beside its text decoder."""
WHOLE: Mapping[str, str] = {
    **dict.fromkeys(("aya_vision", "cohere2_vision", "gemma3", "got_ocr2", "internvl", "llava", "mistral3"), "language_model"),
    **dict.fromkeys(("paligemma", "qwen2_5_vl", "qwen2_vl", "qwen3_vl"), "language_model"),
    **dict.fromkeys(("idefics3", "smolvlm"), "text_model"),
}
"""Families that read images as well, and whose text decoder gets heads inside the whole model: the name of the decoder's module in
the base model."""
SEES_AHEAD = frozenset({"gemma3", "paligemma"})
"""Those in which the tokens of an image, or all of a prompt, see each other in both directions."""
OLD_NAMES = {
    "language_model.model.{rest}": "model.language_model.{rest}",
    "language_model.lm_head.{rest}": "lm_head.{rest}",
    **{f"model.{part}.{{rest}}": f"model.language_model.{part}.{{rest}}" for part in ("embed_tokens", "layers", "norm")},
    **{f"{part}.{{rest}}": f"model.{part}.{{rest}}" for part in ("vision_tower", "multi_modal_projector", "visual")},
}
"""Names of tensors in the first checkpoints of such families, and those of the model's modules."""
DECODERS: Mapping[str, str] = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""By type of a text decoder inside another model, the family whose language model computes the same of text."""


@dataclass(frozen=True, kw_only=True)
class Host(Sizes):
    """A model of another family. config: its ``config.json`` without ``OWN_KEYS``. attention: the name of a layer's attention, with
    ``{layer}`` for its index."""

    config: Mapping[str, Any]
    attention: str
    refused: str | None = None
    """Why the model cannot be composed with heads; None where it can. Without heads, it runs in any case."""

    @property
    def decoder(self) -> str | None:
        return WHOLE.get(self.config["model_type"])

    @property
    def decoder_config(self) -> Mapping[str, Any]:
        """The config of the text decoder."""
        return self.config if self.decoder is None else self.config["text_config"]

    @property
    def learns_positions(self) -> bool:
        return self.decoder_config["model_type"] in LEARNED

    @property
    def length_rotations(self) -> Mapping[int, LengthRotation]:
        return length_rotations(self.decoder_config, self.windows, self.layers)

    @property
    def without_attention(self) -> tuple[int, ...]:
        config = self.decoder_config
        return () if self.refused else layers_without_attention(config["model_type"], config, self.layers)

    @property
    def sees_ahead(self) -> bool:
        return self.config["model_type"] in SEES_AHEAD


def host_family(model_type: str) -> Family:
    """Return the family of a model type that has no table here."""
    host = model_type.removeprefix(PREFIX)
    masks = dict.fromkeys(LINES.get(host, USUAL).masks, "a mask, which the model makes itself")
    names = OLD_NAMES if host in WHOLE else {}
    return Family(model_type=model_type, title=host, names=names, passed_over=masks, read_config=partial(_read, host))


def _read(model_type: str, config: Config, notes: list[str]) -> Host:
    """Return the sizes of a host. notes: a note is appended for each key that is not used."""
    if config.get("quantization_config") is not None:
        raise ConfigError("config.json has quantization_config: its weights are quantised. Build from the original model.")
    if config.get("auto_map") not in (None, {}, AUTO_MAP):
        notes.append("config.json names its own code (auto_map); it was not run, and transformers' code is used.")
    of_caches = filter(config.get, OF_CACHES)
    left_out = (*OWN_KEYS, *of_caches, "auto_map", "model_type", "architectures")
    host_config = {key: value for key, value in config.items() if key not in left_out}
    host_config["model_type"], family, decoder = model_type, model_type, WHOLE.get(model_type)
    if decoder is not None:
        config = host_config["text_config"] = _decoder_config(host_config)
        family = str(config["model_type"])
    line, refused = LINES.get(family, USUAL), _refusal(family, config)
    if refused is not None:
        # A model that is only run without heads needs no sizes of heads.
        inner = config.get("text_config")
        config = {"num_attention_heads": 1, "hidden_size": 1, "num_hidden_layers": 1, "head_dim": 1, "vocab_size": 1, **config}
        config |= inner if isinstance(inner, Mapping) else {}
    heads = _positive(config, "num_attention_heads", "n_head", "num_heads")
    hidden = _positive(config, "hidden_size", "n_embd", "d_model")
    key_heads = line.key_heads if line.key_heads is not None and config.get("multi_query", True) else None
    sizes = _head_sizes(family, config, line, hidden, heads)
    layers = count_of_layers(family, config)
    layers = layers or _positive(config, "num_hidden_layers", "n_layer", "num_layers", maximum=MOST_LAYERS)
    if refused is None:
        layers_without_attention(family, config, layers)
        check_rotary(family, config, sizes.turned)
    return Host(
        vocabulary_size=_positive(config, "vocab_size"),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        key_heads=heads if sizes.cached else key_heads or positive_int(config, "num_key_value_heads", heads),
        head_dim=sizes.key,
        value_dim=None if sizes.value == sizes.key else sizes.value,
        cached=sizes.cached,
        max_positions=_positive(config, "max_position_embeddings", "n_positions", default=2048),
        dtype=read_dtype(host_config),
        config=encode_floats(host_config),
        attention=line.attention if decoder is None else line.attention.replace("model.", f"model.{decoder}.", 1),
        refused=refused,
        windows=None if refused else local_layers(family, config, layers),
    )


def _decoder_config(config: Config) -> dict[str, Any]:
    """Return the config of the text decoder inside another model, with transformers' defaults for keys that it leaves out. Raises
    ConfigError."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        model_config = CONFIG_MAPPING[str(config["model_type"])].from_dict(dict(config))
        text = encode_floats(model_config.get_text_config(decoder=True).to_dict())
        # As in a file, where all keys are strings.
        return json.loads(json.dumps({key: text[key] for key in text if key not in (*DTYPE_KEYS, "transformers_version")}))
    except Exception as error:  # values of a config that transformers does not check end in any error
        raise ConfigError(f"transformers cannot read it: {shorten(str(error))} ({type(error).__name__}).") from error


def _head_sizes(model_type: str, config: Config, line: Line, hidden: int, heads: int) -> HeadSizes:
    even = hidden // heads if hidden % heads == 0 else None
    latent = LATENT.get(model_type)
    if latent is None:
        size = positive_int(config, "head_dim", line.head_dim or even)
        return HeadSizes(size, size, size)
    still, turned = (positive_int(config, key, getattr(latent, key)) for key in ("qk_nope_head_dim", "qk_rope_head_dim"))
    value = positive_int(config, "v_head_dim", latent.v_head_dim or even)
    return HeadSizes(still + turned, value, turned, positive_int(config, "kv_lora_rank", latent.kv_lora_rank) + turned)


def decoder_of(config: Config) -> Mapping[str, Any] | None:
    """Return the part of a config that describes the text decoder of a model that reads images or sound, too; None for a model
    that is a text decoder, and nothing else."""
    if not any(isinstance(config.get(key), Mapping) for key in OTHER_PARTS):
        return None
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _refusal(model_type: str, config: Config) -> str | None:
    """Return why models of a family cannot be composed; None where they can."""
    inner = decoder_of(config)
    text = config if inner is None else inner
    reason = REFUSED.get(model_type) or REFUSED.get(str(text.get("model_type")))
    reason = reason(text) if callable(reason) else reason
    if reason is None and _has_no_decoder(text):
        reason = "it has no decoder alone that writes text, and heads replace the attention of such decoders"
    elif reason is None and inner is not None:
        reason = (
            "it reads images or sound as well, and heads inside the whole model are not compared with it in this family. "
            "`--text-only` uses its text decoder, and leaves the other parts out"
        )
    return None if reason is None else f"models of the family {model_type} cannot be a source: {reason}."


def _has_no_decoder(config: Config) -> bool:
    """Whether a config is that of an encoder of images, sound or text, or of an encoder with a decoder."""
    is_encoder = str(config.get("model_type")).endswith("_text_model") or "conv_dim" in config or "num_mel_bins" in config
    return config.get("is_encoder_decoder") is True or is_encoder or ("patch_size" in config and "vocab_size" not in config)


def _positive(config: Config, *keys: str, default: int | None = None, maximum: int | None = None) -> int:
    """Return the value of the first of several keys that the config has."""
    key = next((key for key in keys if config.get(key) is not None), keys[0])
    return positive_int(config, key, default) if maximum is None else positive_int(config, key, default, maximum)


EVERY = frozenset({"mistral", "mixtral", "ministral", "phi3", "phimoe", "starcoder2"})
"""Families whose layers all have the window, where the config has one and names no layers."""
EACH_NTH_SEES_ALL: Mapping[str, int] = {"cohere2": 4, "gemma2": 2, "gemma3_text": 6}
"""Families in which, of so many layers, the last sees everything, where the config names no layers."""
FROM_A_LAYER_ON = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""Families with a window only if ``use_sliding_window`` is set; their first ``max_window_layers`` layers have none."""


def local_layers(model_type: str, config: Config, layers: int) -> tuple[int | None, ...] | None:
    """Return the window of each layer, in tokens, the query's own included; None for a layer without one, and if no layer has one.
    If neither the config nor its family determines the layers, none has a window. Raises ConfigError if the number of kinds is not
    that of the layers.
    """
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    used = config.get("use_sliding_window", model_type not in FROM_A_LAYER_ON)
    if not isinstance(window, int) or window < 1 or not used:
        return None
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise ConfigError(f"config.json: layer_types must be a list with one type for each of its {layers:,} layers.")
        local = [kind == "sliding_attention" for kind in kinds]
    elif model_type in EVERY:
        local = [True] * layers
    elif model_type in EACH_NTH_SEES_ALL:
        every = positive_int(config, "sliding_window_pattern", EACH_NTH_SEES_ALL[model_type])
        local = [(layer + 1) % every != 0 for layer in range(layers)]
    elif model_type in FROM_A_LAYER_ON:
        first = config.get("max_window_layers")
        local = [isinstance(first, int) and layer >= first for layer in range(layers)]
    else:
        return None
    return tuple(window if is_local else None for is_local in local) if any(local) else None
