"""``compose build``."""

from __future__ import annotations

from dataclasses import replace

from composer.building import BuildOptions, run_build
from composer.cli.derived import Screen, command
from composer.cli.screen import print_json, print_view
from composer.spec.inherit import short_path


@command(BuildOptions, "quiet", "as_json")
def build(options: BuildOptions, screen: Screen) -> None:
    report = run_build(replace(options, progress=not screen.quiet))
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    view = report.view(options.seed)
    if screen.quiet and not options.dry_run:
        view = view._replace(title=f"Built {short_path(report.out)}", tables=())
    print_view(view, wrap=False)
