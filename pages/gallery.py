"""Writes docs/gallery: every shipped spec with its picture, equations, what is peculiar, what was measured of it, and its YAML.
``make gallery``."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from blocks.catalogue import CATALOGUE
from blocks.part import Part
from composer.ablation.plan import read_variants
from composer.drawing.picture import TYPICAL, Picture, picture
from composer.spec.dimensions import Dimensions
from composer.spec.document import Spec
from composer.spec.loading import load_spec, load_specs
from composer.spec.resolve import Resolved, resolve
from composer.spec.shipped import purpose_of, remarks_of, shipped_specs
from composer.spec.writing import format_value
from composer.system.files import write_whole
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from evidence.experiments import EXPERIMENTS, TEACHER
from evidence.kept import RUNS, Run, read_run
from evidence.page import format_cell
from pages.gallery_style import STYLE

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "docs" / "gallery"
SOURCE_ON = "Llama-3.2-1B"
PARTS = "<tr><th>part</th><th>kind</th><th>computes</th><th>source</th></tr>"
HEAD = """<p>Every spec that ships with this project. <code>compose build NAME --from SOURCE</code> builds a model of it, and
<code>compose new mine --like NAME</code> copies it into your own file. Pictures have the sizes of Llama-3.2-1B
(<code>compose draw NAME --from SOURCE</code>: other sizes); states are those of one text, in float32. Measurements are of students
of the small teacher, with three seeds each, where <a href="../evidence.md">the evidence</a> has runs of the same heads: shares of
right answers, perplexities and other named figures, mean ± standard deviation.</p>
"""


def render_files() -> dict[str, str]:
    """Return every file of the gallery, by its name."""
    svgs = {f"{_file(name)}.svg": drawing.svg for name, drawing in _pictures().items()}
    return {"index.html": _page(), "README.md": _overview(), **svgs}


def _page() -> str:
    names = sorted(shipped_specs(), key=lambda name: (name.startswith("ablations/"), "/" in name, name))
    links = "".join(f'<li><a href="#{_file(name)}">{name}</a></li>' for name in names)
    entries = "".join(_entry(name) for name in names)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Gallery of specs</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<nav><ul>{links}</ul></nav>\n<main>\n<h1>Gallery of specs</h1>\n{HEAD}{entries}"
        "</main>\n</body>\n</html>\n"
    )


def _overview() -> str:
    """Return the page for readers of the repository: each spec's picture and the first sentence of its comment."""
    rows = [
        "# Gallery of specs\n\nThis page shows the heads of each shipped spec on the sizes of Llama-3.2-1B.\n"
        "[index.html](index.html), opened in a browser, adds remarks, equations, measurements, sweeps and the YAML.\n"
        "`make gallery` writes both.\n"
    ]
    for name in _pictures():
        link = f"[`{name}`](../../specs/{name}.yaml)"
        rows.append(f"\n## {name}\n\n{link}: {purpose_of(name)}\n\n![The heads of {name}, drawn]({_file(name)}.svg)\n")
    return "".join(rows)


def _entry(name: str) -> str:
    spec = load_spec(name)
    pieces = [f'<section id="{_file(name)}">\n<h2>{name}</h2>\n', *(f"<p>{_to_html(text)}</p>\n" for text in remarks_of(name))]
    if spec.paper:
        pieces.append(f'<p class="paper">{html.escape(spec.paper)}</p>\n')
    if spec.vary is None:
        drawing = _pictures()[name]
        size = f'width="{drawing.width:.0f}" height="{drawing.height:.0f}"'
        image = f'<img src="{_file(name)}.svg" {size} alt="The heads of {name} and its layers, drawn">'
        pieces.append(f'<div class="wide picture">{image}</div>\n')
    else:
        pieces.append(_variants(name))
    pieces += [_equations(name), _measurements(name)]
    text = shipped_specs()[name].read_text(encoding="utf-8")
    pieces.append(
        f"<details><summary>The YAML, to copy: specs/{name}.yaml</summary><pre>{html.escape(text)}</pre></details>\n</section>\n"
    )
    return "".join(pieces)


def _variants(name: str) -> str:
    rows = []
    for variant in read_variants([name]):
        says = "<br>".join(f"{html.escape(path)} = {html.escape(format_value(value))}" for path, value in variant.values.items())
        rows.append(f"<tr><td><code>{variant.name}</code></td><td>{says}</td></tr>\n")
    return f'<div class="wide"><table><tr><th>variant</th><th>values</th></tr>\n{"".join(rows)}</table></div>\n'


