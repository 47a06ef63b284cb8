"""``compose explain``."""

from __future__ import annotations

from composer.cli.derived import Screen, command
from composer.cli.screen import print_json, print_view
from composer.commands.explain import ExplainOptions, run_explain


@command(ExplainOptions, "as_json")
def explain(options: ExplainOptions, screen: Screen) -> None:
    explanation = run_explain(options)
    if screen.as_json:
        print_json(explanation.model_dump(mode="json"))
    else:
        print_view(explanation.view())
