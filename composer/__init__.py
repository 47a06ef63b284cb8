"""Composer: linear-attention language models made out of pretrained transformers.

    import composer

    spec = composer.load_spec("lawcat")
    model = composer.build(spec, "meta-llama/Llama-3.2-1B")
    print(composer.explain(spec, "meta-llama/Llama-3.2-1B"))

Importing it registers the models with transformers' Auto classes, and imports neither transformers nor torch.
"""

from __future__ import annotations

from composer import registration
from composer.api import build, build_folder, explain, load, load_spec

__all__ = ["build", "build_folder", "explain", "load", "load_spec"]
__version__ = "0.1.0"

registration.register()
