"""Liger's students of Llama (arXiv:2503.01496): Llama's names and keys, and no further tensors. A spec describes their heads."""

from __future__ import annotations

from dataclasses import replace

from converters.llama import LLAMA

LIGER = replace(LLAMA, model_type="liger_gla", title="Liger-GLA, for published/liger-gla")
