"""``inspect``: what each head attends to, which memory answers, and which pairs the states still recall."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from composer.errors import InspectionError, translate_errors
from composer.inspection.options import InspectOptions
from composer.options.arguments import Reference
from composer.options.classes import argument, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import PROGRESS, PartsOption
from composer.reporting.progress import BarUpdate, progress_callback, silent_transformers
from composer.reporting.terminal import print_json, print_view, say
from composer.spec.inherit import short_path
from composer.system.devices import room_for
from composer.system.files import MOST_TEXT, read_text_file

if TYPE_CHECKING:
    from composer.inspection.findings import Findings
    from composer.model.modeling import ComposedForCausalLM


@options_class
class InspectCommandOptions(InspectOptions, PartsOption):
    """Inspect a model: what heads attend to, and what states recall.

    The report also shows which memory answers, how fast gates forget, and how similar each layer is to the teacher's. With OUT, it
    is a page (report.html), and pictures with the numbers behind them. Without OUT, it is a table.
    """

    example: ClassVar[str] = 'composer.inspect("lawcat-mine", tasks="passkey,depth=0.5", length="1k", out="inside")'
    model: Reference | ComposedForCausalLM = argument(
        "A built or distilled folder, or a source, which is inspected with softmax attention. In Python, also a composed model in "
        "memory.",
        is_checked=False,
        metavar="MODEL",
    )
    tokenizer: Any = option("Tokenizer of a model in memory.", default=None, is_checked=False, is_hidden=True)
    progress: bool | Callable[[str], None] = option(PROGRESS, default=False, is_checked=False, is_hidden=True)


@translate_errors
def run_inspect(options: InspectCommandOptions) -> Findings:
    with progress_callback(options.progress, lambda group: BarUpdate("looking", 0, 1, group), "name", "text") as tell:
        from composer.inspection.inspect import inspect as run

        fewer = f"Use a shorter text (--length, now {options.length:,}), fewer --queries, or no teacher: --alone."
        with room_for(f"on {options.device}", fewer, InspectionError), silent_transformers("error"):
            return run(options.model, options, tokenizer=options.tokenizer, tell=tell)


inspect = function_of(InspectCommandOptions, run_inspect)


@command(InspectCommandOptions, "quiet", "as_json")
def inspect_command(options: InspectCommandOptions, screen: Screen) -> None:
    if options.text is not None:
        options = replace(options, text=read_text_file(Path(options.text), InspectionError, MOST_TEXT))
    findings = run_inspect(replace(options, progress=False if screen.hides_progress else lambda group: say(group, err=True)))
    if screen.as_json:
        from composer.inspection.findings import plain

        print_json(plain(findings))
        return
    print_view(findings.view(), wrap=False)
    if options.out is not None:
        say(f"\nThe page, pictures and numbers: {short_path(options.out)}/report.html")
