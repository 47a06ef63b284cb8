"""Registers the model with transformers' Auto classes, without importing transformers before somebody else does.

``import composer`` is all that a user has to write. Where transformers' tables are loaded already, the model enters them at once;
where they are not, it enters them at the moment that they are loaded.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def _register_configuration() -> None:
    from transformers.models.auto.configuration_auto import AutoConfig

    from composer.model.configuration import ComposedConfig

    AutoConfig.register("composed", ComposedConfig, exist_ok=True)


def _register_model() -> None:
    from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM

    from composer.model.configuration import ComposedConfig
    from composer.model.modeling import ComposedForCausalLM, ComposedModel

    AutoModel.register(ComposedConfig, ComposedModel, exist_ok=True)
    AutoModelForCausalLM.register(ComposedConfig, ComposedForCausalLM, exist_ok=True)


TABLES: dict[str, Callable[[], None]] = {
    "transformers.models.auto.configuration_auto": _register_configuration,
    "transformers.models.auto.modeling_auto": _register_model,
}


class _AfterLoading(importlib.abc.Loader):
    """A module's own loader, with one more thing done at the end."""

    def __init__(self, loader: importlib.abc.Loader, register: Callable[[], None]) -> None:
        self._loader, self._register = loader, register

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._register()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds the tables as usual, and gives them the loader above."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in TABLES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _AfterLoading(spec.loader, TABLES[fullname])
        return spec


def register() -> None:
    """Enter the Auto classes, now or as soon as they are there."""
    for table, enter in TABLES.items():
        if table in sys.modules:
            enter()
    if not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())
