"""``explain``: what a spec costs on a source."""

from __future__ import annotations

from typing import ClassVar

from composer.errors import BuildError, ComposerError, translate_errors
from composer.exporting.targets import compare_with_targets
from composer.options.classes import function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import (
    BackendOption,
    DeviceOption,
    DtypeOption,
    SequenceOption,
    SetOption,
    SourceOfRevision,
    SpecArgument,
    TextOnlyOption,
)
from composer.reporting.terminal import print_json, print_view
from composer.spec.explain import explain_resolved
from composer.spec.explained import Explanation
from composer.spec.loading import load_spec, resolve_spec
from composer.system.devices import device_type
from composer.weights.config import trunk_from
from composer.weights.target import target_of


@options_class
class ExplainOptions(
    DtypeOption, DeviceOption, BackendOption, SequenceOption, TextOnlyOption, SetOption, SourceOfRevision, SpecArgument
):
    """Explain what a spec costs on a source, before it is built.

    For each group of heads: parts, forms and the reasons for them, fresh parameters, bytes of state for a row of a batch,
    operations, and the compression against the source's KV cache. Only the source's config.json is read. A spec with its own trunk
    needs no source, and is compared with softmax attention in that trunk.
    """

    error: ClassVar[type[ComposerError]] = BuildError
    native: bool = option(
        "Compare the spec with the classes of transformers that `compose export --native` writes: each condition that "
        "fails, the reason, and the remedy.",
        default=False,
    )


@translate_errors
def run_explain(options: ExplainOptions) -> Explanation:
    loaded = load_spec(options.spec, options.overrides)
    target = target_of(options.spec, loaded, options.source, revision=options.revision, text_only=options.text_only)
    if target is None:
        raise BuildError("no source is named: set --from SOURCE. Only its config.json is read.")
    resolved = resolve_spec(loaded, target.size)
    trunk = target.trunk or trunk_from(resolved, "float32") if options.native else None
    explanation = explain_resolved(
        resolved,
        on=target.on,
        sequence=options.sequence,
        backend=options.backend,
        device=device_type(options.device),
        dtype=options.dtype or target.dtype,
        windows=target.windows,
        rotations=target.rotations,
    )
    return explanation if trunk is None else explanation.model_copy(update={"native": compare_with_targets(resolved, trunk)})


explain = function_of(ExplainOptions, run_explain)


@command(ExplainOptions, "as_json")
def explain_command(options: ExplainOptions, screen: Screen) -> None:
    explanation = run_explain(options)
    if screen.as_json:
        print_json(explanation.model_dump(mode="json"))
    else:
        print_view(explanation.view())
