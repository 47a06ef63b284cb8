"""A model from nothing: a spec with a trunk of its own becomes a folder, or a model in memory, and all of its values are random."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blocks import initialise
from blocks.part import Fresh
from composer.devices import check_memory
from composer.errors import BuildError
from composer.spec.outside import stored_parts
from composer.spec.parameters import fresh_parameters
from composer.spec.resolve import Resolved
from composer.weights.build import BuildReport, Progress, bytes_in, complete_folder, progress_of, report_of
from composer.weights.output import check_output, check_space, whole_or_nothing
from composer.weights.plan import FreshParameter, Plan, dtype_of, notes_on
from composer.weights.record import Record, stored_file, versions, write_json
from composer.weights.stream import filled, fresh_piece, write_shard
from composer.weights.tokenizer import Tokenizer
from converters.canonical import expected_tensors
from converters.shard import BYTES
from converters.source import GENERATION_CONFIG, SINGLE
from converters.trunk import Dtype, Trunk

if TYPE_CHECKING:
    import torch

    from composer.model.classes import Composed

DEVIATION = 0.02
"""Standard deviation of the normal distribution that embeddings and projections start from."""
ANY_LENGTH = 2048
"""``max_position_embeddings`` where no positions are learned: a number that nothing depends on."""


def build_fresh_folder(
    resolved: Resolved,
    out: str | os.PathLike[str],
    *,
    spec_document: Mapping[str, Any],
    dtype: Dtype | None = None,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    check: Callable[[Record], None] | None = None,
) -> BuildReport:
    """Builds ``resolved``, which has a trunk, into the folder ``out``, which appears whole or not at all.

    The same seed gives the same bytes of weights. dtype: of all of them; None is float32. tokenizer: its files are copied.
    The rest is as in ``build_folder`` of ``composer.weights.build``. Raises ``BuildError``.
    """
    from composer.weights.config import config_dict

    began = time.perf_counter()
    target = check_output(Path(out), None, force=force)
    trunk = trunk_from(resolved, dtype or "float32", tokenizer)
    wanted = parameters(resolved, trunk)
    plan = _plan(wanted, trunk, notes_on(resolved, trunk, fresh=True))
    untrained = tuple(wanted)
    if dry_run:
        return report_of(target, resolved, plan, untrained, {}, 0, began, dry_run=True)
    check_space(target, plan.total_bytes)

    with whole_or_nothing(target, force=force) as folder:
        pieces = [fresh_piece(name, fresh, plan.parameters[name].dtype, seed) for name, fresh in wanted.items()]
        contents = write_shard(folder / SINGLE, pieces, progress_of(progress, SINGLE, plan.total_bytes))
        files = {SINGLE: stored_file(folder / SINGLE, "written", origin=None, contents=contents)}
        if tokenizer is not None:
            tokenizer.copy(folder)
        if trunk.labels is None:
            write_json(folder / GENERATION_CONFIG, tokenizer.special if tokenizer is not None else {})
        record = Record(
            spec=dict(spec_document),
            resolved=resolved,
            spec_hash=resolved.hash,
            source=None,
            seed=seed,
            trunk=asdict(trunk),
            plan=plan,
            files=files,
            untrained=untrained,
            parts=stored_parts(resolved),
            versions=versions(),
        )
        record = complete_folder(folder, config_dict(trunk, resolved, trunk.dtype), record, target.name)
        if check is not None:
            check(record)
        total = bytes_in(folder)
    return report_of(target, resolved, plan, untrained, files, total, began, dry_run=False)


def build_fresh(
    resolved: Resolved, *, spec_document: Mapping[str, Any] | None = None, dtype: Dtype | None = None, seed: int = 0
) -> Composed:
    """The same model in memory, in evaluation mode. spec_document: for the record of later saves; without it they write none."""
    from composer.weights.from_model import assembled
    from composer.weights.origin import origin_of

    trunk = trunk_from(resolved, dtype or "float32")
    wanted = parameters(resolved, trunk)
    kinds: dict[str, Dtype] = {name: dtype_of(fresh, trunk.dtype) for name, fresh in wanted.items()}
    check_memory(sum(fresh.size * BYTES[kinds[name]] for name, fresh in wanted.items()), f"the parameters of {resolved.name}")
    weights: dict[str, torch.Tensor] = {name: filled(name, fresh, kinds[name], seed) for name, fresh in wanted.items()}
    model = assembled(resolved, trunk, weights)
    if spec_document is not None:
        plan = _plan(wanted, trunk, notes_on(resolved, trunk, fresh=True))
        model._origin = origin_of(resolved, spec_document, plan, trunk, None, seed, tuple(wanted))
    return model


def trunk_from(resolved: Resolved, dtype: Dtype, tokenizer: Tokenizer | None = None) -> Trunk:
    """The trunk that a resolved spec brings. Raises ``BuildError`` where the tokenizer has more tokens than it."""
    spec, size = resolved.trunk, resolved.dimensions
    if spec is None or spec.mlp.width is None:
        raise BuildError("The spec was resolved against a source. Resolve it by itself: a `trunk` of its own makes it whole.")
    if tokenizer is not None and tokenizer.size > spec.vocabulary:
        raise BuildError(
            f"The tokenizer of {tokenizer.folder} has {tokenizer.size:,} tokens, and the trunk has embeddings for "
            f"{spec.vocabulary:,}. Say `trunk.vocabulary: {tokenizer.size}`, or choose another tokenizer."
        )
    special = tokenizer.special if tokenizer is not None else {}
    return Trunk(
        vocabulary_size=spec.vocabulary,
        hidden_size=size.hidden_size,
        intermediate_size=spec.mlp.width,
        layers=size.layers,
        heads=size.heads,
        key_heads=size.key_heads,
        head_dim=size.head_dim,
        norm_epsilon=spec.norm_epsilon,
        attention_bias=spec.bias,
        mlp_bias=False,
        tied_embeddings=spec.tied,
        rope_theta=spec.theta,
        rope_scaling=None,
        max_positions=spec.length or ANY_LENGTH,
        activation=spec.mlp.activation,
        bos_token_id=special.get("bos_token_id"),
        eos_token_id=special.get("eos_token_id"),
        # The embedding of a padding token is never trained, and some tokenizers pad with what ends a text.
        pad_token_id=None,
        dtype=dtype,
        initializer_range=DEVIATION,
        norm=spec.norm,
        mlp=spec.mlp.kind,
        position_embedding=spec.embedding,
        dropout=spec.dropout,
        labels=spec.labels,
    )


def parameters(resolved: Resolved, trunk: Trunk) -> dict[str, Fresh]:
    """All parameters by their full names: norms start as 1, biases as 0, heads as their parts say, all others as normal numbers."""
    return {name: Fresh(shape, _fill(name)) for name, shape in expected_tensors(trunk).items()} | fresh_parameters(resolved)


def _fill(name: str) -> initialise.Fill:
    *_, module, tensor = name.split(".")
    if tensor == "bias":
        return initialise.constant(0.0)
    return initialise.constant(1.0) if module.endswith("norm") else _normal


def _normal(tensor: torch.Tensor, generator: torch.Generator | None) -> None:
    tensor.normal_(0.0, DEVIATION, generator=generator)


def _plan(wanted: Mapping[str, Fresh], trunk: Trunk, notes: tuple[str, ...]) -> Plan:
    return Plan(
        dtype=trunk.dtype,
        parameters={
            name: FreshParameter(output=SINGLE, shape=fresh.shape, dtype=dtype_of(fresh, trunk.dtype))
            for name, fresh in wanted.items()
        },
        dropped={},
        shards=(),
        notes=notes,
    )
