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
    try:
        say(f'{server.address}/v1  model: "{server.model}"  (Ctrl-C ends it)')
        server.wait()
        gc.freeze()  # at its end Python would look at every object of torch and transformers, which takes a second
    except BaseException:
        server.close()
        raise
