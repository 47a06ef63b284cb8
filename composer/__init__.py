"""Composer: linear-attention language models made out of pretrained transformers.

    import composer

    spec = composer.load_spec("lawcat")
    model = composer.build(spec, "meta-llama/Llama-3.2-1B")
    print(composer.explain(spec, "meta-llama/Llama-3.2-1B"))

Importing it registers the models with transformers' Auto classes, and imports neither transformers nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer import registration

if TYPE_CHECKING:
    from composer.api import build, build_folder, draw, explain, load, load_spec

__all__ = ["build", "build_folder", "draw", "explain", "load", "load_spec"]
__version__ = "0.1.0"

registration.register()


def __getattr__(name: str) -> Any:
    # The functions come at their first use, so that the command line can answer Ctrl-C from its first moment.
    if name not in __all__:
        raise AttributeError(f"module 'composer' has no attribute {name!r}")
    from composer import api

    return getattr(api, name)
