"""Scores: what a pair is worth to a sparse cache. One line below is all that a new one adds to the catalogue."""

from __future__ import annotations

from typing import Annotated

from blocks.registry import Role
from blocks.scores.absolute_error import AbsoluteError
from blocks.scores.base import Score
from blocks.scores.overestimate import Overestimate
from blocks.scores.random import Random
from blocks.scores.recent import Recent
from blocks.scores.relative_recall import RelativeRecall
from blocks.scores.self_recall import SelfRecall
from blocks.scores.squared_error import SquaredError

SCORES = Role("score", Score, SelfRecall, RelativeRecall, SquaredError, AbsoluteError, Overestimate, Recent, Random)
ScoreConfig = Annotated[Score, SCORES]
