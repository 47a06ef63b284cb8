"""The configuration of a composed model: a Llama trunk and a resolved spec."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers.models.llama.configuration_llama import LlamaConfig

from composer.spec.resolve import Resolved


class ComposedConfig(LlamaConfig):
    """Llama's fields, with the resolved spec beside them.

    spec: the resolved document, as ``composer.spec.resolve.Resolved`` writes it. spec_hash: its hash, what the heads mean.
    """

    model_type: ClassVar[str] = "composed"  # pyright: ignore[reportIncompatibleVariableOverride]

    spec: dict[str, Any] | None = None
    spec_hash: str | None = None

    def resolved(self) -> Resolved:
        """The spec, validated. Raises ValueError where there is none, or where it does not have its hash."""
        if self.spec is None:
            raise ValueError("this configuration has no spec: a composed model is made by `compose build`")
        resolved = Resolved.model_validate(self.spec)
        if self.spec_hash is not None and resolved.hash != self.spec_hash:
            raise ValueError(f"the spec in this configuration has the hash {resolved.hash}, and it says {self.spec_hash}")
        return resolved
