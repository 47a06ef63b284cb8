"""Every experiment that is an ablation, by name."""

from __future__ import annotations

from evidence import experiments, second, stretched

ABLATIONS = experiments.EXPERIMENTS | stretched.EXPERIMENTS | second.EXPERIMENTS
