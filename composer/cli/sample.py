"""``compose sample``."""

from __future__ import annotations

from dataclasses import replace

from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json
from composer.commands.sample import SampleOptions, run_sample
from composer.spec.inherit import short_path


@command(SampleOptions, "quiet", "as_json")
def sample(options: SampleOptions, screen: Screen) -> None:
    at_once(f"Reading {options.model}", quiet=screen.hides_progress)
    sampled = run_sample(replace(options, progress=not screen.hides_progress))
    if screen.as_json:
        print_json(sampled.model_dump(mode="json"))
    else:
        heading(f"Wrote {short_path(sampled.out)}")
