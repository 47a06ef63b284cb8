"""The exports of all families equal their models where this package cannot be imported, or are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from packaging.version import Version
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import composer
from composer.errors import ExportError
from composer.exporting import folder as folder_module
from composer.exporting.comparison import Comparison, ModelText, compare
from composer.exporting.folder import causal
from composer.model.mixers import hybrids_run
from converters.hosts import LATENT
from tests.composer.exporting.models import randomised
from tests.composer.hosts.families import HYBRIDS, LATER, PASSED, UNLIKE, small
from tests.covers import some

pytestmark = pytest.mark.long

WRITTEN = [
    family
    for family in PASSED
    if family not in LATENT and family in CONFIG_MAPPING and Version(transformers.__version__) >= Version(LATER.get(family, "0"))
]
REFUSED = [family for family in PASSED + HYBRIDS if family in {*LATENT, *HYBRIDS} and family in CONFIG_MAPPING]
ALIKE = {
    "cohere2_moe", "ernie4_5_moe", "gpt_bigcode", "granitemoe_swa", "helium", "minimax_m2", "nemotron", "persimmon", "seed_oss",
    "vaultgemma",
}  # fmt: skip
"""Families whose files have the attention of another family in `UNLIKE`, and that differ in the rest of their layers."""
FIRST = [family for family in WRITTEN if family in UNLIKE and family not in ALIKE]
CHUNKS = {
    "unlike": FIRST,
    **{f"others, {start}": [family for family in WRITTEN if family not in FIRST][start::3] for start in range(3)},
}
"""Families whose exports one process loads, one after the other."""


def student(family: str) -> Any:
    return randomised(composer.build("lolcats", small(family), overrides=["recipe=null", "head.memory.0.size=8"]))


@pytest.mark.usefixtures("quick_comparison")
@pytest.mark.parametrize("chunk", some(CHUNKS, ["unlike"]))
def test_exports_equal_their_models(chunk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process loads the exports of a chunk, in place of one process for each."""
    samples: dict[str, ModelText] = {}
    families = CHUNKS[chunk]
    for family in families:

        def keep(exports: Any, family: str = family) -> list[Comparison]:
            samples[family] = exports[0][2]
            return [Comparison(0.0, None)]

        monkeypatch.setattr(folder_module, "compare", keep)
        student(family).save_pretrained(tmp_path / "models" / family)
        composer.export(tmp_path / "models" / family, tmp_path / family)
    comparisons = compare([(tmp_path / family, True, samples[family]) for family in families])
    assert {family: item.problem for family, item in zip(families, comparisons, strict=True) if item.problem} == {}


@pytest.mark.parametrize("family", REFUSED)
def test_unsupported_families_are_refused_by_name(family: str) -> None:
    if family in HYBRIDS and not hybrids_run():
        pytest.skip(f"transformers {transformers.__version__} cannot continue the states of {family}'s layers")
    with pytest.raises(ExportError, match=f"family {family} are not exported"):
        causal(student(family))
