"""``join``: the states of two texts that were read apart become one state."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from blocks.part import Closed
from composer.errors import ComposerError, translate_errors
from composer.generation.writers import EXAMPLE, check_composed, check_state_files, load_writer, owner_of
from composer.options.classes import argument, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import OUT_FILE, BackendOption, DeviceOption, ForceOption, PartsOption, to_path, to_text
from composer.reporting.progress import silent_transformers
from composer.reporting.tables import Readable, View
from composer.reporting.terminal import at_once, print_report
from composer.reporting.words import plural, size
from composer.runs.store import check_output_file, output_file
from composer.spec.inherit import short_path
from composer.system.devices import check_device, room_for
from composer.weights.config import check_positions
from composer.weights.sources import describe_model


class JoinedState(Readable, Closed):
    """The state of two texts. exact: whether it equals that of the texts read as one. file_bytes: with the header of the file."""

    out: Path
    tokens: int
    state_bytes: int
    file_bytes: int
    exact: bool

    def view(self) -> View:
        kind = "the state of the texts read as one" if self.exact else "an approximation of the texts read as one"
        return View(
            f"Joined {plural(self.tokens, 'token')}. State: {short_path(self.out)}", notes=(f"{size(self.state_bytes)}, {kind}",)
        )


@options_class
class JoinOptions(ForceOption, BackendOption, DeviceOption, PartsOption):
    """Join the states of two texts that were read apart.

    The second text follows directly after the first. Its keys are rotated by the length of the first. Only memories that keep pairs
    one by one can be joined: softmax over all pairs, a window that discards, the first pairs. In a model of several layers the
    result approximates the state of both texts read as one.
    """

    example: ClassVar[str] = 'composer.join("mine", "a.state", "b.state", "both.state", approximate=True).tokens'
    model: str = argument("The model that read the texts: a folder, or OWNER/NAME of the Hub.", converter=to_text)
    first: Path = argument("State of the first text, a file of `compose read`.", converter=to_path)
    second: Path = argument("State of the second text.", converter=to_path)
    out: Path = option(
        "File for the state, in the safetensors format. It appears whole or not at all.",
        converter=to_path,
        kw_only=False,
        **OUT_FILE,
    )
    drop: int = option(
        "Tokens at the start of the second text to leave out, such as a heading. Many heads attend to the first tokens of a text.",
        default=0,
        minimum=0,
    )
    approximate: bool = option("Accept a state that is not exact, that of a model with several layers.", default=False)


@translate_errors
def run_join(options: JoinOptions) -> JoinedState:
    model, device, out = options.model, options.device, options.out.expanduser()
    check_output_file(out, ComposerError, force=options.force, example=EXAMPLE)
    described = describe_model(model)
    check_composed(model, is_composed=described.is_composed)
    files = [path.expanduser() for path in (options.first, options.second)]
    for path in files:
        check_state_files(path, None, force=options.force)
    check_device(device)
    with room_for(f"on {device}", "Join states of shorter texts, or use a smaller model."), silent_transformers("error"):
        from composer.model.state_file import join_caches, load_cache, save_cache

        loaded, folder = load_writer(model, device, options.backend, built=True)
        owner = owner_of(model, folder, loaded)
        first, second = (load_cache(path, loaded, owner) for path in files)
        if options.drop >= second.get_seq_length():
            raise ComposerError(f"--drop {options.drop}: the second text has {plural(second.get_seq_length(), 'token')}")
        total = first.get_seq_length() + second.get_seq_length() - options.drop
        check_positions(described.trunk, model, total, "join texts of at most")
        cache = join_caches(loaded, first, second, options.drop)
        exact = described.trunk.layers == 1 and not described.trunk.learns_positions
        if not exact and not options.approximate:
            raise ComposerError(
                f"{model} has several layers, or learned positions, and read the second text without the first. The joined state "
                "is an approximation. Accept it with --approximate, or read both texts as one with `compose read`"
            )
        with output_file(out, ComposerError, force=options.force) as partial:
            save_cache(partial, cache, loaded, owner)
    return JoinedState(out=out, tokens=total, state_bytes=cache.bytes(), file_bytes=out.stat().st_size, exact=exact)


join = function_of(JoinOptions, run_join)


@command(JoinOptions, "quiet", "as_json")
def join_command(options: JoinOptions, screen: Screen) -> None:
    at_once(f"Joining states of {options.model}", quiet=screen.hides_progress)
    print_report(run_join(options), as_json=screen.as_json)
