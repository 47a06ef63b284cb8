"""A source's softmax attention over compressed pairs: divergence and needles by size of the cache and start.

    python -m benchmarks.compressed SOURCE TEXTS.txt BOOK.txt [--only NAMES] [--samples 4] [--out FOLDER]

A student of `compressed` starts from the source's states in 4 rows of 512 tokens of TEXTS (*calibrated*), or from principal
components of keys and values, scaled to one norm: of the same states (*states*), or of the source's projections (*weights*).
With *ranks*, states start it too, and layers have different ranks: those components are kept that have the largest share of their
layer's energy, over the root of the share that the layer loses at equal ranks.
KL(source to student) is a mean over two rows of 512 tokens of BOOK. Needles are of the four tasks of docs/smollm2.md, so many
samples of 512 tokens each. Writes benchmarks/results/compressed.json; a new run adds only missing results.
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer

import composer
from benchmarks.harness import RESULTS, describe_machine, read_book, write
from blocks.calibration import States
from blocks.legend import Shape
from blocks.memories.compressed import Compressed
from composer.data.loading import load_rows
from composer.data.packing import PackedRows
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Transfer
from composer.training.calibration import begin_transfer
from composer.training.rows import tokenizer_of
from composer.training.teacher import open_language_model
from composer.weights.load import load_model

TOKENS, ROWS = 512, 2
STAGE = Transfer(lr=1e-3, steps=1, batch=4, start="calibrated")
"""4 rows of calibration."""
TASKS = ("passkey", "niah-single-2", "niah-single-3", "niah-multikey-1")
SIZES = {"1/2": 0.5, "1/4": 0.25, "1/8": 0.125}
CASES: dict[str, dict[str, Any]] = {
    f"{size} {start}": {"size": size, "start": start, "memory": {"rank": rank}}
    for size, rank in SIZES.items()
    for start in ("calibrated", "states", "weights")
}
CASES |= {
    "1/2 kept": {"size": "1/2", "start": "calibrated", "memory": {"rank": 144, "rope": 16, "rotate": "kept"}},
    "1/4 ranks": {"size": "1/4", "start": "ranks", "memory": {"rank": 0.25}},
}
"""The students. The ranks of the last are those of SmolLM2-135M, of which a token has 384 numbers."""


def find_components(value: Tensor, key: Tensor, rank: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return the projections to the first principal components of values and keys, n M each, scaled to one norm, and the share of
    each component in their energy."""
    value, key = value.double(), key.double()
    scale = torch.cat((torch.ones(value.shape[1]), torch.full((key.shape[1],), float(value.norm() / key.norm())))).double()
    joined = torch.cat((value, key), dim=1) * scale
    energies, vectors = torch.linalg.eigh(joined.T @ joined)
    basis = vectors[:, -rank:]
    return {"down": (basis * scale[:, None]).T, "up": basis / scale[:, None]}, energies.flip(0) / energies.sum()


def write_ranks(folder: Path, shares: Tensor, rank: int) -> Path:
    """Write a spec in which layers have ranks by the shares of their components, L n, in steps of 8, with about this mean."""
    wins = shares / shares[:, rank:].sum(1, keepdim=True).sqrt()
    layers = wins.flatten().topk(rank * len(shares)).indices // shares.shape[1]
    ranks = (torch.bincount(layers, minlength=len(shares)) / 8).round().clamp(min=1).int().mul(8).tolist()
    heads = {f"rank_{rank}": {"memory": [{"kind": "compressed", "rank": rank}]} for rank in sorted(set(ranks))}
    rules = [{"at": layer, "use": f"rank_{rank}"} for layer, rank in enumerate(ranks)]
    folder.mkdir(parents=True, exist_ok=True)
    spec = folder / "ranks.yaml"
    spec.write_text(json.dumps({"compose": 1, "name": "ranks", "heads": heads, "layers": rules}), encoding="utf-8")
    return spec


