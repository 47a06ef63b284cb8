"""Taylor-Calibrate (arXiv:2606.16429) beside this project's start, on heads of Gated DeltaNet and on equal tokens.

    python -m benchmarks.taylor_calibrate SMOLLM2 TEXT.txt [--steps 100]

The student is `gated-deltanet` in all layers of SmolLM2-135M-Instruct. Both methods see 4 rows of 256 tokens. A step of alignment
sees all of them, compares each layer's output with the teacher's, and has the paper's rate, weight decay and clipping. The paper's
phase 1 sets, for each head, a half-life equal to the mean distance of the teacher's attention, a rate that follows its entropy, and
an output gate that starts nearly closed, W_g = α W_v. Here the rate has a bias, so it has the wanted value exactly. Left out are
the scale of the value projection, which the norm behind the heads removes, and the rate of 1e-4 for the source's own projections,
which stay frozen. Writes benchmarks/results/taylor_calibrate.json; scores are those of benchmarks/start.py.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import composer
from benchmarks.start import HELD_OUT, LENGTH, compare
from composer.training.rows import tokenizer_of
from composer.training.teacher import open_language_model

RESULTS = Path(__file__).resolve().parent / "results" / "taylor_calibrate.json"
ROWS, TOKENS = 4, 256
DAMPING = 0.01
"""The share of the teacher's size with which the output gate starts."""
SHORTEST, SLOWEST, FASTEST = 0.5, 1e-3, 5.0
"""The smallest mean distance in tokens, and the range of decays."""
STAGE = {"lr": 1e-3, "batch": ROWS, "weight_decay": 0.01, "clip": 1.0, "at": "output"}


@torch.no_grad()
def first_phase(teacher: Any, rows: Tensor) -> dict[str, Tensor]:
    """Return the values of phase 1 by the names of their parameters in a student."""
    heads = teacher.config.num_attention_heads
    groups = heads // teacher.config.num_key_value_heads
    inputs: dict[int, Tensor] = {}
    handles = [
        layer.self_attn.register_forward_pre_hook(
            lambda _, arguments, options, index=index: inputs.update({index: options["hidden_states"]}), with_kwargs=True
        )
        for index, layer in enumerate(teacher.model.layers)
    ]
    attentions = teacher(rows, output_attentions=True, use_cache=False).attentions
    for handle in handles:
        handle.remove()
    position = torch.arange(rows.shape[1])
    apart = (position[:, None] - position).abs().float().clamp(min=SHORTEST)
    values: dict[str, Tensor] = {}
    for index, weights in enumerate(attentions):
        distance = (weights * apart).sum(-1).mean((0, 2)).clamp(min=SHORTEST)
        entropy = -(weights * weights.clamp(min=1e-10).log()).sum(-1).mean((0, 2))
        decay = (math.log(2) / distance).clamp(SLOWEST, FASTEST)
        focus = 1 - (entropy - entropy.min()) / (entropy.max() - entropy.min()).clamp(min=1e-3)
        weight = teacher.model.layers[index].self_attn.v_proj.weight.unflatten(0, (-1, teacher.config.head_dim))
        weight = weight.repeat_interleave(groups, 0)
        value = torch.einsum("btc,hvc->bhtv", inputs[index], weight)
        context = weights @ value
        alpha = DAMPING * context.square().mean().sqrt() / torch.nn.functional.silu(value).square().mean().sqrt()
        prefix = f"model.layers.{index}.self_attn.composed.head"
        values |= {
            f"{prefix}.delta_gate.rate": torch.zeros(heads),
            f"{prefix}.delta_gate.bias": decay + torch.log(-torch.expm1(-decay)),
            f"{prefix}.delta_rate.weight": torch.zeros(heads, teacher.config.hidden_size),
            f"{prefix}.delta_rate.bias": torch.logit(0.3 + 0.4 * focus),
            f"{prefix}.output_norm.gate": alpha * weight.flatten(0, 1),
            f"{prefix}.output_norm.gate_bias": torch.zeros(heads * teacher.config.head_dim),
        }
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    tokenizer = tokenizer_of(Path(arguments.teacher))
    ids = tokenizer(arguments.text.read_text(encoding="utf-8"), return_tensors="pt").input_ids[0]
    held_out = ids[-HELD_OUT * LENGTH :].view(HELD_OUT, LENGTH)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        text, built, phase = work / "text.txt", work / "built", work / "phase-1"
        text.write_text(str(tokenizer.decode(ids[: (ROWS + 1) * TOKENS])), encoding="utf-8")
        with torch.no_grad():
            model = open_language_model(arguments.teacher, None, "float32").load("cpu")
            wanted = torch.cat([model(row[None], use_cache=False).logits.log_softmax(-1) for row in held_out])
        for folder in (built, phase):
            composer.build_folder("gated-deltanet", arguments.teacher, folder, overrides=["recipe=null"], dtype="float32")
        teacher = AutoModelForCausalLM.from_pretrained(arguments.teacher, dtype=torch.float32, attn_implementation="eager")
        file = phase / "fresh.safetensors"
        fresh = load_file(file)
        found = first_phase(teacher, ids[: ROWS * TOKENS].view(ROWS, TOKENS))
        assert found.keys() <= fresh.keys(), sorted(found.keys() - fresh.keys())
        save_file(
            {name: found.get(name, tensor).to(tensor.dtype).contiguous() for name, tensor in fresh.items()}, file, {"format": "pt"}
        )
        del teacher, model

        def score(name: str, folder: Path, seconds: float) -> None:
            student = composer.load(folder, dtype="float32")
            results[name] = compare(student, held_out, wanted) | {"seconds": seconds}
            print(name, {key: round(value, 3) for key, value in results[name].items()}, flush=True)
            arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

        recipe = [f"recipe={json.dumps({'sequence': TOKENS, 'rows': 'joined'})}"]
        for name, folder, start in (
            ("parts", built, "parts"),
            ("phase 1", phase, "parts"),
            ("phase 1, projections solved", phase, "solved"),
            ("calibrated, projections solved", built, "solved"),
        ):
            for steps in (0, arguments.steps):
                key = f"{name}, {steps} steps"
                if key in results:
                    continue
                out, began = work / "out", time.process_time()
                stage = json.dumps(STAGE | {"steps": max(1, steps), "start": start})
                if steps:
                    overrides = [*recipe, f"recipe.transfer={stage}"]
                    composer.distill(folder, str(text), out, stage="transfer", overrides=overrides, share=0.0, force=True)
                elif start == "solved":
                    overrides = [*recipe, f"recipe.transfer={stage}"]
                    composer.calibrate(folder, str(text), out, overrides=overrides, share=0.0, force=True)
                score(key, out if steps or start == "solved" else folder, time.process_time() - began)


if __name__ == "__main__":
    main()
