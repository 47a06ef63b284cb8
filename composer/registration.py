"""Registers the model with transformers' Auto classes, without importing transformers before somebody else does.

``import composer`` is all that a user has to write, before or after transformers. Whenever the module of ``AutoConfig`` has been
executed, on its first import or on a reload, ``AutoConfig.register`` is told of our configuration: of a name for it that loads ours
when it is used. To load it at once would import parts of transformers that then are half-way themselves.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from converters.model_types import OWN, PREFIX

AUTO = "transformers.models.auto.configuration_auto"


class _Asked(type):
    """A configuration's name: what is made of it, or asked of it, is the configuration's."""

    model_type: str

    def _configuration(cls) -> Any:
        """The configuration itself, registered in its name's place; its models come with it."""
        from composer.model.classes import configuration_for
        from composer.weights.saved import keep_records

        keep_records()
        own = configuration_for(cls.model_type)
        sys.modules[AUTO].AutoConfig.register(cls.model_type, own, exist_ok=True)
        return own

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions, which are asked of every class
            raise AttributeError(name)
        return getattr(cls._configuration(), name)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return cls._configuration()(*arguments, **options)


class _Registering(importlib.abc.Loader):
    """The module's own loader, with our configuration registered at the end."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register_with(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module where it is, for whoever asks and as often as they do, and gives it the loader above."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == AUTO else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


def register() -> None:
    """With transformers as it is loaded now, and whenever it is from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if AUTO in sys.modules:
        _register_with(sys.modules[AUTO])


def _register_with(auto: ModuleType) -> None:
    for model_type in (OWN, *(f"{PREFIX}{host}" for host in auto.CONFIG_MAPPING_NAMES)):
        auto.AutoConfig.register(model_type, _Asked("ComposedConfig", (), {"model_type": model_type}), exist_ok=True)
