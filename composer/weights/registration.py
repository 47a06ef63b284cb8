"""Register the models with transformers' Auto classes and with PEFT, without importing either before the user's program does.

``import composer`` is all that a user has to write, before or after transformers. Whenever the module of ``AutoConfig`` has been
executed, on its first import or on a reload, ``AutoConfig.register`` gets a stand-in for our configuration, which imports it at its
first use. Importing it at once would import parts of transformers that are themselves half imported. Likewise the entries of a
student's host are added to PEFT's tables of the modules that an adapter changes by default.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from converters.model_types import OWN, PREFIX, is_composed_type

AUTO = "transformers.models.auto.configuration_auto"
ADAPTED = "peft.utils.constants"
"""The module of PEFT's tables, by the model types of transformers."""
LIKE_OWN = "llama"
"""The model type whose modules have the names of those of this project's own host."""


class _LazyConfiguration(type):
    """The class of stand-ins for configurations. Their attributes and instances are the configuration's, which is then imported."""

    model_type: str

    def _configuration(cls) -> Any:
        """Return the configuration itself, and register it in place of its stand-in, with its models."""
        from composer.model.classes import configuration_for
        from composer.weights.save import keep_records

        keep_records()
        configuration_class = configuration_for(cls.model_type)
        sys.modules[AUTO].AutoConfig.register(cls.model_type, configuration_class, exist_ok=True)
        return configuration_class

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # special attributes, which Python looks up on every class
            raise AttributeError(name)
        return getattr(cls._configuration(), name)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return cls._configuration()(*arguments, **options)


class _Registering(importlib.abc.Loader):
    """The module's own loader, with our models registered at the end."""

    def __init__(self, loader: importlib.abc.Loader, register_with: Callable[[ModuleType], None]) -> None:
        self._loader, self._register_with = loader, register_with

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._register_with(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Find the modules of ``REGISTERED`` by the other finders, and add the loader above to them, on every import."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in REGISTERED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader, REGISTERED[fullname])
        return spec


def register() -> None:
    """Register with transformers and PEFT if they have been imported, and whenever they will be."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name, register_with in REGISTERED.items():
        if name in sys.modules:
            register_with(sys.modules[name])


def _register_configurations(auto: ModuleType) -> None:
    for model_type in (OWN, *(f"{PREFIX}{host}" for host in auto.CONFIG_MAPPING_NAMES)):
        auto.AutoConfig.register(model_type, _LazyConfiguration("ComposedConfig", (), {"model_type": model_type}), exist_ok=True)


def _register_targets(constants: ModuleType) -> None:
    """Add a student's host to PEFT's tables of the modules that an adapter changes where its config names none."""
    for name, table in vars(constants).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and name.endswith("_MODULES_MAPPING") and isinstance(table, dict):
            table |= {f"{PREFIX}{host}": modules for host, modules in table.items() if not is_composed_type(host)}
            if LIKE_OWN in table:
                table[OWN] = table[LIKE_OWN]


REGISTERED: dict[str, Callable[[ModuleType], None]] = {AUTO: _register_configurations, ADAPTED: _register_targets}
"""Modules of other packages, and what registers the models with them."""
