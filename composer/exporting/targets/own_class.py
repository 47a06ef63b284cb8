"""The class of the source: softmax attention in every layer."""

from __future__ import annotations

from composer.exporting.targets.target import OWN_TRUNK, SOFTMAX, LayerType, NativeTarget

TARGET = NativeTarget(
    name="source",
    architecture=None,
    spec="softmax",
    layers=(LayerType(name="full_attention", head=SOFTMAX, formula="the source's class has softmax attention over all tokens"),),
    fixed=OWN_TRUNK,
    sees_all=False,
    config=lambda student, types: {},
)
"""On any host. The model's own files are the class's."""
