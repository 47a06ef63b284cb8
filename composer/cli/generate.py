"""``compose generate``."""

from __future__ import annotations

from typing import Annotated

import typer

import composer
from composer.cli.options import Backend, Graph, Json, RunsOn, System, Temperature, TopP
from composer.cli.screen import print_document, print_json
from composer.errors import ComposerError
from composer.graph.lowering import AUTO


def generate(
    model: Annotated[str, typer.Argument(help="A built model, or any other: a folder, or OWNER/NAME of the Hub.")],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="The text to continue; - reads it from stdin.")],
    chat: Annotated[bool, typer.Option("--chat", help="Ask in the model's chat template, and print the answer alone.")] = False,
    system: System = None,
    max_new_tokens: Annotated[str, typer.Option(metavar="N", help="Tokens to generate at most; 1k is 1,024.")] = "64",
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: RunsOn = "cpu",
    backend: Backend = AUTO,
    graph: Graph = True,
    as_json: Json = False,
) -> None:
    """Let a model continue a prompt, or answer it with --chat."""
    text = _text(prompt)
    found = composer.generate(
        model,
        text,
        chat=chat,
        system=system,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        device=device,
        backend=backend,
        graph=graph,
    )
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        print_document(found.text)


def _text(prompt: str) -> str:
    """The prompt, or what is read from stdin. Raises ComposerError where it is no text."""
    try:
        text = typer.get_text_stream("stdin").read() if prompt == "-" else prompt
        text.encode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        where = "on stdin" if prompt == "-" else "in --prompt"
        raise ComposerError(
            f"what stands {where} is no text in the terminal's encoding, from character {error.start + 1} on "
            f"({error.reason}); save it as UTF-8, and say --prompt - < FILE"
        ) from error
    return text
