"""Chat templates give the text of transformers, with bounded time, memory and length."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from composer.data import chat_templates as templates
from composer.data.chat_templates import TemplateError, render, render_starts

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Héllo \U0001f600 <b>"},
    {
        "role": "assistant",
        "content": "Hi",
        "reasoning_content": "a greeting",
        "tool_calls": [{"name": "f", "arguments": {"x": 1.5}}],
    },
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CHATML = (
    "{{ bos_token }}{%- for message in messages %}\n    <|{{ message['role'] }}|>{{ message['content'] | trim }}"
    "{{ message.tool_calls | tojson(indent=2) if message.tool_calls }}{{ eos_token }}{%- endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ date_string }}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(TEACHER)


@pytest.fixture(autouse=True, scope="module")
def short() -> Iterator[None]:
    """Set low limits, in a separate process that restarts after a template has ended it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "SECONDS", 1)
        patch.setattr(templates, "MEMORY", 2**28)
        patch.setattr(templates, "LONGEST", 2**20)
        patch.setattr(templates, "_client", templates._Client())
        yield
        templates._client.stop()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_generation_prompt": True, "date_string": "today"},
        {"tools": TOOLS},
        {"continue_final_message": True},
        {"bos_token": "own"},
    ],
    ids=str,
)
def test_the_text_equals_that_of_transformers(tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]) -> None:
    options["chat_template"] = CHATML
    assert render(tokenizer, TALK, **options) == tokenizer.apply_chat_template(TALK, tokenize=False, **options)


def test_several_starts_in_one_call(tokenizer: PreTrainedTokenizerBase) -> None:
    starts = [(3, False), (1, True), (2, False)]
    rendered = render_starts(tokenizer, TALK, starts, chat_template=CHATML)
    assert [text.text for text in rendered] == [
        tokenizer.apply_chat_template(TALK[:count], tokenize=False, chat_template=CHATML, add_generation_prompt=prompt)
        for count, prompt in starts
    ]
    marked = "{% for m in messages %}{% generation %}{{ m.role }}{{ m.content is defined }}{% endgeneration %}.{% endfor %}"
    talk = [{"role": "user", "content": None}, *TALK]
    rendered = render_starts(tokenizer, talk, [(1, False), (2, False)], chat_template=marked, return_assistant_tokens_mask=True)
    assert [(text.text, text.answers) for text in rendered] == [
        ("userFalse.", ((0, 9),)),
        ("userFalse.systemTrue.", ((0, 9), (10, 20))),
    ]


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "1 seconds of processor time"),
        ("{{ 10 ** (10 ** 9) }}", "seconds of processor time|too much memory"),
        ("{{ 'a' * 10**10 }}", "too much memory"),
        ("{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}", "too much memory"),
        ("{{ 'a' | center(10**10) }}", "too much memory"),
        ("{{ '%10000000000d' % 5 }}", "too much memory"),
        ("{{ '{:>10000000000}'.format(1) }}", "too much memory"),
        ("{{ messages | tojson(indent=10**10) }}", "too much memory"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deep"),
        ("{{ 'a' * 2000000 }}", "writes 2,000,000 characters; expected at most 1,048,576"),
        ("{% for %}", "Expected an expression"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|undefined"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ raise_exception('\x1b[31mred\n') }}", r"^\\x1b\[31mred\\n$"),
    ],
    ids=lambda value: value[:30],
)
def test_no_template_goes_beyond_the_limits(tokenizer: PreTrainedTokenizerBase, template: str, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        render(tokenizer, TALK[:1], chat_template=template)
    assert render(tokenizer, TALK[:1], chat_template="{{ messages[0].content }}") == "Be brief."


def test_messages_that_json_cannot_represent_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    talk = [{"role": "user", "content": object(), "when": datetime(2024, 1, 1, tzinfo=UTC)}]
    template = "{{ messages[0].content }}{{ messages[0].when }}"
    text = tokenizer.apply_chat_template(talk, tokenize=False, chat_template=template)
    assert render(tokenizer, talk, chat_template=template) == text == "<object><datetime>"
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(TemplateError, match="not what JSON can hold"):
        render(tokenizer, [{"role": "user", "content": circle}], chat_template="x")
    with pytest.raises(TemplateError, match="without messages"):
        render(tokenizer, [], chat_template="x")


def test_a_tokenizer_without_a_template_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.chat_template is None
    with pytest.raises(TemplateError, match="has no chat template"):
        render(tokenizer, TALK)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no system with forks")
def test_forked_processes_have_separate_children(tokenizer: PreTrainedTokenizerBase) -> None:
    """It runs in a process without the threads of torch and pytest, where forking is safe."""
    script = (
        "import os, sys\nfrom types import SimpleNamespace\nfrom composer.data import chat_templates as templates\n"
        "stub = SimpleNamespace(get_chat_template=lambda template, tools: '{{ messages[0].content }}', special_tokens_map={})\n"
        "def text(): return templates.render(stub, [{'content': 'x'}])\n"
        "assert text() == 'x'\nmine = templates._client.worker.process.pid\nforked = os.fork()\n"
        "if not forked:\n    same = text() == 'x' and templates._client.worker.process.pid != mine\n    templates._client.stop()\n"
        "    os._exit(0 if same else 1)\n"
        "assert os.waitpid(forked, 0)[1] == 0\nassert text() == 'x'\nassert templates._client.worker.process.pid == mine\n"
        "assert 'torch' not in sys.modules\nprint('done')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (run.stdout, run.stderr) == ("done\n", "")


def test_the_child_ends_with_its_parent(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_client", templates._Client())
    render(tokenizer, TALK[:1], chat_template="x")
    worker = templates._client.worker
    assert worker is not None
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert worker.process.wait(timeout=60) == 0


@pytest.mark.parametrize("template", ["{{ '\\ud800' }}", "ab{{ messages[0].content }}"])
def test_half_of_a_surrogate_pair_is_refused(tokenizer: PreTrainedTokenizerBase, template: str) -> None:
    """No tokenizer accepts such a text."""
    with pytest.raises(TemplateError, match=r"it writes U\+D800 at character [02], half of a surrogate pair"):
        render(tokenizer, [{"role": "user", "content": "\ud800"}], chat_template=template)
