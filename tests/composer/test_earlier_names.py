"""Programs that import the options and reports of evaluations and benches by their earlier names still find them."""

from __future__ import annotations

import pytest

import composer.benching
import composer.evaluation


@pytest.mark.parametrize(("package", "kind"), [(composer.evaluation, "Evaluation"), (composer.benching, "Bench")])
def test_options_and_reports(package: object, kind: str) -> None:
    for name in ("Options", "Report"):
        assert getattr(package, name) is getattr(package, f"{kind}{name}")
    with pytest.raises(AttributeError, match="has no attribute 'Setting'"):
        _ = package.Setting  # pyright: ignore[reportAttributeAccessIssue]
