"""``new`` and ``schema``: a spec to start from, and the JSON schema for editors."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from blocks.catalogue import CATALOGUE
from composer.errors import BuildError, ComposerError, SpecError, translate_errors
from composer.exporting.targets import TARGETS, target_named
from composer.exporting.targets.fit import ClosestFit, fit, student_of_spec
from composer.exporting.targets.target import NativeTarget, StudentModel
from composer.options.classes import argument, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import SOURCE, PartsOption, to_optional_text, to_text
from composer.reporting.terminal import print_json, say
from composer.spec.document import Name, Spec
from composer.spec.inherit import find_spec, not_found, short_path
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.reading import MOST_BYTES
from composer.spec.schema import json_schema
from composer.spec.writing import to_yaml
from composer.system.files import failing_as, write_whole
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from converters.bounded import read_text

SCHEMA = "schema.json"
EDITORS = "# yaml-language-server:"
HINT = "# For completion in your editor"
NAMED = r"^name:\s*[\w-]+"
"""The start of the line with a spec's name."""
DATA = r"^  data: [^#]*$"
"""The line with the data of a recipe, which describes the training of the paper."""


@options_class
class NewOptions(PartsOption):
    """Write a commented spec to start from."""

    example: ClassVar[str] = 'composer.new("mine", like="lawcat")'
    name: str = argument("Name of the spec, which is written to NAME.yaml. NAME may be a path.", converter=to_text)
    like: str | None = option(
        "Start from a copy of this spec or built model.",
        default=None,
        converter=to_optional_text,
        kw_only=False,
        metavar="SPEC",
    )
    target: str | None = option(
        f"Start from the shipped spec of a class of transformers, changed to fit --from: {', '.join(TARGETS)}. `compose export "
        "--native` writes its trained students as that class.",
        default=None,
        flags=("--for",),
        metavar="CLASS",
    )
    source: str | None = option(
        f"The source that --for is for. {SOURCE}", default=None, converter=to_optional_text, flags=("--from",), metavar="SOURCE"
    )
    revision: str | None = option("Branch, tag or commit of a model of the Hub.", default=None)

    def check(self) -> None:
        if (self.target is None) != (self.source is None):
            raise ComposerError("--for CLASS and --from SOURCE belong together: the spec is written for a class and a source")
        if self.target is not None and self.like is not None:
            raise ComposerError("--for starts from the shipped spec of a class, and --like from another one: leave one out")


@translate_errors
def run_new(options: NewOptions) -> Path:
    path = Path(options.name if options.name.endswith(".yaml") else f"{options.name}.yaml")
    try:
        TypeAdapter(Name).validate_python(path.stem)
    except ValidationError:
        wanted = "a name has lower-case letters, digits, - and _, a letter first"
        raise ComposerError(f'no spec can be called "{path.stem}": {wanted}') from None
    if options.target is not None and options.source is not None:
        text = _fitting(target_named(options.target), options.source, options.revision, path.stem)
    else:
        text = _like(options.like, path) if options.like is not None else template(path.stem)
    with failing_as(ComposerError, f"{path} cannot be written"):
        try:
            os.stat(path.parent)  # which is not made: a mistyped folder would be
            write_whole(path, f"{_schema(path.parent)}{text}", replace=False)
        except FileExistsError:
            raise ComposerError(f"{path} is there already; choose another name, or remove it") from None
    return path


@options_class
class SchemaOptions(PartsOption):
    """Print the JSON schema of specs, for editors."""

    example: ClassVar[str] = "json.dumps(composer.schema())"


def run_schema(options: SchemaOptions) -> dict[str, Any]:
    return json_schema()


new = function_of(NewOptions, run_new)
schema = function_of(SchemaOptions, run_schema)


def template(name: str) -> str:
    """Return a spec with every key of a head, and the alternatives of each key in comments."""

    def kinds(role: str) -> str:
        return ", ".join(CATALOGUE[role])

    return f"""\
# What this head composes, and the paper, in a sentence or two.
# Parts, their equations and their fields: compose parts, compose parts NAME.
compose: 1                      # version of the format; the defaults of a version never change
name: {name}
# paper: arXiv:…
# direction: bidirectional      # every token also sees the tokens after it: an encoder, which cannot generate

head:
  position: rope                # {kinds("position")}; a memory may have its own
  # mix_input: rglru            # {kinds("mix input")}: what latents and weights of the token see
  # conv: {{kernel: 4}}           # over the tokens, before the feature map
  feature_map: hedgehog         # {kinds("feature map")}
  memory:                       # {kinds("memory")}; top to bottom: each evicts pairs into the next
    - {{kind: window, size: 64, weight: learned}}
    - {{kind: state, gate: none}} # gates: {kinds("gate")}
  # flow: parallel              # every memory sees every pair; or `graph:`, a list of edges such as window -> state
  read: shared                  # {kinds("read")}
  # output: norm                # {kinds("output")}

# Other heads in some layers: define them, and list their layers.
# heads:
#   exact: {{memory: [full]}}
# layers:
#   - {{at: [0, -1], use: exact}}             # a layer, a list, a range such as 0:8:2, or all
#   - {{at: 1, use: [{{head: exact, heads: 4}}, {{head: head, heads: 28}}]}}    # groups of query heads inside one layer
#   - {{at: -1, use: [{{head: exact, heads: [1]}}, {{head: head, heads: rest}}]}}    # the same, by the numbers of key heads

# How it is trained. The hash of the spec does not depend on it.
# recipe:
#   transfer: {{lr: 1e-2, epochs: 2}}
#   finetune: {{lora: {{rank: 8, alpha: 16, targets: [q, k, v, o]}}, lr: 1e-4, epochs: 2}}
"""


