"""The classes of composed models."""

from __future__ import annotations

from typing import TypeAlias

from composer.model.classification import ComposedForSequenceClassification
from composer.model.modeling import ComposedForCausalLM

Composed: TypeAlias = ComposedForCausalLM | ComposedForSequenceClassification


def class_of(labels: int | None) -> type[ComposedForCausalLM] | type[ComposedForSequenceClassification]:
    """A language model, or a classifier where its trunk has labels."""
    return ComposedForCausalLM if labels is None else ComposedForSequenceClassification
