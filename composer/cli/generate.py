"""``compose generate``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import composer
from composer.cli.options import Backend, Json, RunsOn
from composer.cli.screen import print_json, size, without_bars
from composer.devices import check_device, ran_out_of_memory
from composer.errors import ComposerError
from composer.graph.lowering import AUTO
from composer.spec.explain import explain_resolved
from composer.trust import load_tokenizer
from composer.weights.beside import CONFIG
from composer.weights.opened import open_models
from composer.weights.sources import describe_model
from converters.source import GENERATION_CONFIG, TOKENIZER, small_files


def generate(
    model: Annotated[str, typer.Argument(help="A built model, or any other: a folder, or OWNER/NAME of the Hub.")],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="The text to continue; - reads it from stdin.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token; above, tokens are sampled.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Sample among the likeliest tokens of this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: RunsOn = "cpu",
    backend: Backend = AUTO,
    as_json: Json = False,
) -> None:
    """Let a model continue a prompt, and print both."""
    if top_p < 1 and temperature == 0:
        raise typer.BadParameter("it takes a --temperature above 0", param_hint="'--top-p'")
    text = _text(prompt)
    describe_model(model)  # a mistake is told before all that takes seconds to import
    import torch

    from composer.model.generation import keep_tokens_alone

    without_bars()
    check_device(device)
    loaded, folder = _loaded(model, device, backend)
    tokenizer = _tokenizer(folder)
    tokens = tokenizer(text, return_tensors="pt").to(device)
    count = tokens["input_ids"].shape[1]
    if not count:
        raise ComposerError("the prompt has no tokens: say something")
    torch.manual_seed(seed)
    keep_tokens_alone(loaded)
    sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p} if temperature else {"do_sample": False}
    began = time.perf_counter()
    with _room_for(loaded, count + max_new_tokens), _said_by(folder / GENERATION_CONFIG):
        answer = loaded.generate(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            max_new_tokens=max_new_tokens,
            trust_remote_code=False,
            **sampling,
        )[0]
    seconds = time.perf_counter() - began
    whole = tokenizer.decode(answer, skip_special_tokens=True)
    if as_json:
        new = tokenizer.decode(answer[count:], skip_special_tokens=True)
        figures = {"prompt_tokens": count, "new_tokens": len(answer) - count, "seconds": round(seconds, 3)}
        print_json({"prompt": text, "text": whole, "new_text": new, **figures})
        return
    typer.echo(whole)


def _loaded(model: str, device: str, backend: str) -> tuple[Any, Path]:
    """The model, and its folder. Raises ComposerError where it writes no text."""
    folder = Path(model).expanduser()
    plain = (folder / CONFIG).is_file() and not describe_model(folder).is_composed
    if not plain and (folder.exists() or model.count("/") != 1):
        loaded: Any = composer.load(folder, device=device, backend=backend)
        if loaded.config.labels is not None:
            raise ComposerError(f"{model} is a classifier: it has answers for whole texts, and writes none")
        if loaded.base.both_ways:
            raise ComposerError(f"{model} is bidirectional: each token sees those after it, too, so it reads texts and writes none")
        return loaded, folder
    (opened,) = open_models([model], ComposerError)
    return opened.load(None, device, backend), opened.source.folder


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


@contextmanager
def _said_by(settings: Path) -> Iterator[None]:
    """Errors of transformers about generation settings that it, or a composed model, does not have, as ComposerErrors."""
    try:
        yield
    except ValueError as error:
        raise ComposerError(f"{settings} asks for a way of writing that is not to be had here: {error}") from error


@contextmanager
def _room_for(model: Any, tokens: int) -> Iterator[None]:
    """Running out of memory, as a ComposerError that says what the state takes, and what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's own is one of the latter
        if not ran_out_of_memory(error):
            raise
        if not hasattr(model.config, "resolved"):
            raise ComposerError(f"out of memory at {tokens:,} tokens: give it a shorter prompt, or ask for fewer tokens") from error
        spec, kind = model.config.resolved(), str(model.dtype).removeprefix("torch.")
        cost = explain_resolved(spec, sequence=tokens, dtype=kind)
        sizes = {(memory.name or memory.kind, getattr(memory, "size", 0)) for head in spec.heads.values() for memory in head.memory}
        name, largest = max(sizes, key=lambda one: one[1])
        remedies = [f"build it with a smaller `size` of `{name}`, which is {largest:,}"] if largest else []
        if any(group.state_grows for group in cost.groups) or not remedies:
            remedies.append("give it a shorter prompt, or ask for fewer tokens")
        raise ComposerError(
            f"out of memory: at {tokens:,} tokens the state alone takes {size(cost.state_bytes)}; {', or '.join(remedies)}"
        ) from error


def _tokenizer(folder: Path) -> Any:
    if not small_files(folder, TOKENIZER):
        raise ComposerError(
            f"{folder} has no tokenizer, so it can read no prompt: copy one there, or name it at the build, with --tokenizer"
        )
    problem = f"{folder} has no tokenizer that transformers can read; copy the source's there"
    return load_tokenizer(folder, ComposerError, problem)
