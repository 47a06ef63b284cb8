"""How a spec is trained: stage 1 learns the teacher's attention, stage 2 the text; a model built from nothing has one stage."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from blocks.part import Closed

Schedule = Literal["constant", "cosine", "plateau"]
Average = Literal["tokens", "rows"]
Share = Annotated[float, Field(ge=0, le=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


class Lora(Closed):
    """Low-rank adapters for the second stage."""

    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0
    targets: Annotated[tuple[Literal["q", "k", "v", "o"], ...], Field(min_length=1)] = ("q", "k", "v", "o")


class Stage(Closed):
    """The common fields of all stages: AdamW, the length, the learning rate. The stage ends at the first of epochs, steps and
    tokens."""

    lr: PositiveFloat
    """The learning rate after the warm-up."""
    epochs: PositiveInt | None = None
    """Passes over the data."""
    steps: PositiveInt | None = None
    """Optimizer steps."""
    tokens: PositiveInt | None = None
    """Number of tokens to train on, rounded to whole steps."""
    batch: PositiveInt = 8
    """Rows of a step, over all processes."""
    accumulate: PositiveInt = 1
    """Number of parts of a step's rows that are processed one after the other. More parts need less memory and more time."""
    schedule: Schedule = "constant"
    """After the warm-up: constant; half a cosine down to ``final``; or halved after two evaluations in a row without improvement
    (plateau)."""
    warmup: NonNegativeInt = 0
    """Steps in which the learning rate rises from 0."""
    final: Share = 0.0
    """The last learning rate of a cosine, as a share of ``lr``."""
    clip: PositiveFloat | None = 1.0
    """The largest norm of a gradient: of each layer if attention is transferred layer by layer, otherwise of the whole model."""
    weight_decay: NonNegativeFloat = 0.0
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    evaluate: PositiveInt | None = None
    """Steps between evaluations. Left out: ten evaluations in all."""
    patience: PositiveInt | None = None
    """Number of evaluations in a row without improvement after which the stage stops. Left out: it does not stop early."""
    keep: Literal["best", "last"] = "best"
    """Which parameters the stage ends with if it is evaluated: those of the best evaluation, or the last. If layers learn
    separately, each layer has its own best evaluation."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.epochs is None and self.steps is None and self.tokens is None:
            raise ValueError("has no length: set epochs, steps or tokens")
        if self.batch % self.accumulate:
            raise ValueError(f"splits {self.batch} rows into {self.accumulate} parts: batch must be a multiple of accumulate")
        return self


class Transfer(Stage):
    """Stage 1: fresh parameters learn the teacher's attention, layer by layer, or its last hidden states, all layers at once."""

    mse: NonNegativeFloat = 1.0
    """Weight of the mean squared error of what is compared."""
    at: Literal["heads", "output", "model"] = "heads"
    """The outputs that are compared: of each head; after the output projection; or the last hidden states of the model, after
    the final norm. With the first two, each layer has the teacher's hidden states as input; with the last, all layers learn
    together."""
    start: Literal["parts", "scaled", "calibrated", "solved"] = "solved"
    """The start, each with all before it. parts: fresh parameters start at the values of each part. scaled: untrained norms and
    gates of outputs start at the size of the teacher's outputs. calibrated: untrained maps, gates and weights of memories start
    from the teacher's attention, where they support it. solved: after the last step, output projections are solved in closed
    form."""
    cross_entropy: NonNegativeFloat = 0.0
    """Weight of the cross-entropy between attention weights, T × T numbers a head: LoLCATs (workshop), eq. 7."""

    @field_validator("cross_entropy")
    @classmethod
    def _of_layers_that_learn_apart(cls, weight: float, info: ValidationInfo) -> float:
        if weight and info.data.get("at") == "model":
            raise ValueError(
                "compares attention weights layer by layer, and `at: model` compares the model's last hidden states alone: set it "
                "to 0 and use mse, or compare `at: heads`"
            )
        return weight

    @property
    def is_calibrated(self) -> bool:
        """Whether parts start from the teacher's attention."""
        return self.start in ("calibrated", "solved")

    @model_validator(mode="after")
    def _learns_something(self) -> Self:
        if not self.mse and not self.cross_entropy:
            raise ValueError("learns nothing: mse and cross_entropy are both 0")
        return self


class Language(Stage):
    """A stage that trains on the cross-entropy of the next token."""

    average: Average = "tokens"
    """The unit that the loss averages over: all predicted tokens; or rows, each with its own mean, so that rows with few answers
    count as much as rows with many."""


class Finetune(Language):
    """Stage 2: the whole model learns the next token."""

    lora: Lora | None = None
    """Adapters on the trunk's projections."""
    trunk: bool = False
    """Train all of the trunk itself, in place of adapters."""
    fresh: bool = True
    """Also train the fresh parameters of the heads."""
    fresh_lr: PositiveFloat | None = None
    """Learning rate of the fresh parameters. Left out: ``lr``."""
    next_token: NonNegativeFloat = 1.0
    """Weight of the next token's cross-entropy."""
    distill: NonNegativeFloat = 0.0
    """Weight of the Kullback-Leibler divergence from the teacher's distribution."""
    temperature: PositiveFloat = 1.0
    """Temperature of both distributions in that divergence, which is multiplied by its square."""

    @property
    def needs_teacher(self) -> bool:
        """Whether the stage learns from a teacher's distribution."""
        return bool(self.distill)

    @model_validator(mode="after")
    def _trains_something(self) -> Self:
        if self.lora is not None and self.trunk:
            raise ValueError("trains both the trunk and its adapters: set either `lora` or `trunk: true`")
        if self.lora is None and not self.trunk and not self.fresh:
            raise ValueError("trains nothing: set `lora`, `trunk: true`, or `fresh: true`")
        if self.fresh_lr is not None and not self.fresh:
            raise ValueError("has a rate for fresh parameters (fresh_lr) and does not train them (fresh)")
        if not self.next_token and not self.distill:
            raise ValueError("learns nothing: next_token and distill are both 0")
        return self


class Train(Language):
    """Training from nothing: every parameter learns the next token."""


class Recipe(Closed):
    """How a model of the spec is trained. The record of the model contains it; the hash of the spec does not depend on it."""

    data: str | None = None
    """The training data that the paper uses, for readers. ``--data`` sets the data of a run."""
    sequence: PositiveInt | None = None
    """Tokens of a row. Left out: 1,024, or as many as the source was made for if that is less."""
    rows: Literal["packed", "joined", "whole", "padded"] = "packed"
    """packed: documents end to end, none of which sees another; joined: end to end, and a row is one text, positions and all;
    whole: packed, but cut only where one is longer than a row; padded: each in separate rows."""
    transfer: Transfer | None = None
    finetune: Finetune | None = None
    train: Train | None = None
    """Training from nothing, for a spec with its own trunk."""
