"""The canonical names, which are Llama's where it has the thing, and their shapes."""

from __future__ import annotations

from converters.trunk import Trunk

EMBEDDING = "model.embed_tokens.weight"
POSITIONS = "model.embed_positions.weight"
OUTPUT = "lm_head.weight"
CLASSIFIER = "score.weight"
COMPOSED = "model.layers.{i}.self_attn.composed.{rest}"
"""Parameters of composed heads: ``{rest}`` is ``<head>.<part>.<tensor>``."""


def is_composed(name: str) -> bool:
    """Whether a canonical name is that of a composed head's own parameter."""
    return ".composed." in name


def list_expected_tensors(trunk: Trunk) -> dict[str, tuple[int, ...]]:
    """Return the canonical name and shape of every tensor that a trunk reads from its source. Matrices are ``[out, in]``."""
    hidden, middle = trunk.hidden_size, trunk.intermediate_size
    queries, keys = trunk.heads * trunk.head_dim, trunk.key_heads * trunk.head_dim
    attention = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden), "o_proj": (hidden, queries)}
    gate = {"gate_proj": (middle, hidden)} if trunk.mlp == "gated" else {}
    mlp = {**gate, "up_proj": (middle, hidden), "down_proj": (hidden, middle)}
    norm = ("weight", "bias") if trunk.norm == "layer" else ("weight",)

    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (trunk.vocabulary_size, hidden)}
    if trunk.position_embedding == "learned":
        tensors[POSITIONS] = (trunk.max_positions, hidden)
    for layer in (f"model.layers.{i}" for i in range(trunk.layers)):
        tensors |= {f"{layer}.input_layernorm.{name}": (hidden,) for name in norm}
        for name, shape in attention.items():
            tensors[f"{layer}.self_attn.{name}.weight"] = shape
            if trunk.attention_bias:
                tensors[f"{layer}.self_attn.{name}.bias"] = shape[:1]
        tensors |= {f"{layer}.post_attention_layernorm.{name}": (hidden,) for name in norm}
        for name, shape in mlp.items():
            tensors[f"{layer}.mlp.{name}.weight"] = shape
            if trunk.mlp_bias:
                tensors[f"{layer}.mlp.{name}.bias"] = shape[:1]
    tensors |= {f"model.norm.{name}": (hidden,) for name in norm}
    if trunk.labels is not None:
        tensors[CLASSIFIER] = (trunk.labels, hidden)
    elif not trunk.tied_embeddings:
        tensors[OUTPUT] = (trunk.vocabulary_size, hidden)
    return tensors
