"""The finished models of an ablation by the names of their variants, and the state that each of them keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from composer.ablation.figures import FAILURE, Figures
from composer.ablation.options import Request
from composer.ablation.plan import MODELS, Chain, Variant
from composer.ablation.steps import model_of
from composer.api import resolve_spec
from composer.spec.explain import Explanation, explain_resolved
from composer.spec.resolve import Resolved
from composer.weights.config import dimensions
from composer.weights.rewrite import write_renamed
from composer.weights.sources import describe_model

VARIANTS = "variants"
LENGTH = 1024
"""Tokens after which states are compared, where neither samples nor rows have a length."""


def name_models(chains: Sequence[Chain], results: Mapping[str, Figures], request: Request, out: Path) -> dict[str, dict[int, str]]:
    """Links each variant's model as ``variants/NAME`` or, with several seeds, ``variants/NAME-seed0`` and so on.

    Returns the paths in ``out``, by variant and seed, without models whose training has failed. Raises BuildError.
    """
    found: dict[str, dict[int, str]] = {}
    for chain in chains:
        if any(FAILURE in results[step.name] for step in chain.steps if step.kind in MODELS):
            continue
        name = chain.variant.name if len(request.seeds) == 1 else f"{chain.variant.name}-seed{chain.seed}"
        (out / VARIANTS).mkdir(exist_ok=True)
        model = model_of(chain.steps[-1], out / "steps")
        write_renamed(model, out / VARIANTS / name, chain.variant.spec, _resolved(chain.variant, request))
        found.setdefault(chain.variant.name, {})[chain.seed] = f"{VARIANTS}/{name}"
    return found


def costs_of(variants: Sequence[Variant], request: Request) -> dict[str, Explanation]:
    """The costs of each variant, by name, at the longest length that it is scored or trained on, in its source's dtype."""
    trunk = None if request.source is None else describe_model(request.source).trunk
    dtype, windows = ("float32", None) if trunk is None else (trunk.dtype, trunk.windows)

    def cost(variant: Variant) -> Explanation:
        length = max(request.lengths, default=variant.recipe.sequence or LENGTH)
        return explain_resolved(_resolved(variant, request), sequence=length, dtype=dtype, windows=windows)

    return {variant.name: cost(variant) for variant in variants}


def _resolved(variant: Variant, request: Request) -> Resolved:
    return resolve_spec(variant.spec, None if request.source is None else dimensions(describe_model(request.source).trunk))
