"""What an ablation has to do: a chain of steps for each variant and seed, in which each step is named by all that decides it.

Two chains that begin alike share their first steps, since these have the same names: the first stage of training is not run twice
for variants that differ in the second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import composer
from composer.api import resolve_spec
from composer.data.reading import files_of
from composer.data.references import FileData, parse_reference
from composer.errors import AblationError
from composer.spec.document import Spec
from composer.spec.loading import expand, load_spec
from composer.spec.recipe import Recipe
from composer.spec.sweep import rows, variant_names
from composer.training.standing import fingerprint
from composer.weights.contents import sha256
from composer.weights.dimensions import dimensions
from converters.source import Source

Kind = Literal["build", "transfer", "compare", "finetune", "train", "evaluate"]
ORDER: tuple[Kind, ...] = ("build", "transfer", "compare", "finetune", "train", "evaluate")
"""A step comes after all of those before its own kind."""


@dataclass(frozen=True)
class Request:
    """What all variants have in common. source: None builds each on its own trunk, from nothing.

    data, held_out, share: as ``composer.data`` reads them. tasks, lengths, samples: as ``composer.evaluation`` does.
    """

    source: str | None
    data: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    share: float = 0.05
    tasks: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    samples: int = 100
    seeds: tuple[int, ...] = (0,)
    tokenizer: str | None = None
    """For what is built from nothing."""
    files: dict[str, Path] = field(default_factory=dict)
    """Of tasks that read one: text, haystack, babi."""
    device: str = "cpu"
    autocast: bool = False


@dataclass(frozen=True)
class Variant:
    """A spec to try. values: what its row of the sweep says, by path; empty for a spec that stands alone."""

    name: str
    spec: Spec
    values: dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One thing to do. key: a hash of all that decides its result. after: the step whose result it works on."""

    kind: Kind
    key: str
    after: Step | None
    variant: Variant
    request: Request
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.kind}-{self.key}"


@dataclass(frozen=True)
class Chain:
    """One variant with one seed."""

    variant: Variant
    seed: int
    steps: tuple[Step, ...]


def read_variants(specs: Sequence[str], overrides: Sequence[str] = ()) -> list[Variant]:
    """Each spec, and each variant of each sweep. Raises SpecError, and AblationError where two have one name."""
    found = [variant for said in specs for variant in _variants(said, overrides)]
    names = [variant.name for variant in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise AblationError(f'Two variants are called "{twice[0]}": say each spec once, or give one another `name`.')
    return found


def plan(variants: Sequence[Variant], request: Request, source: Source | None) -> list[Chain]:
    """The chains, variant by variant. Raises AblationError, SpecError and DataError before anything is done."""
    data = {"data": [_identity(said) for said in request.data], "held_out": [_identity(said) for said in request.held_out]}
    origin = None if source is None else fingerprint(source)
    return [_chain(variant, seed, request, source, {"source": origin, **data}) for variant in variants for seed in request.seeds]


def distinct(chains: Sequence[Chain], kind: Kind) -> list[Step]:
    """The steps of a kind, each once."""
    return list({step.key: step for chain in chains for step in chain.steps if step.kind == kind}.values())


def _variants(said: str, overrides: Sequence[str]) -> Iterator[Variant]:
    spec = load_spec(said)
    if spec.vary is None:
        yield Variant(spec.name, load_spec(said, overrides), {})
        return
    values = spec.vary.grid | spec.vary.zip
    named = dict(zip(variant_names(spec.vary), rows(spec.vary), strict=True))
    for name, variant in expand(said, overrides).items():
        yield Variant(variant.name, variant, {path: _plain(values[path][index]) for path, index in named[name]})


def _chain(variant: Variant, seed: int, request: Request, source: Source | None, common: dict[str, Any]) -> Chain:
    recipe = variant.spec.recipe or Recipe()
    meant = resolve_spec(variant.spec, None if source is None else dimensions(source.trunk)).hash
    steps: list[Step] = []

    def add(kind: Kind, **decides: Any) -> None:
        before = steps[-1] if steps else None
        told = {"after": before and before.key, "composer": composer.__version__, **decides}
        steps.append(Step(kind, _key(kind, told), before, variant, request, seed))

    rows_of = {name: getattr(recipe, name) for name in ("sequence", "rows")}
    trained = {"share": request.share, "seed": seed, "device": request.device, "autocast": request.autocast, **common, **rows_of}
    add("build", spec=meant, source=common["source"], seed=seed, tokenizer=request.tokenizer)
    stages = ("transfer", "finetune") if source is not None else ("train",)
    if request.data:
        for kind in stages:
            stage = getattr(recipe, kind)
            if kind == "finetune":
                add("compare", **trained)
            if stage is not None:
                add(kind, recipe=stage.model_dump(mode="json"), **trained)
    if request.tasks:
        files = {name: [str(path), _hash_of(path)] for name, path in request.files.items()}
        add("evaluate", tasks=request.tasks, lengths=request.lengths, samples=request.samples, files=files)
    return Chain(variant, seed, tuple(steps))


def _key(kind: str, decides: dict[str, Any]) -> str:
    text = json.dumps({"kind": kind, **decides}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _identity(said: str) -> list[Any]:
    """What a reference reads: as it is said, and what stands in its files."""
    reference = parse_reference(said)
    files = files_of(reference) if isinstance(reference, FileData) else ()
    return [said, [sha256(path) for path in files]]


def _hash_of(path: Path) -> list[str]:
    """Of a file, or of all in a folder. Raises AblationError."""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    try:
        return [sha256(one) for one in files]
    except OSError as error:
        raise AblationError(f"{path} cannot be read: {error.strerror}.") from error


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
