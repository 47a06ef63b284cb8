"""Composer: linear-attention language models made out of pretrained transformers.

    import composer

    print(composer.explain("lawcat", "meta-llama/Llama-3.2-1B"))
    built = composer.build_folder("lawcat", "meta-llama/Llama-3.2-1B", "mine")
    composer.distill(built.out, "texts.jsonl", "mine-distilled")
    composer.evaluate(["meta-llama/Llama-3.2-1B", "mine-distilled"], "passkey", "512,4k")

There is a function for each command: ``dir(composer)`` lists them. They print nothing; what they return shows itself, as text
and in notebooks. A user's mistake raises ``ComposerError``. Importing ``composer`` registers the models with transformers' Auto
classes, and imports neither transformers nor torch.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from composer.weights import registration

if TYPE_CHECKING:
    from composer.building.build import load
    from composer.commands.ablate import ablate
    from composer.commands.bench import bench
    from composer.commands.build import build, build_folder
    from composer.commands.chat import chat
    from composer.commands.check import check
    from composer.commands.diff import diff
    from composer.commands.distill import calibrate, distill, merge, train
    from composer.commands.draw import draw
    from composer.commands.eval import evaluate
    from composer.commands.explain import explain
    from composer.commands.export import export
    from composer.commands.generate import generate
    from composer.commands.inspect import inspect
    from composer.commands.logits import logits
    from composer.commands.new import new, schema
    from composer.commands.parts import parts
    from composer.commands.push import push
    from composer.commands.read import read
    from composer.commands.sample import sample
    from composer.commands.select import select
    from composer.commands.serve import serve
    from composer.commands.show import code, show
    from composer.commands.tasks import known_tasks
    from composer.commands.verify import verify
    from composer.commands.view import view
    from composer.errors import ComposerError
    from composer.spec.loading import expand, load_spec
    from composer.spec.shipped import shipped_specs

__all__ = [
    "ComposerError",
    "ablate",
    "bench",
    "build",
    "build_folder",
    "calibrate",
    "chat",
    "check",
    "code",
    "diff",
    "distill",
    "draw",
    "evaluate",
    "expand",
    "explain",
    "export",
    "generate",
    "inspect",
    "known_tasks",
    "load",
    "load_spec",
    "logits",
    "merge",
    "new",
    "parts",
    "push",
    "read",
    "sample",
    "schema",
    "select",
    "serve",
    "shipped_specs",
    "show",
    "train",
    "verify",
    "view",
]
__version__ = "0.1.0"

_ELSEWHERE = {
    "ComposerError": "errors",
    "build_folder": "commands.build",
    "calibrate": "commands.distill",
    "code": "commands.show",
    "evaluate": "commands.eval",
    "expand": "spec.loading",
    "known_tasks": "commands.tasks",
    "load": "building.build",
    "load_spec": "spec.loading",
    "merge": "commands.distill",
    "schema": "commands.new",
    "shipped_specs": "spec.shipped",
    "train": "commands.distill",
}
"""The modules of all names that are not in a module of `composer.commands` of their own name."""
_AS_COMMANDS = {"eval": "evaluate"}
"""Names of commands that differ from those of their functions."""

registration.register()


def __getattr__(name: str) -> Any:
    # The functions are imported at their first use, so that the command line can handle Ctrl-C from the start.
    public_name = _AS_COMMANDS.get(name, name)
    if public_name not in __all__:
        raise AttributeError(f"module 'composer' has no attribute {name!r}")
    attribute = _import(public_name)
    return _check_arguments_of(public_name) if callable(attribute) and not isinstance(attribute, type) else attribute


def _import(name: str) -> Any:
    return getattr(import_module(f"composer.{_ELSEWHERE.get(name, f'commands.{name}')}"), name)


@cache
def _check_arguments_of(name: str) -> Any:
    """Return the public function, which refuses arguments of other types in words."""
    from composer.options.arguments import check_arguments

    return check_arguments(_import(name))


def __dir__() -> list[str]:
    return __all__
