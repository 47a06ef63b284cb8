"""``compose generate``."""

from __future__ import annotations

from dataclasses import replace

import typer

from composer.cli.derived import Screen, command
from composer.cli.screen import print_document, print_json
from composer.commands.generate import GenerateOptions, run_generate
from composer.errors import ComposerError


@command(GenerateOptions, "as_json")
def generate(options: GenerateOptions, screen: Screen) -> None:
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
        where = "on stdin" if prompt == "-" else "in --prompt"
        raise ComposerError(
            f"the prompt {where} is not in the terminal's encoding, from character {error.start + 1} on ({error.reason}); save it "
            "as UTF-8, and pass it with --prompt - < FILE"
        ) from error
    return text
