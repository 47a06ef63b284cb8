"""``serve``: a model with OpenAI's HTTP interface."""

from __future__ import annotations

import gc
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from composer.errors import ComposerError, translate_errors
from composer.generation.writers import load_writer, tokenizer_of_writer
from composer.options.classes import function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import AnyModelArgument, BackendOption, DeviceOption, DtypeOption, to_optional_tokens
from composer.reporting.progress import silent_transformers
from composer.reporting.terminal import at_once, say
from composer.system.devices import check_device, room_for
from composer.system.versions import install_command, version_of
from composer.weights.sources import open_model
from converters.bounded import reason

if TYPE_CHECKING:
    from composer.serving.engine import Engine

LAST_PORT = 65_535
PATIENCE = 0.5
"""Seconds to wait for the server's threads at the end. They end by themselves after it."""


@dataclass(frozen=True)
class Server:
    """A model that is being served. address: of the server; model: the folder's name, which requests contain."""

    address: str
    model: str
    running: Any = field(repr=False)
    thread: threading.Thread = field(repr=False)
    engine: Engine = field(repr=False)

    def wait(self) -> None:
        """Wait until the server ends, or for Ctrl-C. Raises ComposerError if a fault has ended generation."""
        try:
            while self.thread.is_alive():
                self.thread.join(1.0)
                if not self.engine.thread.is_alive() and not self.running.should_exit:
                    self.close()
                    raise ComposerError("The server ended: the thread that generates has stopped on a fault, which the log shows.")
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop the server within a second, also while requests run."""
        self.running.should_exit = self.running.force_exit = True
        self.engine.close(PATIENCE)
        self.thread.join(PATIENCE)


@options_class
class ServeOptions(DtypeOption, DeviceOption, BackendOption, AnyModelArgument):
    """Serve a model to programs that speak OpenAI's HTTP interface.

    /v1/chat/completions and /v1/completions answer several requests at a time, streaming or not. The server has no password, and
    answers on this machine only unless --host is set. It needs pip install '.[serve]'.
    """

    example: ClassVar[str] = 'composer.serve("lawcat-mine-distilled").wait()'
    host: str = option("Address to listen on. 0.0.0.0 is all of this machine's.", default="127.0.0.1")
    port: int = option("Port to listen on. 0 chooses a free one.", default=8000, minimum=0, maximum=LAST_PORT)
    context: int | None = option(
        "Largest number of tokens of a prompt and its text together. Left out, the source's number of positions. 4k is 4,096.",
        default=None,
        converter=to_optional_tokens(2),
        metavar="TOKENS",
    )


@translate_errors
def run_serve(options: ServeOptions) -> Server:
    source = open_model(options.model)
    check_device(options.device)
    if version_of("uvicorn") is None:
        raise ComposerError(f"the server runs on uvicorn, which is not installed: {install_command('serve')}")
    sizes, name = source.trunk, source.named.name
    if options.context is not None and sizes.learns_positions and options.context > sizes.max_positions:
        raise ComposerError(f"--context: {options.model} has learned {sizes.max_positions:,} positions; expected at most as many")
    listening = _listen(options.host, options.port)
    try:
        with room_for(f"on {options.device}", "Use a smaller model, or a smaller --dtype."), silent_transformers("error"):
            model, folder = load_writer(
                options.model, options.device, options.backend, built=source.is_composed, dtype=options.dtype
            )
            tokenizer = tokenizer_of_writer(folder)
            return _start(listening, options, name, model, tokenizer, options.context or sizes.max_positions)
    except BaseException:
        listening.close()
        raise


serve = function_of(ServeOptions, run_serve)


def _start(listening: socket.socket, options: ServeOptions, name: str, model: Any, tokenizer: Any, context: int) -> Server:
    import uvicorn

    from composer.serving.application import Application
    from composer.serving.engine import Engine
    from composer.serving.prompts import PromptReader

    served = PromptReader(name, model, tokenizer, context)
    engine = Engine(model, tokenizer)
    running = uvicorn.Server(
        uvicorn.Config(
            Application(engine, served, options.host),
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
        )
    )
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, name="composer-server", daemon=True)
    thread.start()
    host, port = options.host, listening.getsockname()[1]
    server = Server(f"http://{f'[{host}]' if ':' in host else host}:{port}", name, running, thread, engine)
    try:
        while not running.started:
            if not thread.is_alive():
                raise ComposerError(f"The server ended as it began to listen on {host}:{port}.")
            time.sleep(0.01)
    except BaseException:
        server.close()
        raise
    return server


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ComposerError if nothing can listen there."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128)
    except OSError as error:
        why = reason(error).partition(" (while")[0]  # where Python adds the address once more
        raise ComposerError(f"Cannot listen on {host}:{port}: {why}. Choose another --port or --host.") from error


@command(ServeOptions, "quiet")
def serve_command(options: ServeOptions, screen: Screen) -> None:
    at_once(f"Loading {options.model}", quiet=screen.hides_progress)
    server = run_serve(options)
    gc.freeze()  # or each look at all objects of torch and transformers takes a quarter of a second, while texts are generated
    try:
        say(f'{server.address}/v1  model: "{server.model}"  (Ctrl-C ends it)')
        server.wait()
    except BaseException:
        server.close()
        raise
