"""Registers the model with transformers' Auto classes, without importing transformers before somebody else does.

``import composer`` is all that a user has to write, before or after transformers. The configuration is registered, by
transformers' own ``AutoConfig.register``, whenever the module of ``AutoConfig`` has been executed: on its first import, and on a
reload. Its models follow with the first configuration that is made.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

AUTO = "transformers.models.auto.configuration_auto"
BASE = "transformers.models.llama.configuration_llama"
"""What our configuration derives from. Its own import imports AUTO half-way, and then is what has to end first."""
OURS = "composer.model.configuration"


class _Registering(importlib.abc.Loader):
    """A module's own loader, with our configuration registered at the end."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the two modules where they are, for whoever asks and as often as they do, and gives them the loader above."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in (AUTO, BASE) else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


def register() -> None:
    """With transformers as it is loaded now, and whenever it is from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _register()


def _register() -> None:
    """Now, or, where one of the modules is still being imported, at its end: ours registers itself."""
    auto = sys.modules.get(AUTO)
    if auto is None or _unfinished(AUTO, "AutoConfig") or _unfinished(BASE, "LlamaConfig") or _unfinished(OURS, "ComposedConfig"):
        return
    from composer.model.configuration import ComposedConfig

    auto.AutoConfig.register(ComposedConfig.model_type, ComposedConfig, exist_ok=True)


def _unfinished(module: str, name: str) -> bool:
    return module in sys.modules and not hasattr(sys.modules[module], name)
