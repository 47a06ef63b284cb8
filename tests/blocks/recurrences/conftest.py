"""Chunks of a few tokens, and both ways to compute gradients, for the ``MODULE`` of a test file."""

from __future__ import annotations

import pytest


@pytest.fixture
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use chunks of 4 and spans of 8, so that twenty tokens have every kind of boundary."""
    for name, size in (("CHUNK", 4), ("SPAN", 8)):
        monkeypatch.setattr(request.module.MODULE, name, size)


@pytest.fixture(params=["gradients written out", "gradients of PyTorch"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run both ways to compute gradients: the CPU's, and the one for chunks in parallel."""
    if request.param == "gradients of PyTorch":
        monkeypatch.setattr(request.module.MODULE, "derives_by_hand", lambda query: False)