def _schema(folder: Path) -> str:
    """Return the line that editors read, if the schema is beside the spec; otherwise a hint on how to get it."""
    if (folder / SCHEMA).is_file():
        return f"{EDITORS} $schema={SCHEMA}\n"
    return f"{HINT}, run `compose schema > {SCHEMA}` here and put on top: {EDITORS} $schema={SCHEMA}\n"


def _like(like: str, path: Path) -> str:
    """Return the other spec's text, comments and all, under the new name; what it extends is found from the new place, too."""
    origin = find_spec(like, Path())
    if origin is None:
        raise SpecError(not_found(like, Path()))
    spec = load_spec(origin)
    if origin.is_dir():
        return f"# Begun as a copy of {like}.\n" + to_yaml(spec.model_dump(mode="json", exclude_unset=True) | {"name": path.stem})
    text = read_text(origin, MOST_BYTES).removeprefix("\ufeff")
    lines = [line for line in text.splitlines() if not line.startswith((EDITORS, HINT))]
    if not any(re.match(NAMED, line) for line in lines):
        raise ComposerError(f"{short_path(origin)} does not have its name on a separate line; write `extends: {like}` by hand")
    renamed = [re.sub(NAMED, f"name: {path.stem}", line) for line in lines]
    renamed = [f"{line}  # a description: compose distill reads --data" if re.match(DATA, line) else line for line in renamed]
    return "\n".join([f"# Begun as a copy of {like}.", *(_rewrite_extends(line, origin, path) for line in renamed)]) + "\n"


def _fitting(target: NativeTarget, source: str, revision: str | None, name: str) -> str:
    """Return the shipped spec of a class, with the heads and the order of layers that it has on a source. Raises BuildError if the
    class has no student of this source."""
    trunk = describe_model(source, revision).trunk

    def fit_on_source(spec: Spec) -> tuple[StudentModel, ClosestFit]:
        student = student_of_spec(resolve_spec(spec, dimensions(trunk)), trunk)
        return student, fit(target, student)

    spec = load_spec(target.spec)
    student, closest = fit_on_source(spec)
    document = spec.model_dump(mode="json", exclude_unset=True)
    heads = {kind.name: groups[0].head for kind, groups in zip(closest.types, student.resolved.layers, strict=True)}
    for kind in target.layers:
        if (head := heads.get(kind.name, "source")) != "source":
            place = document if head == "head" else document["heads"]
            place[head] = kind.document(student.heads[head], student.values(0))
    for _, wanted in target.arrangement([kind.name for kind in closest.types]) if target.arrangement else ():
        layers = {head: [layer for layer, kind in enumerate(wanted) if heads.get(kind) == head] for head in heads.values()}
        document["layers"] = [{"at": numbers, "use": head} for head, numbers in layers.items() if head != "head"]
    _, closest = fit_on_source(load_spec(document))
    if closest.differences:
        listed = "".join(f"\n- {difference}" for difference in closest.differences)
        raise BuildError(f"no student of {source} is a {target.title}:{listed}")
    header = f"# {target.spec} for {source}. `compose export --native` writes its students as {target.title}.\n"
    return header + to_yaml(document | {"name": name})


def _rewrite_extends(line: str, origin: Path, path: Path) -> str:
    """Return a line that extends a file beside the other spec, as seen from the new one."""
    match = re.match(r"^extends:\s*([^\s#]+)", line)
    if match is None:
        return line
    base = origin.parent / match[1].strip("'\"")
    return line.replace(match[1], os.path.relpath(base, path.parent), 1) if base.is_file() else line


@command(NewOptions)
def new_command(options: NewOptions, screen: Screen) -> None:
    path = run_new(options)
    say(f"Wrote {path}. Next: compose check {shlex.quote(str(path))}")


@command(SchemaOptions)
def schema_command(options: SchemaOptions, screen: Screen) -> None:
    print_json(run_schema(options))
