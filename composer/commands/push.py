"""``push``: a model or a spec is written to the Hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from composer.errors import ComposerError, PushError, translate_errors
from composer.options.classes import argument, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import ForceOption, PartsOption, complete_spec, to_optional_path, to_text
from composer.publishing.contents import contents_of
from composer.publishing.push import MAIN, PushReport, check_repo_id, plan_push, progress_bars, push_contents
from composer.reporting.progress import on_terminal
from composer.reporting.terminal import at_once, print_report
from composer.spec.loading import SpecLike
from converters.hub import HUB


@options_class
class PushedArgument(PartsOption):
    pushed: SpecLike = argument(
        "A folder that `compose build` or `compose export` wrote, or a spec: a YAML file, or the name of a shipped one.",
        is_checked=False,
        complete=complete_spec,
        metavar="MODEL|SPEC",
    )


@options_class
class PushOptions(ForceOption, PushedArgument):
    """Write a model or a spec to a repository of the Hub.

    The repository is created, and private unless --public is set. Files that the record of the model names are uploaded, and a card
    with the picture, the spec and the origin of the weights. The token is that of `hf auth login`, or HF_TOKEN. With --force, files
    are also written to a repository with files of another origin, or with another kind of contents.
    """

    error: ClassVar[type[ComposerError]] = PushError
    example: ClassVar[str] = 'composer.push("lawcat-mine", "owner/lawcat-mine", dry_run=True)'
    repository: str = argument("Repository of the Hub.", converter=to_text, metavar="OWNER/NAME")
    branch: str = option("Branch to write to, such as one for an export beside its model. It is created.", default=MAIN)
    public: bool = option("Create a public repository. Left out, it is private.", default=False)
    metrics: Path | None = option(
        "Folder of an evaluation of the model. Its results become the card's `model-index`.",
        default=None,
        converter=to_optional_path,
        metavar="FOLDER",
    )
    progress: bool = option("Show progress bars on stderr.", default=False, is_hidden=True)
    dry_run: bool = option("List files and sizes without a request to the Hub.", default=False)

    def check(self) -> None:
        check_repo_id(self.repository)


@translate_errors
def run_push(options: PushOptions) -> PushReport:
    pushed, repo_id = options.pushed, options.repository
    if isinstance(pushed, str | Path) and str(pushed).startswith(HUB):
        raise PushError(f"{pushed} is on the Hub already; expected a folder or a spec here.")
    results = []
    if options.metrics is not None:
        if not isinstance(pushed, str | Path) or not Path(pushed).expanduser().is_dir():
            raise PushError("--metrics is for the folder of a model: leave it out for a spec.")
        from composer.publishing.contents import results_of

        results = results_of(options.metrics, Path(pushed).expanduser())
    contents = contents_of(pushed, repo_id, results)
    if options.dry_run:
        return plan_push(contents, repo_id, options.branch, private=not options.public)
    with progress_bars(visible=options.progress):
        return push_contents(contents, repo_id, options.branch, private=not options.public, force=options.force)


push = function_of(PushOptions, run_push)


@command(PushOptions, "quiet", "as_json")
def push_command(options: PushOptions, screen: Screen) -> None:
    at_once(f"Reading {options.pushed}", quiet=screen.hides_progress)
    print_report(run_push(replace(options, progress=not screen.hides_progress and on_terminal())), as_json=screen.as_json)
