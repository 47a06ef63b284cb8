"""Time, written bytes and memory of a build at the shapes of other families than Llama.

    python benchmarks/build_hosts.py --cache /some/large/disk

makes random checkpoints (bfloat16, files of at most 1 GB) with the configs of Qwen3-0.6B, of Gemma-3-1B and of two layers of
Mixtral-8x7B with four experts in the cache folder, once, and the headers of Qwen3-8B without weights (sparse files). Every build is
a separate process. Seconds are counted after its imports, which include transformers' module of the family; the seconds of the
imports are a separate figure. Results go to ``benchmarks/results/build_hosts.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.build_1b import LARGEST_SHARD, build_once

RESULTS = Path(__file__).resolve().parent / "results" / "build_hosts.json"
QWEN3: dict[str, Any] = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-0.6B": (
        "qwen3",
        QWEN3
        | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
        | {"tie_word_embeddings": True},
    ),
    "Gemma-3-1B": (
        "gemma3_text",
        {"vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4}
        | {"num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 512},
    ),
    "Mixtral-8x7B, 2 layers of 4 experts": (
        "mixtral",
        {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "num_local_experts": 4},
    ),
}
HOLLOW = "Qwen3-8B, headers alone"
HOLLOW_CONFIG = QWEN3 | {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
}
SPECS = ("lawcat", "lolcats")


def make_checkpoint(folder: Path, family: str, sizes: dict[str, Any]) -> None:
    """Save a random model with transformers, if its folder does not exist yet."""
    if folder.exists():
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder.with_name("unfinished"), max_shard_size="1GB")
    folder.with_name("unfinished").rename(folder)


def make_hollow(folder: Path, family: str, sizes: dict[str, Any]) -> None:
    """Write files with the headers of such a model, and holes in place of its weights."""
    if folder.exists():
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **sizes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shards: list[dict[str, Any]] = [{}]
    ends = [0]
    for name, tensor in model.state_dict().items():
        if ends[-1] and ends[-1] + 2 * tensor.numel() > LARGEST_SHARD:
            shards.append({})
            ends.append(0)
        begin, ends[-1] = ends[-1], ends[-1] + 2 * tensor.numel()
        shards[-1][name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, ends[-1]]}
    partial = folder.with_name("unfinished")
    partial.mkdir(parents=True)
    weight_map = {}
    for number, (shard, end) in enumerate(zip(shards, ends, strict=True), 1):
        file = partial / f"model-{number:05}-of-{len(shards):05}.safetensors"
        header = json.dumps(shard).encode()
        header += b" " * (-len(header) % 8)
        file.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(file, 8 + len(header) + end)
        weight_map |= dict.fromkeys(shard, file.name)
    (partial / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config.architectures, config.dtype = [type(model).__name__], torch.bfloat16
    config.save_pretrained(partial)
    partial.rename(folder)


def make_all(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(cache / "unfinished", ignore_errors=True)
    for name, (family, sizes) in SHAPES.items():
        make_checkpoint(cache / name.partition(",")[0], family, sizes)
    make_hollow(cache / HOLLOW.partition(",")[0], "qwen3", HOLLOW_CONFIG)


def build_alone(spec: str, source: Path, out: Path) -> dict[str, Any]:
    """Run one build in this process, after its imports."""
    began = time.perf_counter()
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    import composer.model.classes  # noqa: F401

    assert type(AutoConfig.from_pretrained(source)) in MODEL_FOR_CAUSAL_LM_MAPPING
    MODEL_FOR_CAUSAL_LM_MAPPING[type(AutoConfig.from_pretrained(source))]
    imports = time.perf_counter() - began
    return {**build_once(spec, source, out, copy=False), "seconds_of_imports": imports}


def run_child(*arguments: str) -> dict[str, Any]:
    """Return the output of a process of this script. The peak of a child begins with its parent's, so the parent stays small."""
    completed = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    return json.loads(completed.stdout.splitlines()[-1])


def measure(cache: Path, runs: int) -> dict[str, Any]:
    subprocess.run([sys.executable, __file__, "--make", "--cache", str(cache)], check=True)
    figures = {}
    for name in (*SHAPES, HOLLOW):
        source, out = cache / name.partition(",")[0], cache / "out"
        shutil.rmtree(out, ignore_errors=True)
        figures[name] = {
            "source_bytes": sum(path.stat().st_size for path in source.glob("*.safetensors")),
            "source_files": len(list(source.glob("*.safetensors"))),
            "builds": {spec: [] for spec in SPECS},
        }
        for spec, builds in figures[name]["builds"].items():
            for _ in range(runs):
                builds.append(run_child("--child", spec, str(source), str(out)))
                shutil.rmtree(out)
    return {"cores": os.cpu_count(), "python": platform.python_version(), "runs": runs, "models": figures}


def format_table(result: dict[str, Any]) -> str:
    lines = ["| | spec | GB in files | median s | written MB | of them fresh MB | peak RSS MB |", "|---|---|---|---|---|---|---|"]
    for name, model in result["models"].items():
        for spec, builds in model["builds"].items():
            seconds = statistics.median(build["seconds"] for build in builds)
            size = f"{model['source_bytes'] / 1e9:.2f} in {model['source_files']}"
            first = builds[0]
            written = f"{first['bytes_on_disk'] / 1e6:.1f} | {first['fresh_bytes'] / 1e6:.1f}"
            lines.append(
                f"| {name} | {spec} | {size} | {seconds:.2f} | {written} | {max(b['peak_rss'] for b in builds) / 1e6:.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "build_hosts", help="a folder with 8 GB of room"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--make", action="store_true", help="make the checkpoints, and no more")
    parser.add_argument("--child", nargs=3, metavar=("SPEC", "SOURCE", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make_all(options.cache)
        return
    if options.child:
        spec, source, out = options.child
        print(json.dumps(build_alone(spec, Path(source), Path(out))))
        return
    result = measure(options.cache, options.runs)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(format_table(result))


if __name__ == "__main__":
    main()
