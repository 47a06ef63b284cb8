"""Registers the model with transformers' Auto classes, without importing transformers before somebody else does.

``import composer`` is all that a user has to write, before or after transformers. The table of configurations gets an entry that
loads our classes when somebody asks for it: not while transformers itself is still being imported, where they could not load.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

TABLE = "transformers.models.auto.configuration_auto"
MODEL_TYPE = "composed"


class _Entries(dict[str, Any]):
    """The configurations that were registered from outside, ours among them, which is loaded when it is asked for."""

    def __contains__(self, key: object) -> bool:
        return key == MODEL_TYPE or super().__contains__(key)

    def __missing__(self, key: str) -> Any:
        if key != MODEL_TYPE:
            raise KeyError(key)
        from composer.model.classification import ComposedConfig  # enters the tables of models, too

        self[MODEL_TYPE] = ComposedConfig
        return ComposedConfig


def _enter(table: ModuleType) -> None:
    mapping = table.CONFIG_MAPPING
    if not isinstance(mapping._extra_content, _Entries):
        mapping._extra_content = _Entries(mapping._extra_content)


class _AfterLoading(importlib.abc.Loader):
    """The table's own loader, with our entry made at the end."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _enter(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds the table as usual, and gives it the loader above."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != TABLE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _AfterLoading(spec.loader)
        return spec


def register() -> None:
    """Enter the table of configurations, now or as soon as it is loaded."""
    if TABLE in sys.modules:
        _enter(sys.modules[TABLE])
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())
