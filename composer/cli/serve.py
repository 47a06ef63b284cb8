"""``compose serve``."""

from __future__ import annotations

import gc

from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import say
from composer.commands.serve import ServeOptions, run_serve


@command(ServeOptions, "quiet")
def serve(options: ServeOptions, screen: Screen) -> None:
    at_once(f"Loading {options.model}", quiet=screen.hides_progress)
    server = run_serve(options)
    gc.freeze()  # or each look at all objects of torch and transformers takes a quarter of a second, while texts are generated
    try:
        say(f'{server.address}/v1  model: "{server.model}"  (Ctrl-C ends it)')
        server.wait()
    except BaseException:
        server.close()
        raise
