"""``compose fit``."""

from __future__ import annotations

from dataclasses import replace

from composer.cli.bars import training_steps
from composer.cli.derived import Screen, command
from composer.cli.screen import print_json, print_view
from composer.commands.fit import FitOptions, run_fit


@command(FitOptions, "quiet", "as_json")
def fit(options: FitOptions, screen: Screen) -> None:
    with training_steps(quiet=screen.quiet, visible=not screen.as_json) as watch:
        report = run_fit(replace(options, progress=watch or False))
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
    else:
        print_view(report.view(), wrap=False)
