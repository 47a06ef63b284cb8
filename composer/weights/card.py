"""The model card, ``README.md``: the parts of a model, the source of its weights, and how to load it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import yaml

from composer.reporting.escape import escape_markdown, markdown_block, markdown_code, markdown_link
from composer.spec.writing import to_yaml
from composer.weights.config import read_recorded_trunk
from composer.weights.record import RECORD, Record, StoredSource, TrainedStage, steps_in_words
from converters.hub import HUB

PICTURE = "composition.svg"
"""The file name of the picture of the model's heads and layers."""


def model_card(record: Record, name: str, *, on_hub: bool = False) -> str:
    """Return Markdown with the Hub's front matter. Names and papers are escaped: the card shows them as they are.

    on_hub: ``name`` is a repository of the Hub, and no folder.
    """
    plan, source = record.plan, record.source
    trunk = read_recorded_trunk(record.trunk)
    front: dict[str, object] = {"library_name": "transformers"}
    if trunk.labels is not None:
        front["pipeline_tag"] = "text-classification"
    elif trunk.decoder is not None:
        front["pipeline_tag"] = "image-text-to-text"
    elif record.resolved.direction == "causal":
        front["pipeline_tag"] = "text-generation"
    front["tags"] = ["composed", "linear-attention"]
    if source is not None and source.repo_id:
        front["base_model"] = source.repo_id
    front |= licence_fields(record)
    if datasets := datasets_of(record):
        front["datasets"] = datasets
    auto = "AutoModelForCausalLM" if trunk.decoder is None else "AutoModelForImageTextToText"
    auto = auto if trunk.labels is None else "AutoModelForSequenceClassification"
    paper = f"\nPaper: {markdown_link(record.resolved.paper)}\n" if record.resolved.paper else ""
    linked = (
        "\nFiles that the record calls linked are the source's own, under another name: what writes into one of them in place "
        "changes the source.\n"
        if not on_hub and any(file.how == "linked" for file in record.files.values())
        else ""
    )
    load = (
        f"import composer  # registers the model with the Auto classes\nfrom transformers import {auto}\n\n"
        f'model = {auto}.from_pretrained({json.dumps(name, ensure_ascii=False)}, dtype="auto")'
    )
    verify = f"compose verify {shlex.quote(HUB + name if on_hub else name)}"
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {escape_markdown(name)}

{markdown_code(record.resolved.name)} heads {_origin(source)}.
{paper}
![The graph of each head, and the map of layers]({PICTURE})

| | |
|---|---|
| spec hash | `{record.spec_hash}` |
| inherited tensors | {len(plan.inherited)} |
| fresh tensors | {len(plan.fresh)} |
| dropped tensors | {len(plan.dropped)} |
| dtype | {plan.dtype} |

{_training_lines(record)}{linked}
{lineage(record)}
{licence_section(record)}
## Load it

{markdown_block(load, "python")}

{markdown_code(verify)} checks the weights against `{RECORD}`, which holds the whole record: spec, plan, source, versions.

## Spec

{markdown_block(to_yaml(record.spec), "yaml")}
"""


def datasets_of(record: Record) -> list[str]:
    """Return the data sets of the Hub that the model was trained on."""
    named = [reference for stage in record.training for reference in _references(stage)]
    return list(dict.fromkeys(name.removeprefix(HUB).partition(",")[0] for name in named if name.startswith(HUB)))


def lineage(record: Record) -> str:
    """Return a section of Markdown: the source, its revision, the spec's hash, and each training stage's data and tokens."""
    source = record.source
    rows = [("spec hash", markdown_code(record.spec_hash))]
    if source is not None:
        rows += [
            ("source", markdown_code(source.repo_id) if source.repo_id else "a local folder"),
            ("revision", markdown_code(source.commit or source.revision or "") if source.commit or source.revision else "none"),
            ("SHA-256 of the source's config", markdown_code(source.config_sha256)),
        ]
    for stage in record.training:
        data = ", ".join(map(markdown_code, _references(stage))) or "unnamed data"
        length = f"{stage.tokens:,} tokens in {steps_in_words(stage)}" if stage.steps else "no steps"
        rows.append((stage.stage, f"{data}: {length}"))
    table = "\n".join(f"| {escape_markdown(name)} | {value.replace('|', chr(92) + '|')} |" for name, value in rows)
    return f"## Lineage\n\n| | |\n|---|---|\n{table}\n"


def licence_fields(record: Record | None) -> dict[str, object]:
    """Return the fields for a card's front matter of the licence of a model's weights, which is that of their source."""
    source = None if record is None else record.source
    stated = {} if source is None else source.licence.fields
    return {key: value if isinstance(value, str) else list(value) for key, value in stated.items()}


def licence_section(record: Record | None, code: str = "") -> str:
    """Return a section of Markdown on the licence of a model's weights. code: a sentence on that of the code beside them.

    Weights that were built from nothing have no licence of a source.
    """
    source = None if record is None else record.source
    weights = "" if source is None else _licence_of_weights(source)
    text = " ".join(filter(None, (weights, code)))
    return f"## Licence\n\n{text}\n" if text else ""


def _licence_of_weights(source: StoredSource) -> str:
    fields, files = source.licence.fields, source.licence.files
    if not fields and not files:
        return (
            "The source of the weights states no licence, neither on its card nor in a file of its folder. Find its terms before "
            "you share these weights, which derive from it."
        )
    values = [value for stated in fields.values() for value in ((stated,) if isinstance(stated, str) else stated)]
    stated = f": {', '.join(map(markdown_code, values))}" if values else ""
    terms = f" The terms are in {', '.join(map(markdown_code, files))}." if files else ""
    return f"The weights derive from the source's, and have its licence{stated}.{terms}"


def _references(stage: TrainedStage) -> list[str]:
    """Return the references to a stage's data, as the user wrote them."""
    return [str(data["reference"]) for data in stage.data.get("references", ())]


def _origin(source: StoredSource | None) -> str:
    if source is None:
        return "in a trunk of the spec's own, built from nothing"
    revision = f" at commit {markdown_code(source.commit)}" if source.commit else ""
    quantised = source.unpacked
    if quantised is not None:
        name = markdown_code(Path(quantised.path).name) + (f" of {markdown_code(source.repo_id)}" if source.repo_id else "")
        return f"on the weights of {name}, unpacked from {markdown_code(quantised.quantisation)}{revision}"
    return "on the weights of " + (markdown_code(source.repo_id) if source.repo_id else "a local folder") + revision


def _training_lines(record: Record) -> str:
    if record.source is None:
        return f"When this was built, every parameter was random (seed {record.seed}). Train it before use.\n"
    if record.given and not record.untrained:
        files = ", ".join(
            f"{markdown_code(Path(file).name)} (SHA-256 {markdown_code(digest)})" for file, digest in record.given.items()
        )
        return f"Every parameter is from the source, or from {files}.\n"
    if not record.untrained:
        return "Every parameter is from the source, or was trained in it.\n"
    return (
        f"When this was built, {len(record.untrained)} tensors of its heads were untrained: until they are trained, do not expect "
        "the source's quality.\n"
    )
