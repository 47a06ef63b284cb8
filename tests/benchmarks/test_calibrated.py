"""The benchmark's runs use recipes of the specs that it names."""

from __future__ import annotations

import pytest

from benchmarks.calibrated import FULL, SPECS, build_overrides
from composer.spec import load_spec


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("start", "steps"), [("parts", FULL), ("calibrated", 50)])
def test_overrides_set_the_transfer_stage(spec: str, start: str, steps: int) -> None:
    made = load_spec(spec, build_overrides(start, steps)).recipe
    assert made is not None
    assert made.transfer is not None
    assert (made.transfer.start, made.transfer.steps, made.transfer.batch, made.finetune) == (start, steps, 16, None)
