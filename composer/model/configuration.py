"""The configuration of a composed model: its trunk, in Llama's fields and a few of our own, and a resolved spec."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from transformers.models.llama.configuration_llama import LlamaConfig

from composer.spec.resolve import Resolved


class ComposedConfig(LlamaConfig):
    """Llama's fields, with the resolved spec beside them, and what a trunk of our own may have that Llama's has not.

    spec: the resolved document, as ``composer.spec.resolve.Resolved`` writes it. spec_hash: its hash, what the heads mean.
    norm_type, mlp_type, position_embedding, residual_dropout: as ``composer.spec.trunk.TrunkSpec`` has them; ``rms_norm_eps`` is
    the epsilon of either norm, and ``max_position_embeddings`` the number of positions that are learned. labels: the classes of
    a classifier; None for a language model. adapter: the folder, inside the model's own, of adapters that belong to the weights.
    """

    model_type: ClassVar[str] = "composed"  # pyright: ignore[reportIncompatibleVariableOverride]

    spec: dict[str, Any] | None = None
    spec_hash: str | None = None
    norm_type: Literal["rms", "layer"] = "rms"
    mlp_type: Literal["gated", "plain"] = "gated"
    position_embedding: Literal["none", "sinusoidal", "learned"] = "none"
    residual_dropout: float = 0.0
    labels: int | None = None
    adapter: str | None = None

    def resolved(self) -> Resolved:
        """The spec, validated. Raises ValueError where there is none, or where it does not have its hash."""
        if self.spec is None:
            raise ValueError("this configuration has no spec: a composed model is made by `compose build`")
        resolved = Resolved.model_validate(self.spec)
        if self.spec_hash is not None and resolved.hash != self.spec_hash:
            raise ValueError(f"the spec in this configuration has the hash {resolved.hash}, and it says {self.spec_hash}")
        return resolved
