"""Scores: what a pair is worth to a sparse cache. One line below is all that a new one adds to the catalogue."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from blocks.part import bare, kinds
from blocks.scores.absolute_error import AbsoluteError
from blocks.scores.overestimate import Overestimate
from blocks.scores.random import Random
from blocks.scores.recent import Recent
from blocks.scores.relative_recall import RelativeRecall
from blocks.scores.self_recall import SelfRecall
from blocks.scores.squared_error import SquaredError

ScoreConfig = Annotated[
    SelfRecall | RelativeRecall | SquaredError | AbsoluteError | Overestimate | Recent | Random,
    Field(discriminator="kind"),
    BeforeValidator(bare),
]
SCORES = kinds(ScoreConfig)
