"""The spec on a model's card is YAML as people write it, and reads back as the spec that the model was built of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import composer
from composer.weights.record import read_record
from tests.checkpoints import llama


@pytest.mark.parametrize("name", ["lola", "lawcat", "mixed-heads", "hybrid"])
def test_the_spec_of_a_card_has_kinds_first_and_means_the_same(tmp_path: Path, name: str) -> None:
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
