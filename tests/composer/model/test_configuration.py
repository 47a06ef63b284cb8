"""The configuration of a composed model is that of transformers' host."""

from __future__ import annotations

import pytest
from transformers import BitNetConfig, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from composer.model.configuration import host_configuration


def test_configurations_registered_by_other_packages_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-linear-attention registers a BitNet, when it is imported, in place of transformers' own."""
    monkeypatch.setitem(CONFIG_MAPPING._extra_content, "bitnet", LlamaConfig)
    assert CONFIG_MAPPING["bitnet"] is LlamaConfig
    assert host_configuration("bitnet") is BitNetConfig
