"""The spec on a model's card is readable YAML, and equals the spec of the build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import composer
from composer.weights.record import read_record
from tests.checkpoints import llama


@pytest.mark.parametrize("name", ["lola", "lawcat", "mixed-heads", "hybrid"])
def test_the_spec_of_a_card_has_kinds_first_and_the_same_hash(tmp_path: Path, name: str) -> None:
    source = llama(tmp_path / "source")
    composer.build_folder(name, source, tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"```yaml\n(.*?)\n```", text, re.DOTALL)

    def looked_at(value: object) -> None:
        if isinstance(value, dict):
            assert next(iter(value)) == "kind" or "kind" not in value
            assert len(value) > 1 or "kind" not in value, "a part without keys is a bare word"
        for inside in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            looked_at(inside)

    looked_at(yaml.safe_load(written))
    assert "kind:" in written
    (tmp_path / "again.yaml").write_text(written, encoding="utf-8")
    record = read_record(tmp_path / "out")
    assert record is not None
    assert composer.show(str(tmp_path / "again.yaml"), source).hash == record.spec_hash


def test_papers_and_folders_are_escaped_in_the_card(tmp_path: Path) -> None:
    """Both are escaped, and backticks in the spec do not end its block."""
    source = llama(tmp_path / "source")
    spec = composer.show("lolcats").document | {"paper": "<script>alert(1)</script>\n```\n[a](javascript:b) \x1b[31m"}
    out = tmp_path / "<img src=x> `a` $(b)"
    composer.build_folder(spec, source, out)
    text = (out / "README.md").read_text(encoding="utf-8")
    outside = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "&lt;script&gt;" in outside
    assert "# &lt;img src=x&gt; \\`a\\` $(b)" in outside
    assert "<" not in re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", outside)
    assert "](javascript" not in outside
    assert "compose verify '<img src=x> `a` $(b)'" in outside
    assert "\x1b" not in text
    assert text.count("```python") == 1
