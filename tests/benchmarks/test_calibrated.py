"""The benchmark's runs use recipes of the specs that it names."""

from __future__ import annotations

import pytest

from benchmarks.calibrated import FULL, SPECS, build_overrides
from composer.spec import load_spec


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("init", "steps"), [("parts", FULL), ("calibrated", 50)])
def test_overrides_set_the_transfer_stage(spec: str, init: str, steps: int) -> None:
    made = load_spec(spec, build_overrides(init, steps)).recipe
    assert made is not None
    assert made.transfer is not None
    assert (made.transfer.init, made.transfer.steps, made.transfer.batch, made.finetune) == (init, steps, 16, None)
