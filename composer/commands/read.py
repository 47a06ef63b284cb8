"""``read``: a model reads a text once, and its state becomes a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from blocks.part import Closed
from composer.errors import ComposerError, translate_errors
from composer.generation.writers import EXAMPLE, check_composed, check_tokens, load_writer, no_room, owner_of, tokenizer_of_writer
from composer.options.classes import argument, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import OUT_FILE, PROGRESS, BackendOption, DeviceOption, ForceOption, PartsOption, to_path, to_text
from composer.reporting.progress import BarUpdate, progress_callback, silent_transformers
from composer.reporting.tables import Readable, View
from composer.reporting.terminal import at_once, print_report
from composer.reporting.words import layers_in_words, plural, size
from composer.runs.store import check_output_file, output_file
from composer.spec.inherit import short_path
from composer.system.devices import check_device, few_threads, room, room_for
from composer.system.files import MOST_TEXT, read_text_file
from composer.weights.config import check_positions
from composer.weights.sources import describe_model


class ReadText(Readable, Closed):
    """A text that a model has read. state_bytes: of the state; file_bytes: with the file's header. growing_layers: the layers whose
    state grows with the text. seconds: of reading alone."""

    out: Path
    tokens: int
    state_bytes: int
    file_bytes: int
    growing_layers: tuple[int, ...]
    seconds: float

    def view(self) -> View:
        return View(f"Read {plural(self.tokens, 'token')}. State: {short_path(self.out)}", notes=self.remarks)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The size, the time, and the layers whose state grows."""
        grows = f"the state grows with the text in {layers_in_words(self.growing_layers)}" if self.growing_layers else None
        return (f"{size(self.state_bytes)}, {self.seconds:.2f} s", *([grows] if grows else []))


@options_class
class ReadOptions(ForceOption, BackendOption, DeviceOption, PartsOption):
    """Read a text once, and write the model's state after it.

    `compose generate MODEL --state STATE --prompt TEXT` continues directly after the text. The text is read in pieces, so memory
    does not grow with it, except in layers that keep every pair. A state belongs to the weights and the tokenizer that made it.
    """

    example: ClassVar[str] = 'composer.read("lawcat-mine", "book.txt", "book.state").tokens'
    model: str = argument("A built model: a folder, or OWNER/NAME of the Hub.", converter=to_text)
    text: Path = option(
        f"Text file in UTF-8, of at most {MOST_TEXT // 2**20} MiB.", converter=to_path, kw_only=False, metavar="FILE"
    )
    out: Path = option(
        "File for the state, in the safetensors format. It appears whole or not at all.",
        converter=to_path,
        kw_only=False,
        **OUT_FILE,
    )
    progress: bool | Callable[[int, int], None] = option(PROGRESS, default=False, is_checked=False, is_hidden=True)


@translate_errors
def run_read(options: ReadOptions) -> ReadText:
    model, device, out = options.model, options.device, options.out.expanduser()
    check_output_file(out, ComposerError, force=options.force, example=EXAMPLE)
    described = describe_model(model)  # report mistakes before imports that need seconds
    check_composed(model, is_composed=described.is_composed)
    text = read_text_file(options.text.expanduser(), ComposerError, MOST_TEXT)
    check_device(device)
    with room_for(f"on {device}", "Read a shorter text, or use a smaller model."), silent_transformers("error"):
        import torch

        from composer.model.cache import new_cache
        from composer.model.generation import read_in_pieces
        from composer.model.state_file import growing_layers, save_cache

        loaded, folder = load_writer(model, device, options.backend, built=True)
        tokenizer = tokenizer_of_writer(folder)
        ids = tokenizer(text)["input_ids"]
        if not ids:
            raise ComposerError(f"{options.text} has no tokens: name a file with text")
        check_tokens(f"{options.text}", ids, loaded, tokenizer)
        check_positions(described.trunk, model, len(ids), "read a text of at most")
        growing, owner, cache = growing_layers(loaded), owner_of(model, folder, loaded), new_cache(loaded.config)
        began = time.perf_counter()
        with (
            room(lambda: no_room(loaded, len(ids))),
            few_threads(loaded),
            progress_callback(options.progress, bar_of, "name", "bar", "count", "left") as watch,
        ):
            read_in_pieces(loaded, torch.tensor([ids], device=device), cache, watch)
        seconds = time.perf_counter() - began
        with output_file(out, ComposerError, force=options.force) as partial:
            save_cache(partial, cache, loaded, owner)
    return ReadText(
        out=out,
        tokens=len(ids),
        state_bytes=cache.bytes(),
        file_bytes=out.stat().st_size,
        growing_layers=tuple(growing),
        seconds=round(seconds, 3),
    )


read = function_of(ReadOptions, run_read)


def bar_of(done: int, total: int) -> BarUpdate:
    """Return the number of tokens that have been read, as a bar shows it."""
    return BarUpdate("tokens", done, total)


@command(ReadOptions, "quiet", "as_json")
def read_command(options: ReadOptions, screen: Screen) -> None:
    at_once(f"Reading {options.model}", quiet=screen.hides_progress)
    print_report(run_read(replace(options, progress=not screen.hides_progress)), as_json=screen.as_json)
