"""Mixers: hidden states mixed over time before something looks at them. One line below is all that a new one adds."""

from __future__ import annotations

from typing import Annotated

from blocks.mixers.base import Mixer
from blocks.mixers.convolution import ConvolutionMixer
from blocks.mixers.rglru import RGLRU
from blocks.registry import Role

MIXERS = Role("mix input", Mixer, ConvolutionMixer, RGLRU)
MixerConfig = Annotated[Mixer, MIXERS]
