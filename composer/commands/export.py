"""``export``: a model as a folder that needs PyTorch and transformers alone."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from blocks.part import Closed
from composer.errors import ComposerError, ExportError, translate_errors
from composer.exporting.gguf.types import DEFAULT_TYPE, INSTALL, TYPES, check_gguf
from composer.exporting.targets import TARGETS, target_named
from composer.options.classes import function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import OUT, BuiltModelArgument, ForceOption, to_optional_path
from composer.reporting.progress import silent_transformers
from composer.reporting.tables import Readable, View
from composer.reporting.terminal import at_once, print_report
from composer.spec.inherit import short_path
from composer.weights.sources import local_folder, open_model, plain_name


@options_class
class ExportOptions(ForceOption, BuiltModelArgument):
    """Write a model that loads without this package.

    The folder needs PyTorch and transformers alone. A Python file has all of the model's attention, to read and to edit. It loads
    with `AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)`. Adapters are merged into the weights.
    """

    error: ClassVar[type[ComposerError]] = ExportError
    example: ClassVar[str] = 'composer.export("lawcat-mine-distilled", "lawcat-alone")'
    out: Path | None = option(
        "Output folder. Left out, MODEL-exported in the current folder.",
        default=None,
        converter=to_optional_path,
        kw_only=False,
        **OUT,
    )
    native: bool = option(
        "Write the folder of a class of transformers, without a Python file, where one computes this model: softmax in every "
        "layer, windows, Gated DeltaNet or Mamba-2 beside softmax. Otherwise list the differences.",
        default=False,
    )
    gguf: bool = option(
        "Write a GGUF file for llama.cpp and Ollama, with the tokenizer, of a model that --native could write.", default=False
    )
    quantize: str | None = option(
        f"The type of matrices in a GGUF file: {', '.join(TYPES)}. Left out, {DEFAULT_TYPE}.", default=None, metavar="TYPE"
    )
    target: str | None = option(
        f"The class that --native or --gguf writes: {', '.join(TARGETS)}. Left out, the first one that fits.",
        default=None,
        flags=("--for",),
        metavar="CLASS",
    )
    copy: bool = option("Copy weight files. Left out, they are hard links where the file system allows it.", default=False)

    def check(self) -> None:
        if self.target is not None:
            if not self.native and not self.gguf:
                raise ExportError(f"--for {self.target} names a class of transformers: add --native or --gguf")
            target_named(self.target)
        if self.native and self.gguf:
            raise ExportError("--native and --gguf write two folders; expected one of them. Run the command twice")
        if self.quantize is not None and not self.gguf:
            raise ExportError(f"--quantize {self.quantize} is a type of matrices in GGUF files: add --gguf")
        if self.gguf:
            check_gguf(self.kind)

    @property
    def kind(self) -> str:
        """The type of matrices in a GGUF file."""
        return (self.quantize or DEFAULT_TYPE).lower()


class ExportReport(Readable, Closed):
    """An exported model. architecture: its class; file: its Python file, and lines: of that, or its GGUF file, or None where the
    class is one of transformers; model_type: in its config.json, or llama.cpp's; one_by_one: the reason why a head processes one
    token after the other, or None; difference: the largest of logits under llama.cpp, as a share of the largest one, or None."""

    out: Path
    architecture: str
    model_type: str
    file: str | None = None
    lines: int | None = None
    one_by_one: str | None = None
    difference: float | None = None

    def view(self) -> View:
        return View(f"Exported {short_path(self.out)}", notes=self.remarks)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The class or the file, and what to expect of it."""
        if self.file is None:
            return (f"{self.architecture} of transformers; it loads without trust_remote_code",)
        if self.lines is None:
            compared = (
                f"not compared: llama-cpp-python is not installed ({INSTALL})"
                if self.difference is None
                else f"under llama.cpp, logits differ by {self.difference:.1e} of the largest one"
            )
            return (f"{self.file}: {self.model_type} of llama.cpp", compared)
        slow = "its heads process one token after the other, so long prompts are slow"
        return (f"{self.file}: {self.lines} lines", *([] if self.one_by_one is None else [slow]))


@translate_errors
def run_export(options: ExportOptions) -> ExportReport:
    model = local_folder(options.model)
    open_model(model)  # report mistakes before imports that need seconds
    target = options.out or Path(f"{plain_name(options.model)}-exported")
    if options.gguf:
        return _export_gguf(model, target, options)
    with silent_transformers():
        from composer.exporting.folder import export_folder
        from composer.exporting.native import Native

        exported = export_folder(
            model, target, native=options.native, target=options.target, copy=options.copy, force=options.force
        )
    if isinstance(exported, Native):
        return ExportReport(out=target, architecture=exported.architecture, model_type=exported.model_type)
    return ExportReport(
        out=target,
        architecture=f"{exported.name}ForCausalLM",
        model_type=exported.model_type,
        file=f"{exported.file}.py",
        lines=exported.text.count("\n"),
        one_by_one=exported.one_by_one,
    )


def _export_gguf(model: Path, out: Path, options: ExportOptions) -> ExportReport:
    with silent_transformers():
        from composer.exporting.gguf.folder import export_gguf

        written = export_gguf(model, out, options.kind, target=options.target, force=options.force)
    return ExportReport(
        out=out, architecture=written.title, model_type=written.architecture, file=written.file, difference=written.share
    )


export = function_of(ExportOptions, run_export)


@command(ExportOptions, "quiet", "as_json")
def export_command(options: ExportOptions, screen: Screen) -> None:
    at_once(f"Exporting {options.model}", quiet=screen.hides_progress)
    print_report(run_export(options), as_json=screen.as_json)