def _equations(name: str) -> str:
    """Return the equations of all parts of a spec's heads, or of those of a sweep's variants, each once."""
    part_types: dict[tuple[str, str], type[Part]] = {}
    for spec in load_specs(name).values():
        for head in _resolve(spec).heads.values():
            for part in _parts(head):
                if part.role in CATALOGUE:
                    part_types.setdefault((part.role, type(part).model_fields["kind"].default), type(part))
    rows = [
        f"<tr><td>{role}</td><td><code>{kind}</code></td><td>{html.escape(part.equation)}</td><td>{html.escape(part.source)}</td></tr>\n"
        for (role, kind), part in sorted(part_types.items(), key=lambda item: item[0])
        if kind != "none"
    ]
    return f'<div class="wide parts"><table>{PARTS}\n{"".join(rows)}</table></div>\n'


def _parts(model: BaseModel) -> Iterator[Part]:
    """Yield the parts of a head, and those inside of them."""
    for _, value in model:
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Part):
                yield item
            if isinstance(item, BaseModel):
                yield from _parts(item)


def _measurements(name: str) -> str:
    """Return a table of the kept runs of the same heads on the small teacher; nothing where there are none."""
    runs_by_variant: dict[str, list[Run]] = {}
    for spec in load_specs(name).values():
        for variant, runs in _runs().get(_resolve(spec, teacher=True).hash, {}).items():
            # Experiments share runs: what has the same figures is one run by several names.
            if not any(runs[0].figures == listed[0].figures for listed in runs_by_variant.values()):
                runs_by_variant["/".join(variant)] = runs
    titles = list(dict.fromkeys(title for runs in runs_by_variant.values() for title in runs[0].figures))
    if not titles:
        return ""
    head = "".join(f"<th><code>{variant}</code></th>" for variant in runs_by_variant)
    body = "".join(f"<tr><td>{html.escape(title)}</td>{_figures(runs_by_variant.values(), title)}</tr>\n" for title in titles)
    return f'<div class="wide"><table class="figures"><tr><th>measured</th>{head}</tr>\n{body}</table></div>\n'


def _figures(runs_by_variant: Iterable[list[Run]], title: str) -> str:
    """Return a cell for each variant over its seeds, as the page of the evidence has it."""
    by_seed = ({run.seed: run.figures[title] for run in runs if title in run.figures} for runs in runs_by_variant)
    return "".join(f"<td>{format_cell(figures)}</td>" for figures in by_seed)


@cache
def _runs() -> Mapping[str, Mapping[tuple[str, str], list[Run]]]:
    """Return the kept runs by the hash of their resolved spec on the small teacher, then by experiment and variant."""
    runs_by_hash: dict[str, dict[tuple[str, str], list[Run]]] = {}
    for experiment in EXPERIMENTS.values():
        for variant in read_variants(experiment.specs, experiment.overrides):
            paths = (RUNS / experiment.name / f"{variant.name}.seed-{seed}.json" for seed in experiment.request.seeds)
            runs = [run for path in paths if (run := read_run(path)) is not None]
            if runs:
                spec_hash = _resolve(variant.spec, teacher=True).hash
                runs_by_hash.setdefault(spec_hash, {})[experiment.name, variant.name] = runs
    return runs_by_hash


def _resolve(spec: Spec, *, teacher: bool = False) -> Resolved:
    """Resolve a spec on its own trunk, on the small teacher, or on the sizes that the pictures have."""
    return resolve(spec, None if spec.trunk else _teacher() if teacher else TYPICAL)


@cache
def _teacher() -> Dimensions:
    return dimensions(describe_model(ROOT / TEACHER).trunk)


@cache
def _pictures() -> dict[str, Picture]:
    """Return the picture of every shipped spec that is no sweep."""
    specs = {name: load_spec(name) for name in shipped_specs()}
    return {
        name: picture(_resolve(spec), on=None if spec.trunk else SOURCE_ON) for name, spec in specs.items() if spec.vary is None
    }


def _file(name: str) -> str:
    return name.replace("/", "-")


def _to_html(text: str) -> str:
    """Return text as HTML; text between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def main() -> None:
    files = render_files()
    for path in GALLERY.glob("*"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        write_whole(GALLERY / name, text)


if __name__ == "__main__":
    main()
