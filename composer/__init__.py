"""Composer: linear-attention language models made out of pretrained transformers.

    import composer

    print(composer.explain("lawcat", "meta-llama/Llama-3.2-1B"))
    built = composer.build_folder("lawcat", "meta-llama/Llama-3.2-1B", "mine")
    composer.distill(built.out, "texts.jsonl", "mine-distilled")
    composer.evaluate(["meta-llama/Llama-3.2-1B", "mine-distilled"], "passkey", "512,4k")

What ``compose`` does, each function does: ``dir(composer)`` lists them. They print nothing; what they return shows itself, as text
and in notebooks. A user's mistake raises ``ComposerError``. Importing it registers the models with transformers' Auto classes, and
imports neither transformers nor torch.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from composer import registration

if TYPE_CHECKING:
    from composer.api import build, build_folder, explain, load, load_spec
    from composer.commands.ablation import ablate
    from composer.commands.bench import bench
    from composer.commands.chatting import chat
    from composer.commands.drawing import draw
    from composer.commands.evaluation import evaluate
    from composer.commands.exporting import export
    from composer.commands.inspecting import inspect
    from composer.commands.locking import lock
    from composer.commands.logits import logits
    from composer.commands.parts import parts
    from composer.commands.publishing import push
    from composer.commands.reading import read
    from composer.commands.selection import select
    from composer.commands.serving import serve
    from composer.commands.specs import check, code, diff, show
    from composer.commands.starting import new, schema
    from composer.commands.tasks import known_tasks
    from composer.commands.texts import generate, sample
    from composer.commands.training import distill, merge, train
    from composer.commands.verifying import verify
    from composer.commands.viewing import view
    from composer.errors import ComposerError
    from composer.spec.loading import expand
    from composer.spec.shipped import shipped_specs

__all__ = [
    "ComposerError",
    "ablate",
    "bench",
    "build",
    "build_folder",
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
    "lock",
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

_ROOMS = {
    "errors": ["ComposerError"],
    "api": ["build", "build_folder", "explain", "load", "load_spec"],
    "commands.ablation": ["ablate"],
    "commands.bench": ["bench"],
    "commands.chatting": ["chat"],
    "commands.drawing": ["draw"],
    "commands.evaluation": ["evaluate"],
    "commands.exporting": ["export"],
    "commands.inspecting": ["inspect"],
    "commands.locking": ["lock"],
    "commands.logits": ["logits"],
    "commands.parts": ["parts"],
    "commands.publishing": ["push"],
    "commands.reading": ["read"],
    "commands.selection": ["select"],
    "commands.serving": ["serve"],
    "commands.specs": ["check", "code", "diff", "show"],
    "commands.starting": ["new", "schema"],
    "commands.tasks": ["known_tasks"],
    "commands.texts": ["generate", "sample"],
    "commands.training": ["distill", "merge", "train"],
    "commands.verifying": ["verify"],
    "commands.viewing": ["view"],
    "spec.loading": ["expand"],
    "spec.shipped": ["shipped_specs"],
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
_AS_COMMANDS = {"eval": "evaluate"}
"""Names of commands that differ from those of their functions."""

registration.register()


def __getattr__(name: str) -> Any:
    # The functions are imported at their first use, so that the command line can handle Ctrl-C from the start.
    own = _AS_COMMANDS.get(name, name)
    if own not in _ROOM_OF:
        raise AttributeError(f"module 'composer' has no attribute {name!r}")
    attribute = getattr(import_module(f"composer.{_ROOM_OF[own]}"), own)
    return _checked(own) if callable(attribute) and not isinstance(attribute, type) else attribute


@cache
def _checked(name: str) -> Any:
    """Return the public function, which refuses arguments of other types in words."""
    from composer.arguments import checked

    return checked(getattr(import_module(f"composer.{_ROOM_OF[name]}"), name))


def __dir__() -> list[str]:
    return __all__
