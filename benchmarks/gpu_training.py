"""Table 4: training of students of Llama-3.2-1B's shapes, beside the teacher's forward pass and LoRA of the teacher by PEFT.

Random weights in float32, products in bfloat16 by autocast, as ``compose distill --bfloat16`` trains; rows of 2,048 tokens. A step
of training has its gradients and the optimiser.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch

from benchmarks.conversion import RATE, SPECS, Contestants, draw_rows
from benchmarks.gpu_models import build_teacher
from benchmarks.gpu_rows import Bench, Row, Run
from composer.spec.recipe import Lora

LENGTH, TOKENS = 2048, 8192
PEFT = "lora teacher (PEFT)"


def list_rows(bench: Bench) -> dict[str, Callable[[], Row]]:
    """Return the measurements by the names of their rows, the most important first."""
    training = Training(bench)
    names = ["forward", *(f"transfer {spec}" for spec in SPECS), PEFT, *(f"lora {spec}" for spec in SPECS), "lora softmax"]
    return {name: partial(training.measure, name) for name in names}


class Training:
    """The runs, which share the weights of one model."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.length, self.tokens = (16, 16) if bench.tiny else (LENGTH, LENGTH if bench.warm else TOKENS)

    @cached_property
    def runs(self) -> dict[str, Run]:
        source = build_teacher(self.bench, torch.float32, few=1).requires_grad_(False)
        rows = draw_rows(source.config.vocab_size, self.length, self.tokens)
        batch = next(iter(rows.in_order(self.tokens // self.length))).to(self.bench.device)
        contestants = Contestants(source, SPECS, autocast=not self.bench.tiny)
        return contestants.build_runs(batch) | {PEFT: self._build_lora(source, batch)}

    def _build_lora(self, source: Any, batch: Any) -> Run:
        """Return a training step of the teacher with PEFT's adapters, with the optimiser of transformers' Trainer."""
        from peft import LoraConfig, get_peft_model

        lora = Lora()
        shared = {id(tensor): tensor for tensor in (*source.parameters(), *source.buffers())}
        targets = [f"{name}_proj" for name in lora.targets]
        config = LoraConfig(r=lora.rank, lora_alpha=int(lora.alpha), target_modules=targets, task_type="CAUSAL_LM")
        model = get_peft_model(copy.deepcopy(source, shared), config).train()
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(learned, lr=RATE)

        def step() -> None:
            with torch.autocast(source.device.type, dtype=torch.bfloat16, enabled=not self.bench.tiny):
                loss = model(input_ids=batch.ids, labels=batch.ids, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learned, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    def measure(self, name: str) -> Row:
        """Time a run, and measure the peak of its memory beside all weights."""
        run, before = self.runs[name], 0
        if not self.bench.tiny:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        figures: Row = {"tokens": self.tokens, "length": self.length} | self.bench.time_in_turn({"seconds": run}, wall=True)
        return figures if self.bench.tiny else figures | {"peak_bytes": torch.cuda.max_memory_allocated() - before}
