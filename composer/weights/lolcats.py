"""Reads LoLCATs' checkpoints, which hold the parameters of heads, and adapters, and no trunk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from composer.errors import BuildError, SourceError
from composer.spec.loading import load_spec
from composer.spec.recipe import Lora
from composer.spec.resolve import Resolved, fresh_parameters, prefix, resolve
from composer.weights.parameter_meaning import meanings
from composer.weights.stream import BLOCK, TensorToWrite, all_finite, as_bytes, as_tensor, blocks
from converters.bounded import lost_link_message
from converters.coverage import problems_listed
from converters.errors import ConverterError
from converters.lolcats import MAP, Lolcats, Stored, as_published, read_lolcats
from converters.shard import BYTES, StoredTensor
from converters.source import Source
from converters.trunk import Dtype, Trunk, list_expected_tensors

if TYPE_CHECKING:
    import torch

SPEC = "published/lolcats-llama"
"""The spec of the files' heads: their values fit heads of the same meaning."""
_MATRIX = "model.layers.{layer}.self_attn.{projection}.weight"


@dataclass(frozen=True)
class Product:
    """A product that is added to a matrix: scale · up · down."""

    down: Stored
    up: Stored
    scale: float


@dataclass(frozen=True)
class LolcatsValues:
    """The values in LoLCATs' files by the student's names: parameters of its heads, and products to add to its trunk's matrices.
    Together they are all of the files."""

    files: tuple[Path, ...]
    values: Mapping[str, Stored]
    products: Mapping[str, Product]

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the result."""
        return () if self.products else ("The files have no adapters: this is a student as attention transfer has left it.",)


def read_values(files: Sequence[str | os.PathLike[str]], resolved: Resolved, source: Source) -> LolcatsValues:
    """Return the values in LoLCATs' files for a student. Every tensor has a use, and every parameter of the heads a value.

    Raises SourceError and BuildError.
    """
    if lost := next(filter(None, (lost_link_message(Path(file).expanduser()) for file in files)), None):
        raise SourceError(lost)
    paths = tuple(Path(file).expanduser().resolve() for file in files)
    if source.is_composed:
        raise BuildError(
            f"{source.folder} is a student already. LoLCATs checkpoints apply to the published base model. Pass that model with "
            "--from."
        )
    try:
        read = read_lolcats(paths)
    except ConverterError as error:
        raise SourceError(str(error)) from error
    lora = resolved.recipe.finetune.lora if resolved.recipe and resolved.recipe.finetune else None
    values, problems = _values(read, resolved)
    products, more = _products(read, source, lora)
    if problems or more:
        files_on_source = f"{', '.join(map(str, paths))} on {source.folder}"
        raise BuildError(
            "\n".join([f"These are not the weights of the heads of {resolved.name}: {files_on_source}", *problems, *more])
        )
    return LolcatsValues(paths, values, products)


def _values(read: Lolcats, resolved: Resolved) -> tuple[dict[str, Stored], list[str]]:
    """Return the heads' parameters by their full names, and the problems with them."""
    wanted = fresh_parameters(resolved)
    head_names = {layer: groups[0].head for layer, groups in enumerate(resolved.layers) if len(groups) == 1}
    full = {(at, name): prefix(resolved, at, head_names[at]) + name for at, name in read.parameters if at in head_names}
    values = {full[key]: stored for key, stored in read.parameters.items() if full.get(key) in wanted}
    misshapen = [
        f"{stored.name}: expected {list(expected)}, the file has {list(stored.shape)}"
        for (_, parameter), name in full.items()
        if name in values
        for stored, expected in [(values[name], as_published(parameter, wanted[name].shape))]
        if stored.shape != expected
    ]
    problems = [
        *problems_listed(
            "tensors that the heads have no place for",
            [_describe(stored) for key, stored in read.parameters.items() if full.get(key) not in wanted],
        ),
        *problems_listed(
            "parameters that no file has (a checkpoint of two files needs --lolcats twice)",
            [f"{name} {list(fresh.shape)}" for name, fresh in wanted.items() if name not in values],
        ),
        *problems_listed("tensors of another shape", misshapen),
    ]
    if not problems:
        problems = problems_listed("tensors that mean something else", list(_misfits(read.parameters, head_names, resolved)))
    return values, problems


