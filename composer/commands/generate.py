"""``generate``: a model continues a prompt, or answers it."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import typer

from blocks.part import Closed
from composer.data.chat import ends_of, first_messages, prompt_tokens
from composer.errors import ComposerError, translate_errors
from composer.generation.writers import (
    LAST,
    check_composed,
    check_logits,
    check_state_files,
    check_tokens,
    drawing_options,
    load_writer,
    no_room,
    owner_of,
    save_continued,
    settings_refused,
    tokenizer_of_writer,
)
from composer.options.classes import function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import (
    SYSTEM,
    AnyModelArgument,
    BackendOption,
    DeviceOption,
    ForceOption,
    GraphOption,
    SamplingOptions,
    to_optional_path,
    to_tokens,
)
from composer.reporting.escape import escape_html
from composer.reporting.progress import silent_transformers
from composer.reporting.tables import Readable, View
from composer.reporting.terminal import print_document, print_json
from composer.system.devices import check_device, room, room_for, seed_for_block
from composer.system.notices import inform
from composer.weights.config import check_positions
from composer.weights.sources import describe_model
from converters.source import GENERATION_CONFIG


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
        start = self.text.removesuffix(self.new_text)
        written = f"{escape_html(start)}<b>{escape_html(self.text.removeprefix(start))}</b>"
        return f'<pre style="white-space: pre-wrap">{written}</pre><p>{escape_html(self.view().notes[0])}</p>'


@options_class
class GenerateOptions(ForceOption, GraphOption, BackendOption, DeviceOption, SamplingOptions, AnyModelArgument):
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
    model, prompt, max_new_tokens, device = options.model, options.prompt, options.max_new_tokens, options.device
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
        purpose = f", {count:,} of the prompt and {max_new_tokens:,} to write" + (f" after {seen:,} of the state" if seen else "")
        advice, unread = "the largest possible sum is", 0 if state_out is not None else 1
        advice = f"{LAST}, so {advice}" if unread else advice
        check_positions(described.trunk, model, seen + count + max_new_tokens, advice, more=-unread, purpose=purpose)
        keep_tokens_alone(loaded)
        loaded.use_graph = options.graph
        sampling = drawing_options(options.temperature, options.top_p)
        if options.chat:
            sampling["eos_token_id"] = ends_of(loaded, tokenizer)
        began = time.perf_counter()
        with (
            room(lambda: no_room(loaded, seen + count + max_new_tokens)),
            settings_refused(folder / GENERATION_CONFIG),
            seed_for_block(options.seed, device),
        ):
            generated = loaded.generate(
                input_ids=tokens["input_ids"],
                **({"attention_mask": tokens["attention_mask"]} if cache is None else continuation(count, cache)),
                max_new_tokens=max_new_tokens,
                trust_remote_code=False,
                logits_processor=[check_logits],
                return_dict_in_generate=True,
                **sampling,
            )
        seconds = time.perf_counter() - began
        sequence = generated.sequences[0]
        if state_out is not None and owner is not None:
            tail = unread_tokens(loaded, generated.sequences, generated[CACHE], seen)
            save_continued(state_out, generated[CACHE], loaded, owner, tail, force=options.force)
    new_text = tokenizer.decode(sequence[count:], skip_special_tokens=True)
    return Generated(
        prompt=prompt,
        text=new_text if options.chat else tokenizer.decode(sequence, skip_special_tokens=True),
        new_text=new_text,
        prompt_tokens=count,
        new_tokens=len(sequence) - count,
        seconds=round(seconds, 3),
        state_tokens=seen,
    )


generate = function_of(GenerateOptions, run_generate)


def _note_template(tokenizer: Any, prompt: str, model: str) -> None:
    """Log a note where a model was trained on conversations, and the prompt has no control token of one."""
    if tokenizer.chat_template and not any(token in prompt for token in tokenizer.all_special_tokens):
        inform(
            f"{model} has a chat template, and the prompt is continued without it. For an answer use --chat, or "
            f"`compose chat {shlex.quote(model)}`."
        )


@command(GenerateOptions, "as_json")
def generate_command(options: GenerateOptions, screen: Screen) -> None:
    generated = run_generate(replace(options, prompt=_text(options.prompt)))
    if screen.as_json:
        print_json(generated.model_dump(mode="json"))
    else:
        print_document(generated.text)


def _text(prompt: str) -> str:
    """Return the prompt, or what is read from stdin. Raises ComposerError if it is no text."""
    try:
        text = typer.get_text_stream("stdin").read() if prompt == "-" else prompt
        text.encode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        origin = "on stdin" if prompt == "-" else "in --prompt"
        raise ComposerError(
            f"the prompt {origin} is not in the terminal's encoding, from character {error.start + 1} on ({error.reason}); save it "
            "as UTF-8, and pass it with --prompt - < FILE"
        ) from error
    return text
