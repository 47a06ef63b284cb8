"""Options that several commands share, each declared once, and converters of callers' values.

A command's class inherits these classes. Fields of the classes on the right come first: the class
``ShowOptions(SourceOfRevision, SpecArgument)`` has the spec first, then the source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from blocks.external_parts import register_parts
from composer.data.references import SHARE
from composer.errors import BuildError, ComposerError, name_of
from composer.graph.lowering import AUTO
from composer.options.arguments import (
    LEAST_SEED,
    MOST_SEED,
    DtypeLike,
    Numbers,
    Reference,
    TokenCount,
    named_dtype,
    read_numbers,
    read_tokens,
    several,
)
from composer.options.classes import argument, option, options_class
from composer.spec.loading import SpecLike
from composer.spec.overrides import Overrides
from composer.spec.shipped import shipped_specs
from converters.trunk import Dtype

Converter = TypeVar("Converter", bound=Callable[..., Any])


def reads(kind: Any) -> Callable[[Converter], Converter]:
    """Set the type that the command line reads before a converter."""

    def mark(converter: Converter) -> Converter:
        converter.kind = kind  # type: ignore[attr-defined]
        return converter

    return mark


@reads(Path)
def to_path(value: str | os.PathLike[str]) -> Path:
    return Path(value)


@reads(Path)
def to_optional_path(value: str | os.PathLike[str] | None) -> Path | None:
    return None if value is None else Path(value)


@reads(str)
def to_text(value: Reference) -> str:
    """Return the name of a folder or a model."""
    return name_of(value)


@reads(str)
def to_optional_text(value: Reference | None) -> str | None:
    return None if value is None else to_text(value)


@reads(list[str])
def to_texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return several(value)


@reads(list[Path])
def to_references(value: Reference | Sequence[Reference]) -> tuple[str, ...]:
    return several(value)


@reads(list[str])
def to_models(value: Reference | Sequence[Reference] | Mapping[str, Reference]) -> tuple[str, ...] | dict[str, str]:
    """Models, or models by their labels."""
    return {label: name_of(model) for label, model in value.items()} if isinstance(value, Mapping) else several(value)


@reads(Dtype)
def to_dtype(value: DtypeLike | None) -> Dtype | None:
    try:
        return named_dtype(value)
    except ComposerError as error:
        raise ValueError(str(error).removeprefix("dtype: ")) from None


def to_tokens(minimum: int = 1) -> Callable[[TokenCount], int]:
    @reads(str)
    def read(value: TokenCount) -> int:
        return read_tokens(value, minimum=minimum)

    return read


def to_optional_tokens(minimum: int = 1) -> Callable[[TokenCount | None], int | None]:
    @reads(str)
    def read(value: TokenCount | None) -> int | None:
        return None if value is None else read_tokens(value, minimum=minimum)

    return read


def to_numbers(
    minimum: int | None = 1, maximum: int | None = None, *, thousands: bool = True
) -> Callable[[Numbers], tuple[int, ...]]:
    @reads(str)
    def read(value: Numbers) -> tuple[int, ...]:
        return read_numbers(value, minimum=minimum, maximum=maximum, thousands=thousands)

    return read


def complete_spec(incomplete: str) -> list[str]:
    """Return the shipped specs that begin with ``incomplete``; the shell completes files."""
    return [name for name in shipped_specs() if name.startswith(incomplete)]


OUT = {"flags": ("-o", "--out"), "metavar": "FOLDER"}
"""The names of ``out`` on the command line."""
OUT_FILE: dict[str, Any] = OUT | {"metavar": "FILE"}
PROGRESS = "True shows a bar. A function is called at each step of the progress."
TELL = "Function that is called with messages. Left out, they are logged by the log `composer`."
SYSTEM = "Text of the system message before the first message."
TOP_P = "Sample among the likeliest tokens of this total probability."
SPEC = (
    "A YAML file, the name of a shipped spec (`compose show` lists them), a variant of a sweep (SWEEP:VARIANT), the folder of a "
    "built model, or a spec or built model of the Hub (hub:OWNER/NAME, hub:OWNER/NAME/FILE.yaml, each with @REVISION or without)."
)
ON_HUB = "or a model of the Hub: hub:OWNER/NAME[@REVISION]"
SOURCE = (
    "A folder with config.json and safetensors, a built model, a GGUF file, or a model of the Hub (OWNER/NAME, "
    "OWNER/NAME@REVISION, hub:OWNER/NAME, hub:OWNER/NAME/FILE.gguf)."
)


PARTS = (
    "Python module or file (.py) with your own parts, which is imported. Those of installed packages need no option. "
    "May be repeated."
)


@reads(list[str])
def to_parts(value: Reference | Sequence[Reference]) -> tuple[str, ...]:
    """Register the parts of modules and files."""
    return register_parts([value] if isinstance(value, str | os.PathLike) else value)


@options_class
class PartsOption:
    parts: tuple[str, ...] = option(PARTS, default=(), converter=to_parts, metavar="MODULE_OR_FILE")


@options_class
class SpecArgument(PartsOption):
    spec: SpecLike = argument(SPEC, is_checked=False, complete=complete_spec)


@options_class
class AnyModelArgument(PartsOption):
    model: str = argument("A built model, or any other: a folder, or OWNER/NAME of the Hub.", converter=to_text)


@options_class
class OptionalSource(PartsOption):
    source: str | None = option(
        SOURCE, default=None, converter=to_optional_text, kw_only=False, flags=("--from",), metavar="SOURCE"
    )


@options_class
class SourceOfRevision(OptionalSource):
    revision: str | None = option("Branch, tag or commit of a model of the Hub.", default=None)


@options_class
class TextOnlyOption(SourceOfRevision):
    text_only: bool = option(
        "Of a source that reads images or sound, too: use its text decoder, and leave the other parts out.", default=False
    )

    def check(self) -> None:
        if self.source is None and self.text_only:
            raise BuildError("--text-only is for a model with a source: name the source with --from")


@options_class
class RequiredSource(PartsOption):
    source: str = option(SOURCE, converter=to_text, kw_only=False, flags=("--from",), metavar="SOURCE")


@options_class
class FreshOption:
    fresh: bool = option("Use the spec's own trunk, without a source.", default=False)


@options_class
class TokenizerOption:
    tokenizer: str | None = option(
        "Use the tokenizer of this folder or model of the Hub: with --fresh, or for a source that has none.",
        default=None,
        converter=to_optional_text,
        metavar="MODEL",
    )


@options_class
class SetOption:
    overrides: Overrides = option(
        "Change a value of the spec or its recipe: head.memory.0.size=32, recipe.finetune.lr=1e-4. May be repeated.",
        default=(),
        is_checked=False,
        flags=("--set",),
        metavar="PATH=VALUE",
        kind=list[str],
    )


@options_class
class SequenceOption:
    sequence: int = option(
        "Length at which a growing state, and the source's cache, are counted. 4k is 4,096.",
        default="4k",
        converter=to_tokens(),
        flags=("--seq",),
        metavar="TOKENS",
    )


@options_class
class SeedOption:
    seed: int = option("Seed of the random numbers.", default=0, minimum=0, maximum=MOST_SEED)


@options_class
class SignedSeedOption:
    seed: int = option("Seed of the random numbers. It may be negative.", default=0, minimum=LEAST_SEED, maximum=MOST_SEED)


@options_class
class DeviceOption:
    device: str = option("Where to run: cpu or cuda.", default="cpu")


@options_class
class BackendOption:
    backend: str = option(
        "Implementation of the heads: auto uses the first form that fits, reference the definition. torch runs on every device.",
        default=AUTO,
    )


@options_class
class DtypeOption:
    dtype: Dtype | None = option(
        "Type of all weights. Left out, they are kept as stored, and quantised weights become bfloat16.",
        default=None,
        converter=to_dtype,
    )


@options_class
class Bfloat16Option:
    bfloat16: bool = option("Compute projections in bfloat16.", default=False)


@options_class
class GraphOption:
    graph: bool = option(
        "On a GPU, record the decoding step once as a CUDA graph, and replay it.", default=True, flags=("--graph/--no-graph",)
    )


@options_class
class BuiltModelArgument(PartsOption):
    model: Path = argument(f"A folder that `compose build` wrote, {ON_HUB}.", converter=to_path)


@options_class
class ForceOption:
    force: bool = option("Replace an existing result.", default=False)


@options_class
class TaskFiles:
    text: Path | None = option("Text to measure perplexity on.", default=None, converter=to_optional_path, metavar="FILE")
    haystack: Path | None = option("Text to hide needles in.", default=None, converter=to_optional_path, metavar="FILE")
    babi: Path | None = option(
        "Folder with the bAbI files, for babilong. Left out, facts are generated.",
        default=None,
        converter=to_optional_path,
        metavar="FOLDER",
    )


@options_class
class HeldOutOptions:
    held_out: tuple[str, ...] = option(
        "Data to evaluate on. Left out, a share of --data is held out. May be repeated.",
        default=(),
        converter=to_texts,
        metavar="REF",
    )
    share: float = option("Share of --data to hold out where --held-out names none. 0 holds out nothing.", default=SHARE)


@options_class
class DataOptions(HeldOutOptions):
    data: tuple[str, ...] = option(
        "A file (.jsonl, .txt, .csv, .parquet), hub:OWNER/NAME, or a task such as passkey,samples=2000. May be repeated.",
        converter=to_texts,
        kw_only=False,
        metavar="REF",
    )


@options_class
class SamplingOptions(SignedSeedOption):
    temperature: float = option("0 chooses the most likely token. Above 0, tokens are sampled.", default=0.0, minimum=0)
    top_p: float = option(TOP_P, default=1.0, minimum=0, maximum=1)

    def check(self) -> None:
        if self.top_p < 1 and self.temperature == 0:
            raise ComposerError("--top-p is for sampled tokens: it needs a --temperature above 0")