def _misfits(parameters: Mapping[tuple[int, str], Stored], heads: Mapping[int, str], resolved: Resolved) -> Iterator[str]:
    """Values that were learned for other heads than these. heads: of each layer, by name."""
    for dim in {stored.shape[-1] for (_, parameter), stored in parameters.items() if parameter == MAP}:
        published = resolve(load_spec(SPEC, [f"head.feature_map.dim={dim}"]), resolved.dimensions)
        (head,) = published.heads
        ours, theirs = meanings(resolved), meanings(published)
        for (layer, parameter), stored in parameters.items():
            here, published_at = (prefix(resolved, layer, name) + parameter.rpartition(".")[0] for name in (heads[layer], head))
            if reason := ours[here].difference(theirs[published_at]):
                yield f"{_describe(stored)}: {reason}"


def _products(read: Lolcats, source: Source, lora: Lora | None) -> tuple[dict[str, Product], list[str]]:
    """Return the products to add to the trunk's matrices, by name, and the problems with them."""
    keys = dict.fromkeys([*read.down, *read.up])
    if not keys:
        return {}, []
    if lora is None:
        why = "their scale is in a recipe with `finetune: {lora: {rank: …, alpha: …}}`, and this spec has none"
        return {}, [f"{len(keys)} adapters: {why}"]
    if not isinstance(source.trunk, Trunk):
        return {}, [f"{len(keys)} adapters: they are for Llama's matrices, and {source.folder} is of another family"]
    shapes = list_expected_tensors(source.trunk)
    wanted = [(layer, f"{target}_proj") for layer in range(source.trunk.layers) for target in lora.targets]
    products, misshapen = {}, []
    for layer, projection in keys:
        down, up = read.down.get((layer, projection)), read.up.get((layer, projection))
        if (layer, projection) in wanted and down is not None and up is not None:
            name = _MATRIX.format(layer=layer, projection=projection)
            products[name] = Product(down, up, lora.alpha / lora.rank)
            rows, columns = shapes[name]
            for stored, expected in ((down, (lora.rank, columns)), (up, (rows, lora.rank))):
                if stored.shape != expected:
                    misshapen.append(f"{stored.name}: expected {list(expected)}, the file has {list(stored.shape)}")
    targets = ", ".join(lora.targets)
    recipe = f"recipe.finetune.lora has rank {lora.rank}, alpha {lora.alpha:g}, targets [{targets}]"
    strange = [_describe(stored) for side in (read.down, read.up) for key, stored in side.items() if key not in wanted]
    lacking = [
        f"lora_{letter} of {_MATRIX.format(layer=layer, projection=projection)}"
        for layer, projection in wanted
        for letter, side in (("A", read.down), ("B", read.up))
        if (layer, projection) not in side
    ]
    return products, [
        *problems_listed(f"adapters without a place in the model ({recipe}; change it with --set)", strange),
        *problems_listed(f"adapters that are missing ({recipe}; change it with --set)", lacking),
        *problems_listed(f"adapters of another shape ({recipe}; change it with --set)", misshapen),
    ]


def _describe(stored: Stored) -> str:
    return f"{stored.name} {list(stored.shape)}"


def value_piece(name: str, stored: Stored, shape: tuple[int, ...], dtype: Dtype) -> TensorToWrite:
    """Return a parameter of a head from a file, converted to ``dtype``."""

    def contents() -> Iterator[memoryview]:
        yield as_bytes(_finite(f"{stored.name} of {stored.file}", stored.tensor.detach().reshape(shape), dtype))

    return TensorToWrite(name, dtype, shape, contents)


def merge_piece(name: str, tensor: StoredTensor, dtype: Dtype, product: Product) -> TensorToWrite:
    """Return a matrix of the source with a product added to it, row by row, summed in float32 at least, and rounded once."""

    def contents() -> Iterator[memoryview]:
        import torch

        rows, columns = tensor.shape
        wide = torch.float64 if tensor.dtype == "float64" else torch.float32
        down, up = (stored.tensor.detach().to(wide) for stored in (product.down, product.up))
        width, step = columns * BYTES[tensor.dtype], max(1, BLOCK // (columns * BYTES[tensor.dtype]))
        for first in range(0, rows, step):
            last = min(first + step, rows)
            (block,) = blocks(tensor.file, tensor.start + first * width, tensor.start + last * width)
            matrix = as_tensor(block, tensor.dtype).view(last - first, columns).to(wide)
            yield as_bytes(_finite(name, matrix + product.scale * (up[first:last] @ down), dtype))

    return TensorToWrite(name, dtype, tensor.shape, contents)


def _finite(name: str, tensor: torch.Tensor, dtype: Dtype) -> torch.Tensor:
    import torch

    converted = tensor.to(getattr(torch, dtype))
    if not all_finite(converted):
        problem = f"holds values too large for {dtype}" if all_finite(tensor) else "holds values that are not finite"
        raise BuildError(f"{name} {problem}; nothing is written.")
    return converted
