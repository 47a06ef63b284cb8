"""``build``: models with the heads of a spec and the weights of a source, in memory and as folders."""

from __future__ import annotations

from dataclasses import replace

from composer.building.build import BuildOptions, ModelOptions, run_build, run_build_in_memory
from composer.options.classes import function_of
from composer.options.command import Screen, command
from composer.reporting.terminal import print_json, print_view
from composer.spec.inherit import short_path

build = function_of(ModelOptions, run_build_in_memory, "build")
build_folder = function_of(BuildOptions, run_build, "build_folder")


@command(BuildOptions, "quiet", "as_json")
def build_command(options: BuildOptions, screen: Screen) -> None:
    report = run_build(replace(options, progress=not screen.quiet))
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    view = report.view(options.seed)
    if screen.quiet and not options.dry_run:
        view = view._replace(title=f"Built {short_path(report.out)}", tables=())
    print_view(view, wrap=False)
