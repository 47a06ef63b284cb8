"""``serve``: a model with OpenAI's HTTP interface, by transformers' own server."""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from composer.devices import check_device
from composer.errors import ComposerError, translate_errors
from composer.options import function_of, option, options_class
from composer.progress import silent_transformers
from composer.shared_options import InDtype, OfModel, OnDevice
from composer.trust import translate_transformers_errors
from composer.versions import install_command
from composer.weights.sources import open_model
from converters.bounded import reason

LAST_PORT = 65_535
SEPARATORS = "@:"
"""Characters with which transformers' server begins a revision, or a file in a repository."""


@dataclass(frozen=True)
class Server:
    """A model that is being served. address: of the server; model: the folder's name, which requests contain."""

    address: str
    model: str
    running: Any

    def wait(self) -> None:
        """Until the server ends, or Ctrl-C."""
        try:
            self.running._thread.join()
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop the server, and free the model's memory."""
        self.running.kill_server()


@options_class
class ServeOptions(InDtype, OnDevice, OfModel):
    """Serve a model to programs that speak OpenAI's HTTP interface.

    The server is transformers' own: /v1/chat/completions and /v1/completions, streaming or not, one text at a time. It has no
    password, and answers on this machine only unless --host is set. It needs pip install '.[serve]'.
    """

    example: ClassVar[str] = 'composer.serve("lawcat-mine-distilled").wait()'
    host: str = option("Address to listen on. 0.0.0.0 is all of this machine's.", default="127.0.0.1")
    port: int = option("Port to listen on. 0 chooses a free one.", default=8000, least=0, most=LAST_PORT)


@translate_errors
def run_serve(options: ServeOptions) -> Server:
    source = open_model(options.model)
    check_device(options.device)
    folder, name = str(source.folder), source.named.name
    if unfit := sorted(set(SEPARATORS) & set(folder)):
        raise ComposerError(f"transformers' server cannot open a folder with {unfit[0]!r} in its path: {folder}. Rename it.")
    port = _listenable(options.host, options.port)
    with silent_transformers():
        from transformers import AutoConfig, AutoProcessor
        from transformers.utils.import_utils import is_serve_available

        if not is_serve_available():
            raise ComposerError(f"transformers' server is not installed: {install_command('serve')}")
        problem = (
            f"{folder} has a tokenizer or processor that transformers cannot read; copy the source's there, or remove "
            "*processor_config.json to serve text alone"
        )
        with translate_transformers_errors(problem, ComposerError):
            AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if source.is_composed:
            _lend(AutoConfig.from_pretrained(folder))
        return _start(folder, name, port, options)


serve = function_of(ServeOptions, run_serve)


def _lend(config: Any) -> None:
    """Add the class of a composed model to transformers. Its server looks for classes in transformers only."""
    from composer.model.classes import class_of

    setattr(sys.modules["transformers"], config.architectures[0], class_of(config))


def _start(folder: str, name: str, port: int, options: ServeOptions) -> Server:
    from transformers.cli.serve import Serve

    running = Serve(
        force_model=folder,
        device=options.device,
        dtype=options.dtype or "auto",
        host=options.host,
        port=port,
        non_blocking=True,
    )
    _rename(running._model_manager, name)
    try:
        while not running.server.started:
            if not running._thread.is_alive():
                raise ComposerError(f"The server ended as it began to listen on {options.host}:{port}.")
            time.sleep(0.05)
    except BaseException:
        running.kill_server()  # its thread would keep this process
        raise
    return Server(f"http://{options.host}:{port}", name, running)


def _rename(manager: Any, name: str) -> None:
    """Make ``name`` the model's only name in requests and answers. Transformers' server names a model by the path of its folder,
    and lists the models of the Hub's cache instead."""
    load, folder = manager.load_model_and_processor, manager.process_model_name(manager.force_model)
    listed = [{"id": name, "object": "model", "created": int(time.time()), "owned_by": ""}]
    manager.force_model = name
    manager.process_model_name = lambda requested: requested
    manager.load_model_and_processor = lambda requested, **options: load(folder, **options)
    manager.get_gen_models = lambda: listed


def _listenable(host: str, port: int) -> int:
    """Return the port, or a free one for 0. Raises ComposerError if nothing can listen there."""
    try:
        with socket.create_server((host, port)) as listening:
            return listening.getsockname()[1]
    except OSError as error:
        why = reason(error).partition(" (while")[0]  # where Python adds the address once more
        raise ComposerError(f"Cannot listen on {host}:{port}: {why}. Choose another --port or --host.") from error
