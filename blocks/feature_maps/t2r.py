"""T2R: ReLU of a learned affine map."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.feature_maps.relu import Relu


class LearnedRelu(Relu):
    """φ(x) = max(xW + b, 0), the map of "Finetuning Pretrained Transformers into RNNs"."""

    equation: ClassVar[str] = "φ(x) = max(xW + b, 0)"
    source: ClassVar[str] = "Kasai et al. 2021, arXiv:2103.13076, section 2.2"
    kind: Literal["t2r"] = "t2r"  # pyright: ignore[reportIncompatibleVariableOverride]
    linear: bool = True
    bias: bool = True
