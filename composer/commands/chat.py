"""``chat``: a conversation with a model, which keeps the model's cache between turns."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import typer

from blocks.part import Closed
from composer.data.chat import Message, ends_of, first_messages, prompt_tokens
from composer.errors import ComposerError, translate_errors
from composer.generation.writers import check_logits, drawing_options, load_writer, no_room, settings_refused, tokenizer_of_writer
from composer.options.arguments import MOST_SEED
from composer.options.classes import function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import SYSTEM, AnyModelArgument, BackendOption, DeviceOption, GraphOption, SamplingOptions, to_tokens
from composer.reporting.progress import silent_transformers
from composer.reporting.tables import Readable, View
from composer.reporting.terminal import print_document, print_mistake, say
from composer.system.devices import check_device, room, room_for, seed_for_block
from composer.system.notices import warn_user
from composer.weights.sources import describe_model
from converters.bounded import brief, is_text
from converters.source import GENERATION_CONFIG
from converters.trunk import Sizes

OnText = Callable[[str], None]
"""Called with each piece of an answer as soon as it is written."""


class Reply(Readable, Closed):
    """An answer in a conversation.

    tokens: of the conversation before the answer. read_tokens: the part of them that the model had to read, because its cache did
    not have it. new_tokens: of the answer, with the token that ends it. complete: whether the model ended its turn itself.
    """

    text: str
    tokens: int
    read_tokens: int
    new_tokens: int
    complete: bool
    seconds: float

    def view(self) -> View:
        read = f"{self.read_tokens:,} of {self.tokens:,} tokens read, {self.new_tokens:,} written, {self.seconds:.2f} s"
        return View("", notes=(read,), verbatim=self.text)


class Chat:
    """A conversation with a model; ``composer.chat`` makes one. messages: all turns so far, as chat templates read them."""

    def __init__(
        self, name: str, model: Any, folder: Path, sizes: Sizes, *, system: str | None, max_new_tokens: int, **drawing: Any
    ) -> None:
        self._name, self._model, self._folder, self._sizes = name, model, folder, sizes
        self._tokenizer = tokenizer_of_writer(folder)
        self._system, self._max_new_tokens, self._seed = system, max_new_tokens, drawing.pop("seed")
        self._options = drawing_options(**drawing) | {"eos_token_id": ends_of(model, self._tokenizer)}
        self._is_beyond = False
        self.reset()
        prompt_tokens(self._tokenizer, [*self.messages, {"role": "user", "content": "composer"}], name)  # its mistakes at once

    def reset(self) -> None:
        """Begin a new conversation. The system message is kept."""
        self.messages: list[Message] = first_messages(self._system)
        self._cache: Any = None
        self._seen: list[int] = []
        self._copy: Any = None
        self._copied: list[int] = []

    @translate_errors
    def say(self, text: str, on_text: OnText | None = None) -> Reply:
        """Add a turn of the user, and return the model's answer.

        on_text: called with each piece of the answer. A KeyboardInterrupt stops the answer and is raised; the text so far is kept
        as the model's turn. After a ComposerError the conversation is unchanged.
        """
        from composer.model.cache import CACHE

        if not isinstance(text, str) or not is_text(text):
            raise ComposerError(f"{brief(text)} is not a message; expected a string that can be encoded in UTF-8")
        messages = [*self.messages, {"role": "user", "content": text}]
        device = str(self._model.device)
        with room_for(f"on {device}", "Begin a new conversation, or use a smaller model."), silent_transformers("error"):
            tokens = prompt_tokens(self._tokenizer, messages, self._name)["input_ids"].to(device)
            ids = tokens[0].tolist()
            max_new_tokens = self._room_for_answer(len(ids))
            cache, read_count = self._take_cache(ids)
            writer = _Writer(self._tokenizer, on_text)
            began = time.perf_counter()
            answered = sum(message["role"] == "assistant" for message in self.messages)
            seed = self._seed + (answered if self._seed <= MOST_SEED - answered else -answered)
            settings = settings_refused(self._folder / GENERATION_CONFIG)
            try:
                with room(lambda: no_room(self._model, len(ids) + max_new_tokens)), settings, seed_for_block(seed, device):
                    if hasattr(self._model.config, "read_spec"):
                        cache = self._read(tokens, cache, read_count)
                    answer = self._model.generate(
                        input_ids=tokens,
                        attention_mask=tokens.new_ones(tokens.shape),
                        max_new_tokens=max_new_tokens,
                        return_dict_in_generate=True,
                        streamer=writer,
                        trust_remote_code=False,
                        logits_processor=[check_logits],
                        **{CACHE: cache},
                        **self._options,
                    )
            except KeyboardInterrupt:
                if writer.text:
                    self.messages = [*messages, {"role": "assistant", "content": writer.text}]
                raise
        seconds = time.perf_counter() - began
        every = answer.sequences[0].tolist()
        written = every[len(ids) :]
        reply = self._tokenizer.decode(written, skip_special_tokens=True)
        self.messages = [*messages, {"role": "assistant", "content": reply}]
        cache = getattr(answer, CACHE, None)
        if cache is not None and cache.get_seq_length() == len(every) - 1:  # the last token is written, and not read
            self._cache, self._seen = cache, every[:-1]
        return Reply(
            text=reply,
            tokens=len(ids),
            read_tokens=len(ids) - read_count,
            new_tokens=len(written),
            complete=written[-1] in self._options["eos_token_id"],
            seconds=round(seconds, 3),
        )

    def _take_cache(self, ids: Sequence[int]) -> tuple[Any, int]:
        """Return the cache for a conversation of these tokens, and the number of them that it has read; None and 0 if all must be
        read.

        A template may write earlier turns differently than before, and a tokenizer may split an answer into other tokens than the
        model generated. Then the cache is cut to the common tokens. States cannot be cut, so a composed model returns to a copy
        from before its last answer. The chat keeps no cache until the answer is complete, because an answer that is stopped leaves
        the cache in an unknown state.
        """
        (cache, seen), (copied, before) = (self._cache, self._seen), (self._copy, self._copied)
        self._cache, self._seen, self._copy, self._copied = None, [], None, []
        same = 0
        while same < min(len(seen), len(ids) - 1) and seen[same] == ids[same]:
            same += 1
        if same < len(seen):
            try:
                cache.crop(same - len(seen))
            except (NotImplementedError, RuntimeError, ValueError):
                is_prefix = len(before) < len(ids) and before == list(ids[: len(before)])
                return (copied, len(before)) if is_prefix else (None, 0)
        return (cache, same) if same and cache.get_seq_length() == same else (None, 0)

    def _read(self, tokens: Any, cache: Any, read_count: int) -> Any:
        """Return the cache of a composed model after all tokens of a conversation but the last one, of which a copy is kept."""
        import torch

        from composer.model.cache import CACHE, new_cache

        cache = new_cache(self._model.config) if cache is None else cache
        if tokens.shape[1] - 1 > read_count:
            with torch.no_grad():
                self._model(input_ids=tokens[:, read_count:-1], **{CACHE: cache}, use_cache=True, logits_to_keep=1)
        self._copy, self._copied = copy.deepcopy(cache), tokens[0, :-1].tolist()
        return cache

    def _room_for_answer(self, tokens: int) -> int:
        """Return the tokens that an answer may have after so many. Raises ComposerError if there is no position for one."""
        longest = self._sizes.max_positions
        if self._sizes.learns_positions:
            if tokens > longest:
                raise ComposerError(
                    f"{self._name} has learned {longest:,} positions, too few for this conversation of {tokens:,} tokens: begin a "
                    "new one (/reset), or write a shorter message"
                )
            return min(self._max_new_tokens, longest + 1 - tokens)  # the last token is written, and not read
        if tokens + self._max_new_tokens > longest and not self._is_beyond:
            self._is_beyond = True
            warn_user(
                f"This conversation of {tokens:,} tokens, with an answer of up to {self._max_new_tokens:,}, is longer than the "
                f"{longest:,} tokens that {self._name} was made for, so answers may get worse. /reset begins a new one."
            )
        return self._max_new_tokens


class _Writer:
    """Decodes tokens while ``generate`` writes them: a streamer of transformers."""

    def __init__(self, tokenizer: Any, on_text: OnText | None) -> None:
        self.tokenizer, self.on_text = tokenizer, on_text
        self.ids: list[int] = []
        self.text = ""
        self.has_prompt = False

    def put(self, value: Any) -> None:
        if not self.has_prompt:  # the first tokens are those of the prompt
            self.has_prompt = True
            return
        self.ids += value.reshape(-1).tolist()
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        if not text.endswith("\ufffd"):  # the first bytes of a character
            self._write(text)

    def end(self) -> None:
        self._write(self.tokenizer.decode(self.ids, skip_special_tokens=True))

    def _write(self, text: str) -> None:
        new, self.text = text[len(self.text) :], text
        if new and self.on_text is not None:
            self.on_text(new)


@options_class
class ChatOptions(GraphOption, BackendOption, DeviceOption, SamplingOptions, AnyModelArgument):
    """Talk with a model in its chat template: each line is a message.

    The model's cache is kept between turns, so that only new tokens are read. The seed is that of the first answer; each further
    answer has its own.
    """

    example: ClassVar[str] = 'composer.chat("mine").say("Who was Ada Lovelace?").text'
    system: str | None = option(SYSTEM, default=None, metavar="TEXT")
    max_new_tokens: int = option(
        "Largest number of tokens of an answer. 1k is 1,024.", default=512, converter=to_tokens(), metavar="N"
    )


@translate_errors
def run_chat(options: ChatOptions) -> Chat:
    model, device = options.model, options.device
    described = describe_model(model)  # report mistakes before imports that need seconds
    check_device(device)
    with room_for(f"on {device}", "Use a smaller model."), silent_transformers("error"):
        from composer.model.generation import keep_tokens_alone

        loaded, folder = load_writer(model, device, options.backend, built=described.is_composed)
        drawing: dict[str, Any] = {name: getattr(options, name) for name in ("temperature", "top_p", "seed")}
        talk = Chat(model, loaded, folder, described.trunk, system=options.system, max_new_tokens=options.max_new_tokens, **drawing)
        keep_tokens_alone(loaded)
        loaded.use_graph = options.graph
    return talk


chat = function_of(ChatOptions, run_chat)


HELP = "Each line is a message. /reset begins a new conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer."


@command(ChatOptions)
def chat_command(options: ChatOptions, screen: Screen) -> None:
    talk = run_chat(options)
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        say(HELP, err=True)
    for line in _read_typed_lines() if at_terminal else _read_piped_lines():
        if line == "/exit":
            break
        if line == "/reset":
            talk.reset()
        elif line:
            try:
                answer = talk.say(line, lambda text: print_document(text, end=""))
                print_document("" if answer.complete else " …")
            except ComposerError as error:
                if not at_terminal:
                    raise
                print_mistake(error, as_json=False)
            except KeyboardInterrupt:
                print_document("")
                if not at_terminal:
                    raise


def _read_typed_lines() -> Iterator[str]:
    """Lines as they are typed, up to Ctrl-D."""
    import readline  # noqa: F401  # input() then edits lines, and remembers them

    while True:
        try:
            yield _check_line(input("> "))
        except EOFError:
            print_document("")
            return


def _read_piped_lines() -> Iterator[str]:
    """Yield the lines of stdin. Raises ComposerError if they are no text."""
    stream = typer.get_text_stream("stdin")
    while True:
        try:
            line = stream.readline()
        except UnicodeDecodeError as error:
            raise ComposerError(f"stdin is no text in the terminal's encoding ({error.reason}); save it as UTF-8") from error
        if not line:
            return
        yield _check_line(line)


def _check_line(line: str) -> str:
    """Return the line without blank space around it. Raises ComposerError if it is no text."""
    try:
        line.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ComposerError(f"a line is no text in the terminal's encoding ({error.reason}); write it in UTF-8") from error
    return line.strip()
