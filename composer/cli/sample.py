"""``compose sample``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer

from composer.cli.bars import at_once, counting
from composer.cli.options import SOURCE, Quiet, RunsOn
from composer.cli.screen import heading, without_bars
from composer.devices import check_device
from composer.errors import DataError
from composer.files import whole
from composer.locks import alone, beside
from composer.spec.inherit import shown
from composer.weights.sources import describe_model


def sample(
    model: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE)],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="File for the texts, as JSON lines.")],
    texts: Annotated[int, typer.Option(min=1, help="Number of texts.")] = 1000,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a text at most, BOS included.")] = 512,
    temperature: Annotated[float, typer.Option(min=0.01, help="1 is the model's own distribution.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.01, max=1.0, help="Sample among the likeliest tokens of this probability.")] = 1.0,
    batch: Annotated[int, typer.Option(min=1, help="Texts of a batch; another number gives other texts.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    device: RunsOn = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    quiet: Quiet = False,
) -> None:
    """Let a model write texts to train its student on.

    For a teacher whose own training data are not at hand: compose distill STUDENT --data FILE.
    """
    if out.is_dir():
        raise DataError(f"{shown(out)} is a folder; say a file, such as {shown(out / 'texts.jsonl')}")
    _check_free(out, force=force)
    describe_model(model)  # a mistake is told before all that takes seconds to import
    at_once(f"Reading {model}", quiet=quiet)
    check_device(device)
    from composer.data.sampling import sample_texts
    from composer.training.rows import tokenizer_of
    from composer.training.teacher import open_language_model

    without_bars()
    source = open_language_model(model)
    tokenizer = tokenizer_of(source.source.folder)
    loaded = source.load(device)
    with _made(out, force=force) as stream, counting("texts", texts, quiet=quiet) as taken:
        written = sample_texts(loaded, tokenizer, texts, length, temperature=temperature, top_p=top_p, seed=seed, batch=batch)
        for text in written:
            stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            taken()
    heading(f"Wrote {shown(out)}")


@contextmanager
def _made(out: Path, *, force: bool) -> Iterator[IO[str]]:
    """A file that appears when it is whole, locked until then. Raises DataError where it cannot be written."""
    busy = DataError(f"Another run writes {shown(out)}. Wait until it has ended, or name another file.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with alone(beside(out), busy):
            _check_free(out, force=force)  # it may have come to be while the model was loaded
            with whole(out, replace=force) as partial, partial.open("w", encoding="utf-8") as stream:
                yield stream
    except OSError as error:
        if isinstance(error, FileExistsError) and out.exists():
            raise _exists(out) from None
        raise DataError(f"{shown(out)} cannot be written: {error.strerror or error}") from error


def _check_free(out: Path, *, force: bool) -> None:
    if out.exists() and not force:
        raise _exists(out)


def _exists(out: Path) -> DataError:
    return DataError(f"{shown(out)} exists; name another file, or replace it with --force")
