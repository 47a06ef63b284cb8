"""Law 3: rows do not see each other, padding is not seen at all, and a document never sees its neighbour in a packed row."""
# Tensors of a call are unpacked into its inputs.
# pyright: reportCallIssue=false

from __future__ import annotations

from dataclasses import replace

import torch

from blocks.flow import Tokens
from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.laws.cases import Inputs, build_head, inputs, once, pieces, run


def close(actual: torch.Tensor, expected: torch.Tensor, place: str = "here") -> None:
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11 * scale, msg=lambda message: f"{place}: {message}")


def pack_documents(shape: Shape, length: int, bounds: tuple[int, ...]) -> tuple[Inputs, list[slice]]:
    """Return one row of several documents."""
    data, documents = inputs(shape, 1, length), pieces(length, bounds)
    position = torch.cat([torch.arange(document.stop - document.start) for document in documents])[None]
    segment = torch.cat([torch.full((d.stop - d.start,), number) for number, d in enumerate(documents)])[None]
    return replace(data, tokens=Tokens(position, segment)), documents


@once
def assert_documents_apart(
    spec: HeadSpec, shape: Shape, length: int, bounds: tuple[int, ...], splits: tuple[tuple[int, ...], ...]
) -> None:
    """The law holds for any split of the row into calls; and the next call continues the last document only."""
    head = build_head(spec, shape)
    row, documents = pack_documents(shape, length, bounds)
    following = inputs(shape, 1, 3, seed=9)
    following = replace(following, tokens=Tokens(following.tokens.position + documents[-1].stop - documents[-1].start))
    outputs_of_documents, last = [], None
    for document in documents:
        document_inputs = replace(row.cut(document), tokens=Tokens(row.tokens.position[:, document]))
        output, last = run(head, document_inputs)
        outputs_of_documents.append(output)
    goes_on, _ = run(head, following, last)
    for split in splits:
        outputs, state = [], None
        for piece in pieces(length, split):
            output, state = run(head, row.cut(piece), state)
            outputs.append(output)
        from_pieces = torch.cat(outputs, dim=1)
        for document, wanted in zip(documents, outputs_of_documents, strict=True):
            close(from_pieces[:, document], wanted, f"split at {split}, {document}")
        close(run(head, following, state)[0], goes_on, f"split at {split}, what follows")


@once
def assert_padding_unseen(spec: HeadSpec, shape: Shape, lengths: tuple[int, ...], backend: str) -> None:
    """Ragged rows, real tokens first, then a second call: each row is as if it had been alone."""
    head, longest = build_head(spec, shape), max(lengths)
    data, more = inputs(shape, len(lengths), longest), inputs(shape, len(lengths), 4, seed=2)
    count = torch.tensor(lengths)[:, None]
    ragged = replace(data, tokens=Tokens(data.tokens.position, valid=torch.arange(longest) < count))
    output, state = run(head, ragged, backend=backend)
    output_more, _ = run(head, replace(more, tokens=Tokens(more.tokens.position + count)), state, backend)
    assert output.isfinite().all()
    for row, length in enumerate(lengths):
        row_inputs = Inputs(*(tensor[row : row + 1] for tensor in data.tensors), Tokens(data.tokens.position[:1]))
        expected, own_state = run(head, row_inputs.cut(slice(0, length)), backend=backend) if length else (None, None)
        if expected is not None:
            close(output[row : row + 1, :length], expected)
        after = Inputs(*(tensor[row : row + 1] for tensor in more.tensors), Tokens(more.tokens.position[:1] + length))
        close(output_more[row : row + 1], run(head, after, own_state, backend)[0])


def assert_rows_apart(spec: HeadSpec, shape: Shape) -> None:
    head, data = build_head(spec, shape), inputs(shape, 3, 40)
    order = torch.tensor([2, 0, 1])
    shuffled = Inputs(*(tensor[order] for tensor in data.tensors), data.tokens)
    close(run(head, shuffled)[0], run(head, data)[0][order])
