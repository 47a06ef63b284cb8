"""How near to its teacher a student starts, and how many tokens of attention transfer that saves.

    python -m benchmarks.start SMOLLM2 TEXT.txt [--students lolcats,gated-delta] [--starts parts,solved] [--steps 8,32,128]

SMOLLM2 is a folder of SmolLM2-135M-Instruct, TEXT.txt a long text. Starts see 4,096 tokens of it, in rows of 512. Steps of
attention transfer have 2,048 tokens. Writes to benchmarks/results/start.json: KL(teacher ‖ student) in nats a token over 4
rows of 512 tokens from the end of the text, the student's loss there, and the processor time. A new run adds what is missing.
``kept-SPEC`` keeps softmax attention in the 18 of 90 key heads that retrieve, and has SPEC's heads elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import composer
from composer.training.rows import tokenizer_of
from composer.training.teacher import open_language_model
from evidence.smollm2.choices import build_rules, rank_heads, read_gates
from evidence.smollm2.plan import HERE

RESULTS = Path(__file__).resolve().parent / "results" / "start.json"
LENGTH, ROWS, HELD_OUT, BATCH, KEPT = 512, 8, 4, 4, 18
STARTS = ("parts", "scaled", "calibrated", "solved")
STAGE = {"lr": 1e-2, "mse": 1000, "batch": BATCH, "schedule": "cosine", "final": 0.05}
"""The transfer, but for its steps and its start."""


def split_text(text: str, folder: Path, teacher: str) -> tuple[Path, Path, torch.Tensor]:
    """Write the text of starts and the text of steps. Return both files, and held-out rows of tokens."""
    tokenizer = tokenizer_of(Path(teacher))
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    start, steps = folder / "start.txt", folder / "steps.txt"
    start.write_text(str(tokenizer.decode(ids[: (ROWS + 1) * LENGTH])), encoding="utf-8")
    steps.write_text(str(tokenizer.decode(ids[: -(HELD_OUT + 4) * LENGTH])), encoding="utf-8")
    return start, steps, ids[-HELD_OUT * LENGTH :].view(HELD_OUT, LENGTH)


@torch.no_grad()
def compare(model: Any, rows: torch.Tensor, wanted: torch.Tensor) -> dict[str, float]:
    """Return the divergence from the teacher's log-probabilities, and the loss of the next token."""
    found = torch.cat([model(row[None], use_cache=False).logits.float().log_softmax(-1) for row in rows])
    divergence = (wanted.exp() * (wanted - found)).sum(-1)
    loss = -found[:, :-1].gather(-1, rows[:, 1:, None])
    return {"kl": float(divergence.mean()), "kl_first_64": float(divergence[:, :64].mean()), "nats": float(loss.mean())}


def build_student(student: str, teacher: str, out: Path) -> None:
    """Build a student by the name of its spec, with kept key heads where the name begins with ``kept-``."""
    spec, overrides = student.removeprefix("kept-"), ["recipe=null"]
    if student.startswith("kept-"):
        gates = read_gates(HERE / "gates" / "all.json")
        heads = sorted(rank_heads(list(gates), list(gates.values()))[:KEPT])
        overrides.append(f"layers={json.dumps(build_rules(spec, [], teacher, heads))}")
    composer.build_folder(spec, teacher, out, overrides=overrides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("text", type=Path)
    parser.add_argument("--students", default="lolcats,gated-delta,lawcat,kept-streaming,kept-lolcats,kept-gated-delta")
    parser.add_argument("--starts", default=",".join(STARTS))
    parser.add_argument("--steps", default="", help="Steps of transfer after each start, beside none.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        written = arguments.text.read_text(encoding="utf-8")
        digest = hashlib.sha256(written.encode()).hexdigest()
        if results.setdefault("text", digest) != digest:
            parser.error(f"{arguments.out} has results of another text; choose another --out")
        start, text, rows = split_text(written, work, arguments.teacher)
        with torch.no_grad():
            teacher = open_language_model(arguments.teacher, None, "float32").load("cpu")
            wanted = torch.cat([teacher(row[None], use_cache=False).logits.log_softmax(-1) for row in rows])
        results["teacher"] = compare(teacher, rows, wanted)
        del teacher
        for student in arguments.students.split(","):
            build_student(student, arguments.teacher, work / student)
            for name in arguments.starts.split(","):
                for steps in [0, *(int(count) for count in arguments.steps.split(",") if count)]:
                    key = f"{student} {name} {steps}"
                    if key in results:
                        continue
                    out, began = work / f"{student}-{name}-{steps}", time.process_time()
                    recipe = [f"recipe={json.dumps({'sequence': LENGTH, 'rows': 'joined'})}"]
                    if steps:
                        stage = STAGE | {"steps": steps, "warmup": max(1, steps // 10), "start": name}
                        overrides = [*recipe, f"recipe.transfer={json.dumps(stage)}"]
                        composer.distill(work / student, str(text), out, stage="transfer", overrides=overrides, share=0.0)
                    elif name != "parts":
                        overrides = [*recipe, f"recipe.transfer={json.dumps({'lr': 1.0, 'steps': 1, 'start': name})}"]
                        composer.calibrate(work / student, str(start), out, overrides=overrides, share=0.0)
                    seconds = time.process_time() - began
                    model = composer.load(out if out.exists() else work / student, dtype="float32")
                    results[key] = compare(model, rows, wanted) | {"seconds": seconds, "tokens": steps * BATCH * LENGTH}
                    print(key, {name: round(value, 3) for name, value in results[key].items()}, flush=True)
                    arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
