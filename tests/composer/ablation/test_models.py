"""An ablation reports the same sizes of its models as the commands do."""

from __future__ import annotations

from pathlib import Path

import composer
from composer.ablation.ablate import costs_of
from composer.ablation.plan import read_variants
from tests.checkpoints import llama_model
from tests.composer.ablation.variants import request_for, write_spec


def test_state_bytes_are_counted_in_the_dtype_of_the_source(tmp_path: Path) -> None:
    """The state's bytes are counted in the dtype of the source, as in `explain`."""
    llama_model(dtype="bfloat16").save_pretrained(tmp_path / "source")
    request = request_for(tmp_path / "source", tmp_path / "none.txt")
    (variant,) = read_variants([write_spec(tmp_path / "s.yaml")], ())
    cost = costs_of([variant], request)[variant.name]
    assert cost == composer.explain(variant.spec, tmp_path / "source", sequence=12).model_copy(update={"on": None})
    assert cost.dtype == "bfloat16"
