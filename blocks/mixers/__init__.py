"""Mixers: hidden states mixed over time before something looks at them. One line below is all that a new one adds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from blocks.mixers.convolution import ConvolutionMixer
from blocks.mixers.rglru import RGLRU
from blocks.part import bare, kinds

MixerConfig = Annotated[ConvolutionMixer | RGLRU, Field(discriminator="kind"), BeforeValidator(bare)]
MIXERS = kinds(MixerConfig)
