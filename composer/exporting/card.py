"""The model card of an export: how it loads, what it was made of, its licence and its spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from composer.exporting.gguf.writing import Gguf
from composer.exporting.modeling import Exported
from composer.exporting.native import Native
from composer.reporting.escape import escape_markdown, markdown_block, markdown_code
from composer.spec.writing import to_yaml
from composer.weights.card import PICTURE, datasets_of, licence_fields, licence_section, lineage
from composer.weights.record import RECORD, Record
from converters.composed import EXPORT

SPDX = "Apache-2.0"
"""The licence of an exported Python file."""


@dataclass(frozen=True)
class _Format:
    """What a card has for one format of export. library: its loader's name on the Hub. code: a sentence on the licence of code."""

    library: str
    tags: tuple[str, ...]
    title: str
    description: str
    load: str
    code: str = ""
    has_record: bool = False


def card(exported: Exported | Native | Gguf, record: Record | None, command: str) -> str:
    """Return ``README.md``, with the Hub's front matter."""
    text = _format(exported, "" if record is None or not record.resolved.paper else record.resolved.paper)
    source = None if record is None else record.source
    front: dict[str, Any] = {"library_name": text.library, "pipeline_tag": "text-generation", "tags": list(text.tags)}
    if source is not None and source.repo_id:
        front["base_model"] = source.repo_id
    front |= licence_fields(record)
    if record is not None and (datasets := datasets_of(record)):
        front["datasets"] = datasets
    sections = [] if record is None else [lineage(record)]
    sections.append(licence_section(record, text.code))
    sections += [] if record is None else [f"## Spec\n\n{markdown_block(to_yaml(record.spec), 'yaml')}\n"]
    drawn = "" if record is None else f"\n![The graph of each head, and the map of layers]({PICTURE})\n"
    record_file = f" {markdown_code(RECORD)} records how the\nmodel was built and trained." if text.has_record else ""
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {escape_markdown(text.title)}

{text.description}
{drawn}
{markdown_block(text.load, "python")}

Written by {markdown_code(command)}. {markdown_code(EXPORT)} has the SHA-256 of all files.{record_file}

""" + "\n".join(filter(None, sections))


def _format(exported: Exported | Native | Gguf, paper: str) -> _Format:
    heads = f" Its heads follow {escape_markdown(paper)}." if paper else ""
    if isinstance(exported, Gguf):
        return _Format(
            "gguf",
            ("gguf",),
            f"{exported.architecture} in GGUF",
            f"A model for llama.cpp, which has its class as {markdown_code(exported.architecture)}.{heads}",
            f'from llama_cpp import Llama\n\nmodel = Llama("{exported.file}")\n'
            'print(model("Once upon a time", max_tokens=64)["choices"][0]["text"])',
        )
    if isinstance(exported, Native):
        kind = escape_markdown(exported.model_type)
        description = f"A {kind} model.{heads} It needs PyTorch and transformers, and no code of its own."
        return _Format("transformers", (), exported.architecture, description, _loading("", ""))
    slow = "" if exported.one_by_one is None else "\n\nIts heads process one token after the other, so long prompts are slow."
    file, licence = markdown_code(f"{exported.file}.py"), markdown_code(f"{exported.file}.LICENSE")
    return _Format(
        "transformers",
        ("linear-attention", "custom_code"),
        exported.name,
        f"A {escape_markdown(exported.host_type)} model whose attention is composed of linear-attention parts.{heads} All of its "
        f"attention\nis in {file}, which needs PyTorch and transformers alone.{slow}",
        # Left out, transformers asks for the model's code where the tokenizer is opened.
        _loading(", trust_remote_code=True", ", trust_remote_code=False"),
        f"{file} is written code, and has the licence {SPDX} ({licence}).",
        has_record=True,
    )


def _loading(of_model: str, of_tokenizer: str) -> str:
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("FOLDER"{of_model}, dtype="auto")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("FOLDER"{of_tokenizer})'
    )
