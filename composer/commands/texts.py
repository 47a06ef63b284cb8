"""``generate`` and ``sample``: models write, to be read by people, or by their students."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from blocks.part import Closed
from composer.commands.output_files import check_output_file, output_file
from composer.commands.reading import check_composed, check_state_files, check_tokens, owner_of, save_continued
from composer.commands.writers import (
    drawing_options,
    load_writer,
    no_room,
    settings_refused,
    tokenizer_of_writer,
)
from composer.data.chat import ends_of, first_messages, prompt_tokens
from composer.devices import check_device, room, room_for, seeded
from composer.errors import ComposerError, DataError, translate_errors
from composer.escape import escape_html
from composer.notices import inform
from composer.options import function_of, option, options_class
from composer.progress import BarUpdate, progress_callback, silent_transformers
from composer.shared_options import (
    OUT_FILE,
    PROGRESS,
    SYSTEM,
    TOP_P,
    OfAnyModel,
    OnDevice,
    OnGraph,
    Replacing,
    Sampling,
    Seeded,
    WithBackend,
    to_optional_path,
    to_path,
    to_tokens,
)
from composer.spec.inherit import shown
from composer.tables import Readable, View
from composer.weights.config import check_positions
from composer.weights.sources import describe_model
from composer.words import plural
from converters.source import GENERATION_CONFIG

SHOWN = 3
"""Texts of a file that a report shows."""
LONGEST = 200
"""Characters of each."""
LAST = "the last one is written, and not read"
"""Why a model writes one token more than it has positions."""


class Generated(Readable, Closed):
    """A text that a model generated. text: with its prompt, except of an answer in a chat; new_text: without it. state_tokens: read
    before the prompt, by the state that it continues. seconds: of generating alone."""

    prompt: str
    text: str
    new_text: str
    prompt_tokens: int
    new_tokens: int
    seconds: float
    state_tokens: int = 0

    def view(self) -> View:
        after = f" after {self.state_tokens:,} of the state" if self.state_tokens else ""
        note = f"{self.prompt_tokens:,} + {self.new_tokens:,} tokens{after}, {self.seconds:.2f} s"
        return View("", notes=(note,), verbatim=self.text)

    def _repr_html_(self) -> str:
        """Return the text, with the generated part emphasised."""
        known = self.text.removesuffix(self.new_text)
        written = f"{escape_html(known)}<b>{escape_html(self.text.removeprefix(known))}</b>"
        return f'<pre style="white-space: pre-wrap">{written}</pre><p>{escape_html(self.view().notes[0])}</p>'


@options_class
class GenerateOptions(Replacing, OnGraph, WithBackend, OnDevice, Sampling, OfAnyModel):
    """Continue a prompt with a model, or answer it with --chat.

    With --state the prompt follows directly after the text that `compose read` has read.
    """

    example: ClassVar[str] = 'composer.generate("lawcat-mine", "Once upon a time", max_new_tokens=32).new_text'
    prompt: str = option("Text to continue. On the command line, - reads it from stdin.", kw_only=False, metavar="TEXT")
    chat: bool = option("Write the prompt in the model's chat template, and print the answer alone.", default=False)
    system: str | None = option(SYSTEM, default=None, metavar="TEXT")
    max_new_tokens: int = option("Largest number of new tokens. 1k is 1,024.", default=64, converter=to_tokens(), metavar="N")
    state: Path | None = option(
        "State to continue, a file of `compose read` or of --state-out. The prompt has no BOS token then.",
        default=None,
        converter=to_optional_path,
        metavar="FILE",
    )
    state_out: Path | None = option(
        "File for the state after the generated text. Its last token is in it, except an EOS token.",
        default=None,
        converter=to_optional_path,
        metavar="FILE",
    )

    def check(self) -> None:
        super().check()
        if self.system is not None and not self.chat:
            raise ComposerError("--system is for a chat: add --chat")
        if self.chat and (self.state is not None or self.state_out is not None):
            raise ComposerError("--chat begins a conversation, and a state continues a text: leave out --chat, or the state")
        if self.force and self.state_out is None:
            raise ComposerError("--force replaces the file of --state-out: add --state-out, or leave out --force")


@translate_errors
def run_generate(options: GenerateOptions) -> Generated:
    model, prompt, most, device = options.model, options.prompt, options.max_new_tokens, options.device
    state, state_out = (None if path is None else path.expanduser() for path in (options.state, options.state_out))
    check_state_files(state, state_out, force=options.force)
    described = describe_model(model)  # report mistakes before imports that need seconds
    keeps_state = state is not None or state_out is not None
    if keeps_state:
        check_composed(model, is_composed=described.is_composed)
    check_device(device)
    with room_for(f"on {device}", "Use a shorter prompt or a smaller model."), silent_transformers("error"):
        from composer.model.cache import CACHE
        from composer.model.generation import continuation, keep_tokens_alone, unread_tokens

        loaded, folder = load_writer(model, device, options.backend, built=described.is_composed)
        tokenizer = tokenizer_of_writer(folder)
        owner = owner_of(model, folder, loaded) if keeps_state else None
        cache = None
        if state is not None and owner is not None:
            from composer.model.state_file import load_cache

            cache = load_cache(state, loaded, owner)
        if options.chat:
            messages = [*first_messages(options.system), {"role": "user", "content": prompt}]
            tokens = prompt_tokens(tokenizer, messages, model).to(device)
        else:
            tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=cache is None).to(device)
            _note_template(tokenizer, prompt, model)
        count, seen = tokens["input_ids"].shape[1], 0 if cache is None else cache.get_seq_length()
        if not count:
            raise ComposerError("the prompt has no tokens; expected at least one")
        check_tokens("the prompt", tokens["input_ids"][0].tolist(), loaded, tokenizer)
        purpose = f", {count:,} of the prompt and {most:,} to write" + (f" after {seen:,} of the state" if seen else "")
        advice, unread = "the largest possible sum is", 0 if state_out is not None else 1
        advice = f"{LAST}, so {advice}" if unread else advice
        check_positions(described.trunk, model, seen + count + most, advice, more=-unread, purpose=purpose)
        keep_tokens_alone(loaded)
        loaded.use_graph = options.graph
        sampling = drawing_options(options.temperature, options.top_p)
        if options.chat:
            sampling["eos_token_id"] = ends_of(loaded, tokenizer)
        began = time.perf_counter()
        with (
            room(lambda: no_room(loaded, seen + count + most)),
            settings_refused(folder / GENERATION_CONFIG),
            seeded(options.seed, device),
        ):
            generated = loaded.generate(
                input_ids=tokens["input_ids"],
                **({"attention_mask": tokens["attention_mask"]} if cache is None else continuation(count, cache)),
                max_new_tokens=most,
                trust_remote_code=False,
                return_dict_in_generate=True,
                **sampling,
            )
        seconds = time.perf_counter() - began
        answer = generated.sequences[0]
        if state_out is not None and owner is not None:
            tail = unread_tokens(loaded, generated.sequences, generated[CACHE], seen)
            save_continued(state_out, generated[CACHE], loaded, owner, tail, force=options.force)
    new_text = tokenizer.decode(answer[count:], skip_special_tokens=True)
    return Generated(
        prompt=prompt,
        text=new_text if options.chat else tokenizer.decode(answer, skip_special_tokens=True),
        new_text=new_text,
        prompt_tokens=count,
        new_tokens=len(answer) - count,
        seconds=round(seconds, 3),
        state_tokens=seen,
    )


generate = function_of(GenerateOptions, run_generate)


def _note_template(tokenizer: Any, prompt: str, model: str) -> None:
    """Log a note where a model was trained on conversations, and the prompt has no control token of one."""
    if tokenizer.chat_template and not any(token in prompt for token in tokenizer.all_special_tokens):
        inform(
            f"{model} has a chat template, and the prompt is continued without it. For an answer use --chat, or "
            f"`compose chat {model}`."
        )


class Sampled(Readable, Closed):
    """A file of texts, one JSON object a line. first: the first of them."""

    out: Path
    texts: int
    first: tuple[str, ...]

    def view(self) -> View:
        cut = [text if len(text) <= LONGEST else f"{text[:LONGEST]} …" for text in self.first]
        return View(f"Wrote {plural(self.texts, 'text')} to {shown(self.out)}", verbatim="\n\n".join(cut))


@options_class
class SampleOptions(Replacing, OnDevice, Seeded, OfAnyModel):
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
    texts: int = option("Number of texts.", default=1000, least=1)
    length: int = option(
        "Largest number of tokens of a text, BOS included. 1k is 1,024.", default=512, converter=to_tokens(2), metavar="N"
    )
    temperature: float = option("1 is the model's own distribution.", default=1.0, least=0.01)
    top_p: float = option(TOP_P, default=1.0, least=0.01, most=1)
    batch: int = option("Texts of a batch. Another number changes the texts.", default=32, least=1)
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