def start(student: ComposedForCausalLM, teacher: ComposedForCausalLM, way: str, rows: PackedRows) -> list[Tensor]:
    """Set the parameters of the memories. Return the shares of the components of each layer that starts at them."""
    energies = list[Tensor]()
    if way == "weights":
        for index, layer in enumerate(student.model.layers):
            value, key = ((getattr(layer.self_attn, f"{name}_proj").weight * layer.input_layernorm.weight).T for name in ("v", "k"))
            place = f"model.layers.{index}.self_attn.composed.head.compressed"
            rank = student.get_parameter(f"{place}.down").shape[0]
            parameters, shares = find_components(value, key, rank)
            energies.append(shares)
            for name, values in parameters.items():
                student.get_parameter(f"{place}.{name}").copy_(values)
        return energies

    def begin(memory: Compressed, states: States, shape: Shape) -> dict[str, Tensor]:
        rank = memory.parameters(shape)["down"].shape[0]
        parameters, shares = find_components(states.value.flatten(1), states.key.flatten(1), rank)
        energies.append(shares)
        return parameters

    with nullcontext() if way == "calibrated" else patch.object(Compressed, "begin", begin):
        begin_transfer(student, teacher, STAGE, rows, 0, {name for name, _ in student.named_parameters() if ".composed." in name})
    return energies


def build(name: str, options: argparse.Namespace, teacher: ComposedForCausalLM) -> Path:
    """Return the folder of a student."""
    case, folder = CASES[name], options.out / name.replace("/", "-").replace(" ", "-")
    overrides = [f"head.memory.0.{field}={value}" for field, value in case["memory"].items()]
    if (folder / "started").is_dir():
        return folder / "started"

    def build_started(spec: str | Path, overrides: list[str]) -> tuple[ComposedForCausalLM, list[Tensor]]:
        composer.build_folder(spec, options.source, folder / "built", overrides=overrides, dtype="float32", force=True)
        student: Any = load_model(folder / "built", "float32", "cpu")
        rows = load_rows(
            [str(options.texts)], tokenizer_of(folder / "built"), TOKENS,
            split="train", how="packed", vocabulary=10**9, longest=TOKENS, share=0.0,
        )  # fmt: skip
        with torch.no_grad():
            return student, start(student, teacher, case["start"], rows)

    student, energies = build_started("compressed", overrides)
    if case["start"] == "ranks":
        rank = student.get_parameter("model.layers.0.self_attn.composed.head.compressed.down").shape[0]
        student, _ = build_started(write_ranks(folder, torch.stack(energies), rank), [])
    student.save_pretrained(folder / "started")
    AutoTokenizer.from_pretrained(options.source).save_pretrained(folder / "started")
    return folder / "started"


@torch.no_grad()
def measure_divergence(student: Path, teacher: ComposedForCausalLM, text: Tensor) -> float:
    """Return the mean KL(source ‖ student) a token."""
    model: Any = load_model(student, "float32", "cpu")
    own, wanted = (of.eval()(input_ids=text, use_cache=False).logits.log_softmax(-1) for of in (model, teacher))
    return float(functional.kl_div(own, wanted, reduction="none", log_target=True).sum(-1).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("texts", type=Path)
    parser.add_argument("book", type=Path)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("build-output/compressed"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = RESULTS / "compressed.json"
    teacher = open_language_model(options.source).load("cpu")
    text = read_book(options.source, options.book, ROWS, TOKENS)
    for name in options.only.split(","):
        results = json.loads(file.read_text(encoding="utf-8"))["results"] if file.is_file() else {}
        if name not in results:
            folder = build(name, options, teacher)
            result = {"divergence": measure_divergence(folder, teacher, text)}
            if CASES[name]["start"] == "calibrated" and options.samples:
                report = composer.evaluate(
                    [folder], TASKS, [TOKENS], samples=options.samples, haystack=str(options.book), dtype="float32"
                )
                result["needles"] = round(sum(options.samples * (cell.mean or 0) for cell in report.cells))
            results = json.loads(file.read_text(encoding="utf-8"))["results"] if file.is_file() else {}
            write("compressed", {"about": describe_machine("cpu"), "results": results | {name: result}})
            print(name, result, flush=True)
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    table = Table("", "KL", "needles of 16")
    for name, result in results.items():
        table.add_row(name, f"{result['divergence']:.3f}", str(result.get("needles", "")))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
