"""A model sees the documents of a row alone: packed or padded, a token is predicted from its own document only."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from composer.data.packing import Document, PackedRows, Packing, pack
from tests.composer.model.models import llama, student, tokens

LENGTHS = (5, 17, 2, 9, 12)
SPECS = ["lawcat", "lolcats", "lola", "latte-macchiato"]


def documents() -> list[Document]:
    texts = [tokens(1, length, seed=length)[0].numpy().astype(np.int32) for length in LENGTHS]
    return [Document(ids, np.arange(len(ids)) % 3 != 1) for ids in texts]


def alone(model: torch.nn.Module, rows: PackedRows) -> Tensor:
    """Return the log-probabilities of all targets, with each piece of a document in a separate call."""
    log_likelihoods = []
    for ids, labels, position, valid in zip(rows.ids, rows.labels, rows.position, rows.valid, strict=True):
        bounds = [*np.flatnonzero(position == 0), int(valid.sum())]
        for start, end in pairwise(bounds):
            logits = model(torch.tensor(ids[None, start:end]).long(), use_cache=False).logits[0]
            targets = labels[start:end][1:]
            log_likelihoods += [logits[column].log_softmax(-1)[label] for column, label in enumerate(targets) if label != -100]
    return torch.stack(log_likelihoods)


def together(model: torch.nn.Module, rows: PackedRows, *, mask: bool = False) -> Tensor:
    """Return the same from one batch."""
    batch = rows.batch(range(len(rows)))
    logits = model(**batch.inputs(mask=mask), use_cache=False).logits[:, :-1].log_softmax(-1)
    labels = batch.labels[:, 1:]
    return logits.gather(2, labels.clamp(min=0)[..., None])[..., 0][labels != -100]


@pytest.mark.parametrize("how", ["packed", "whole", "padded"])
@pytest.mark.parametrize("spec", SPECS)
@torch.no_grad()
def test_documents_of_a_row_are_independent_in_composed_models(spec: str, how: Packing) -> None:
    model = student(spec, "trunk=null")
    rows = pack(documents(), 16, how=how)
    assert not rows.valid.all()
    expected = alone(model, rows)
    assert len(expected) == rows.targets
    torch.testing.assert_close(together(model, rows), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(together(model, rows, mask=True), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("how", ["packed", "whole", "padded"])
@torch.no_grad()
def test_documents_of_a_row_are_independent_in_the_source(how: Packing) -> None:
    """The teacher of a distillation uses the same boundaries."""
    model, rows = llama(), pack(documents(), 16, how=how)
    torch.testing.assert_close(together(model, rows), alone(model, rows), rtol=0, atol=1e-9)


@torch.no_grad()
def test_the_comparison_detects_missing_boundaries() -> None:
    model, rows = llama(), pack(documents(), 16, how="packed")
    blurred = PackedRows(rows.ids, rows.labels, np.broadcast_to(np.arange(16, dtype=np.int32), rows.ids.shape), rows.valid)
    assert (together(model, blurred) - alone(model, rows)).abs().max() > 1e-3


@torch.no_grad()
def test_the_loss_of_transformers_is_the_mean_over_targets() -> None:
    model, rows = student("lawcat", "trunk=null"), pack(documents(), 16, how="packed")
    batch = rows.batch(range(len(rows)))
    loss = model(**batch.inputs(), labels=batch.labels, use_cache=False).loss
    torch.testing.assert_close(loss.double(), -alone(model, rows).mean(), rtol=0, atol=1e-5)
