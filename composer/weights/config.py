"""The trunk of a model: its sizes, its parameters where it has no source, and the ``config.json`` that describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blocks import initialise
from blocks.part import Fresh
from blocks.positions import Llama3Scaling
from composer.errors import BuildError, ComposerError, SourceError
from composer.spec.dimensions import Dimensions
from composer.spec.resolve import Resolved, fresh_parameters
from converters.composed import TRUNK_KEYS
from converters.hosts import Host
from converters.model_types import AUTO_MAP, OWN, PREFIX
from converters.trunk import DEFAULTS, DTYPE_KEYS, Dtype, Sizes, Trunk, list_expected_tensors

if TYPE_CHECKING:
    from composer.weights.tokenizer import Tokenizer

DEVIATION = 0.02
"""Standard deviation of the normal distribution that embeddings and projections start from."""
ANY_LENGTH = 2048
"""``max_position_embeddings`` where no positions are learned: a number that nothing depends on."""


def dimensions(trunk: Sizes) -> Dimensions:
    """Return the dimensions that a spec resolves against. Raises SourceError for a model that cannot be composed with heads."""
    if isinstance(trunk, Host):
        if trunk.refused is not None:
            raise SourceError(trunk.refused)
        names = ("attention", "without_attention", "sees_ahead")
        return Dimensions(**_sizes(trunk), rope_theta=None, **{name: getattr(trunk, name) for name in names})
    assert isinstance(trunk, Trunk), "there are two"
    scaling = trunk.rope_scaling
    return Dimensions(
        **_sizes(trunk),
        rope_theta=trunk.rope_theta,
        rope_scaling=None
        if scaling is None
        else Llama3Scaling(
            factor=scaling["factor"],
            low_frequency_factor=scaling["low_freq_factor"],
            high_frequency_factor=scaling["high_freq_factor"],
            original_length=scaling["original_max_position_embeddings"],
        ),
    )


def _sizes(trunk: Sizes) -> dict[str, Any]:
    names = ("hidden_size", "layers", "heads", "key_heads", "head_dim", "value_dim", "cached")
    return {name: getattr(trunk, name) for name in names}


def check_positions(
    sizes: Sizes,
    reference: str,
    tokens: int,
    ask: str,
    refusal: type[ComposerError] = ComposerError,
    *,
    more: int = 0,
    purpose: str = "",
) -> None:
    """Raise ``refusal`` if tokens, and ``more``, exceed a model's table of learned positions. Other kinds have no end.

    reference: the model. ask: the words before the largest possible number. purpose: words that describe the tokens.
    """
    limit = sizes.max_positions - more
    if sizes.learns_positions and tokens > limit:
        raise refusal(
            f"{reference} has learned {sizes.max_positions:,} positions, too few for {tokens:,} tokens{purpose}: "
            f"{ask} {max(limit, 0):,}."
        )


def trunk_from(resolved: Resolved, dtype: Dtype, tokenizer: Tokenizer | None = None) -> Trunk:
    """Return the trunk that a resolved spec describes. Raises ``BuildError`` if the tokenizer has more tokens than it."""
    spec, size = resolved.trunk, resolved.dimensions
    if spec is None or spec.mlp.width is None:
        raise BuildError("The spec was resolved against a source. Resolve it by itself: with its own `trunk` it is complete.")
    if tokenizer is not None and tokenizer.size > spec.vocabulary:
        raise BuildError(
            f"The tokenizer of {tokenizer.folder} has {tokenizer.size:,} tokens, and the trunk has embeddings for "
            f"{spec.vocabulary:,}. Set `trunk.vocabulary: {tokenizer.size}`, or choose another tokenizer."
        )
    special = tokenizer.special if tokenizer is not None else {}
    return Trunk(
        vocabulary_size=spec.vocabulary,
        hidden_size=size.hidden_size,
        intermediate_size=spec.mlp.width,
        layers=size.layers,
        heads=size.heads,
        key_heads=size.key_heads,
        head_dim=size.head_dim,
        norm_epsilon=spec.norm_epsilon,
        attention_bias=spec.bias,
        mlp_bias=False,
        tied_embeddings=spec.tied,
        rope_theta=spec.theta,
        rope_scaling=None,
        max_positions=spec.length or ANY_LENGTH,
        activation=spec.mlp.activation,
        bos_token_id=special.get("bos_token_id"),
        eos_token_id=special.get("eos_token_id"),
        # The embedding of a padding token is never trained, and some tokenizers pad with what ends a text.
        pad_token_id=None,
        dtype=dtype,
        initializer_range=DEVIATION,
        norm=spec.norm,
        mlp=spec.mlp.kind,
        position_embedding=spec.embedding,
        dropout=spec.dropout,
        labels=spec.labels,
    )


def own_parameters(resolved: Resolved, trunk: Trunk | None = None) -> dict[str, Fresh]:
    """Return the parameters that need no source, by their full names: those of the heads and of ``trunk``.

    In a trunk, norms start as 1, biases as 0, and all others as normal numbers.
    """
    parameters = {} if trunk is None else {name: Fresh(shape, _fill(name)) for name, shape in list_expected_tensors(trunk).items()}
    return parameters | fresh_parameters(resolved)


def _fill(name: str) -> initialise.Fill:
    *_, module, tensor = name.split(".")
    if tensor == "bias":
        return initialise.constant(0.0)
    return initialise.constant(1.0) if module.endswith("norm") else initialise.normal(DEVIATION)


def config_dict(trunk: Sizes, resolved: Resolved, dtype: str) -> dict[str, Any]:
    """Return the contents of ``config.json`` of a composed model, without transformers, whose import needs seconds.

    They are a host's own fields, or Llama's and those that only our own trunk has, and the resolved spec.
    """
    spec = {"auto_map": AUTO_MAP, "spec": resolved.model_dump(mode="json"), "spec_hash": resolved.hash}
    if isinstance(trunk, Host):
        trunk_fields = {key: value for key, value in trunk.config.items() if key not in DTYPE_KEYS}
        host = str(trunk_fields["model_type"])
        return {**trunk_fields, "architectures": ["ComposedForCausalLM"], "model_type": f"{PREFIX}{host}", "dtype": dtype, **spec}
    assert isinstance(trunk, Trunk), "there are two"
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": trunk.rope_theta}
    if trunk.rope_scaling is not None:
        rope |= {"rope_type": "llama3", **trunk.rope_scaling}
    trunk_fields = {key: value for key, field in TRUNK_KEYS.items() if (value := getattr(trunk, field)) != DEFAULTS[field]}
    if trunk.labels is not None:
        trunk_fields["id2label"] = {str(label): f"LABEL_{label}" for label in range(trunk.labels)}
        trunk_fields["label2id"] = {f"LABEL_{label}": label for label in range(trunk.labels)}
    return {
        "architectures": ["ComposedForCausalLM" if trunk.labels is None else "ComposedForSequenceClassification"],
        "model_type": OWN,
        "vocab_size": trunk.vocabulary_size,
        "hidden_size": trunk.hidden_size,
        "intermediate_size": trunk.intermediate_size,
        "num_hidden_layers": trunk.layers,
        "num_attention_heads": trunk.heads,
        "num_key_value_heads": trunk.key_heads,
        "head_dim": trunk.head_dim,
        "hidden_act": trunk.activation,
        "rms_norm_eps": trunk.norm_epsilon,
        "attention_bias": trunk.attention_bias,
        "mlp_bias": trunk.mlp_bias,
        "tie_word_embeddings": trunk.tied_embeddings,
        "rope_parameters": rope,
        "max_position_embeddings": trunk.max_positions,
        "initializer_range": trunk.initializer_range,
        "bos_token_id": trunk.bos_token_id,
        "eos_token_id": trunk.eos_token_id,
        "pad_token_id": trunk.pad_token_id,
        "dtype": dtype,
        **trunk_fields,
        **spec,
    }


def read_recorded_trunk(stored: Mapping[str, Any]) -> Sizes:
    """Return the trunk that a record stores."""
    return Host(**stored) if "config" in stored else Trunk(**stored)
