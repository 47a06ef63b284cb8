"""One HTML page with all pictures in it, which needs no other file and no network."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from composer.escape import escape_html
from composer.inspection.findings import Answered, Findings
from composer.versions import versions_of

PACKAGES = ("attention-composer", "torch")
CSS = """
:root { color-scheme: light dark; --text: #1b1b1b; --back: #fcfcfc; --soft: #5a5a5a; --line: #d5d5d5; --mark: #b84a00; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --back: #17181a; --soft: #a8a8a8; --line: #3a3c40; --mark: #ffa566; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
p.says, figcaption, .soft { color: var(--soft); }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; display: block; }
figure { margin: 1rem 0; overflow-x: auto; }
@media (max-width: 800px) { figure img { max-width: none; width: 44rem; } }
table { border-collapse: collapse; }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line); }
.scroll { overflow-x: auto; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; max-height: 14rem; overflow-y: auto;
  border: 1px solid var(--line); padding: .6rem; border-radius: 4px; }
mark { background: none; color: var(--mark); font-weight: 700; text-decoration: underline; }
nav { margin: 1rem 0; }
nav a { color: inherit; margin-right: .8rem; white-space: nowrap; }
"""


@dataclass(frozen=True)
class Shot:
    """A picture as it stands on the page. image: a PNG."""

    name: str
    title: str
    says: str
    image: bytes


def page(found: Findings, shots: Sequence[Shot]) -> str:
    """The page as HTML."""
    title = f"Inside {found.model}"
    links = " ".join(f'<a href="#{escape_html(shot.name)}">{escape_html(shot.title)}</a>' for shot in shots)
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
            f"<title>{escape_html(title)}</title>",
            f"<style>{CSS}</style></head><body>",
            f"<h1>{escape_html(title)}</h1>",
            *_about(found),
            f"<nav>{links}</nav>",
            *(line for shot in shots for line in _figure(shot)),
            "</body></html>\n",
        )
    )


def _about(found: Findings) -> Iterator[str]:
    whose = ((found.model, found.answered), (found.teacher, found.teacher_answered))
    rows = [
        ("heads", found.spec),
        ("beside", found.teacher or "nothing"),
        ("text", f"{found.text}, {len(found.tokens):,} tokens; {len(found.queries):,} were asked what they attend to"),
        *((f"{who} answers", _answers_in_words(answered)) for who, answered in whose if answered is not None),
        (
            "weights times values",
            f"at most {max(head.error for head in found.heads):.1e} of the largest number from the heads' answers",
        ),
        ("written by", ", ".join(f"{name} {version}" for name, version in versions_of(PACKAGES).items())),
    ]
    yield '<div class="scroll"><table>'
    yield from (f"<tr><th>{escape_html(name)}</th><td>{escape_html(str(value))}</td></tr>" for name, value in rows)
    yield "</table></div>"
    places = {column for places in found.found_at for column in places}
    marked = places | set(found.answers)
    words = (
        f"<mark>{escape_html(token)}</mark>" if column in marked else escape_html(token)
        for column, token in enumerate(found.tokens)
    )
    underlined = "its answer, and where that stands before," if places else "its answer"
    yield f'<p class="soft">The text{f"; {underlined} underlined" if found.answers else ""}:</p>'
    yield f'<div class="text">{" ".join(words)}</div>'


def _answers_in_words(answered: Answered) -> str:
    right, loss = sum(answered.right), sum(answered.loss) / len(answered.loss)
    return f"{right} of {len(answered.right)} tokens right, {loss:.3f} nats a token"


def _figure(shot: Shot) -> Iterator[str]:
    encoded = base64.b64encode(shot.image).decode("ascii")
    yield f'<h2 id="{escape_html(shot.name)}">{escape_html(shot.title)}</h2><p class="says">{escape_html(shot.says)}</p>'
    yield f'<figure><img alt="{escape_html(shot.title)}" src="data:image/png;base64,{encoded}">'
    yield f'<figcaption class="soft">{escape_html(shot.name)}.png, numbers in {escape_html(shot.name)}.json</figcaption></figure>'
