"""``sample``: texts that a model writes, for its students."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from blocks.part import Closed
from composer.errors import ComposerError, DataError, translate_errors
from composer.generation.writers import LAST
from composer.options.classes import function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import (
    OUT_FILE,
    PROGRESS,
    TOP_P,
    AnyModelArgument,
    DeviceOption,
    ForceOption,
    SeedOption,
    to_path,
    to_tokens,
)
from composer.reporting.progress import BarUpdate, progress_callback, silent_transformers
from composer.reporting.tables import Readable, View
from composer.reporting.terminal import at_once, heading, print_json
from composer.reporting.words import plural
from composer.runs.store import check_output_file, output_file
from composer.spec.inherit import short_path
from composer.system.devices import check_device, room_for
from composer.weights.config import check_positions
from composer.weights.sources import describe_model

SHOWN = 3
"""Texts of a file that a report shows."""
LONGEST = 200
"""Characters of each."""


class Sampled(Readable, Closed):
    """A file of texts, one JSON object a line. first: the first of them."""

    out: Path
    texts: int
    first: tuple[str, ...]

    def view(self) -> View:
        cut = [text if len(text) <= LONGEST else f"{text[:LONGEST]} …" for text in self.first]
        return View(f"Wrote {plural(self.texts, 'text')} to {short_path(self.out)}", verbatim="\n\n".join(cut))


@options_class
class SampleOptions(ForceOption, DeviceOption, SeedOption, AnyModelArgument):
    """Write texts with a model, to train its student on.

    For a teacher whose training data are not available: `compose distill STUDENT --data FILE`.
    """

    error: ClassVar[type[ComposerError]] = DataError
    example: ClassVar[str] = 'composer.sample("teacher", "texts.jsonl", texts=100, length=128)'
    out: Path = option(
        "File for the texts, as JSON lines. It appears whole or not at all.",
        converter=to_path,
        kw_only=False,
        **OUT_FILE,
    )
    texts: int = option("Number of texts.", default=1000, minimum=1)
    length: int = option(
        "Largest number of tokens of a text, BOS included. 1k is 1,024.", default=512, converter=to_tokens(2), metavar="N"
    )
    temperature: float = option("1 is the model's own distribution.", default=1.0, minimum=0.01)
    top_p: float = option(TOP_P, default=1.0, minimum=0.01, maximum=1)
    batch: int = option("Texts of a batch. Another number changes the texts.", default=32, minimum=1)
    progress: bool | Callable[[int, int], None] = option(PROGRESS, default=False, is_checked=False, is_hidden=True)


@translate_errors
def run_sample(options: SampleOptions) -> Sampled:
    model, texts, batch, longest = options.model, options.texts, options.batch, options.length
    device, force = options.device, options.force
    target = options.out.expanduser()
    check_output_file(target, DataError, force=force, example="texts.jsonl")
    described = describe_model(model)  # report mistakes before imports that need seconds
    check_positions(described.trunk, model, longest, f"{LAST}; the largest possible --length is", DataError, more=-1)
    check_device(device)
    first: list[str] = []
    fewer = f"Write fewer texts at once (--batch, now {batch:,}), or shorter ones (--length, now {longest:,})."
    with room_for(f"on {device}", fewer, DataError), silent_transformers("error"):
        from composer.data.sampling import sample_texts
        from composer.training.rows import tokenizer_of
        from composer.training.teacher import open_language_model

        source = open_language_model(model)
        tokenizer = tokenizer_of(source.source.folder)
        loaded = source.load(device)
        with (
            output_file(target, DataError, force=force) as partial,
            partial.open("w", encoding="utf-8") as stream,
            progress_callback(options.progress, bar_of, "name", "bar", "count", "left") as tell,
        ):
            drawing = {name: getattr(options, name) for name in ("temperature", "top_p", "seed", "batch")}
            written = sample_texts(loaded, tokenizer, texts, longest, **drawing)
            for done, text in enumerate(written, 1):
                stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                first += [text] if done <= SHOWN else []
                if tell is not None:
                    tell(done, texts)
    return Sampled(out=target, texts=texts, first=tuple(first))


sample = function_of(SampleOptions, run_sample)


def bar_of(done: int, total: int) -> BarUpdate:
    """Return the number of finished texts, as a bar shows it."""
    return BarUpdate("texts", done, total)


@command(SampleOptions, "quiet", "as_json")
def sample_command(options: SampleOptions, screen: Screen) -> None:
    at_once(f"Reading {options.model}", quiet=screen.hides_progress)
    sampled = run_sample(replace(options, progress=not screen.hides_progress))
    if screen.as_json:
        print_json(sampled.model_dump(mode="json"))
    else:
        heading(f"Wrote {short_path(sampled.out)}")
