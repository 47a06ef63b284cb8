"""Time, written bytes and memory of a build at the size of Llama-3.2-1B, and the speed of ``--copy`` against ``cp``.

    python benchmarks/build_1b.py --cache /some/large/disk

makes a random checkpoint with that model's exact config (bfloat16, three files, 2.47 GB) in the cache folder, once, and builds
from it next to it. Every build is a separate process; seconds are counted after its imports. Copies and ``cp`` take turns,
and both end with an fsync of every file. Results go to ``benchmarks/results/build_1b.json``; ``--clean`` removes the checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

RESULTS = ROOT / "benchmarks" / "results" / "build_1b.json"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
}
LARGEST_SHARD = 10**9


def make_checkpoint(folder: Path) -> None:
    """Write the random checkpoint tensor by tensor, if it does not exist yet."""
    if (folder / "model.safetensors.index.json").exists():
        return
    from composer.weights.stream import TensorToWrite, write_shard
    from converters.llama import read_config
    from converters.trunk import list_expected_tensors

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shards: list[list[TensorToWrite]] = [[]]
    size = 0
    for name, shape in list_expected_tensors(read_config(CONFIG, [])).items():
        tensor_bytes = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        if size + tensor_bytes > LARGEST_SHARD:
            shards.append([])
            size = 0
        size += tensor_bytes
        shards[-1].append(TensorToWrite(name, "bfloat16", shape, lambda shape=shape: _draw_bytes(shape)))
    weight_map = {}
    for number, pieces in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_shard(folder / file, pieces, lambda _: None)
        weight_map.update({piece.name: file for piece in pieces})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _draw_bytes(shape: tuple[int, ...]) -> Iterator[memoryview]:
    import torch

    from composer.weights.stream import as_bytes

    if len(shape) == 1:
        yield as_bytes(torch.ones(shape, dtype=torch.bfloat16))
        return
    rows = max(1, 2**22 // shape[1])
    for first in range(0, shape[0], rows):
        yield as_bytes((torch.randn(min(rows, shape[0] - first), shape[1]) * 0.02).to(torch.bfloat16))


def build_once(spec_name: str, source: Path, out: Path, copy: bool) -> dict[str, Any]:
    """Run one build in this process, for the parent process."""
    import torch  # noqa: F401 - imported before the clock starts

    from composer.building.folder import build_folder
    from composer.spec.loading import load_spec
    from composer.spec.resolve import resolve
    from composer.weights.config import dimensions
    from composer.weights.sources import open_model

    imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    spec = load_spec(spec_name)
    opened = open_model(source)
    document = spec.model_dump(mode="json", exclude_unset=True)
    report = build_folder(resolve(spec, dimensions(opened.trunk)), opened, out, spec_document=document, copy=copy)
    seconds = time.perf_counter() - began
    written_files = [path.stat() for path in out.rglob("*") if path.is_file() and path.stat().st_nlink == 1]
    return {
        "seconds": seconds,
        "fresh_bytes": report.plan.fresh_bytes,
        "fresh_parameters": report.plan.fresh_bytes // 2,
        "bytes_on_disk": sum(stat.st_size for stat in written_files),
        "bytes_shared": report.bytes_shared,
        "peak_rss": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "rss_after_imports": 1024 * imported,
    }


def build_in_child(spec: str, source: Path, out: Path, copy: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", spec, str(source), str(out), *(["--copy"] if copy else [])]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(out)
    return json.loads(completed.stdout.splitlines()[-1])


def copy_with_cp(source: Path, out: Path) -> float:
    """Copy the weights with ``cp`` and an fsync of each file. Return the seconds."""
    out.mkdir()
    began = time.perf_counter()
    subprocess.run(["cp", *map(str, sorted(source.glob("*.safetensors"))), str(out)], check=True)
    for path in (*out.iterdir(), out):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    seconds = time.perf_counter() - began
    shutil.rmtree(out)
    return seconds


def find_file_system(folder: Path) -> str:
    """Return the type of the file system that holds a folder, from the kernel's table."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [(point, kind) for point, kind in mounts if folder.is_relative_to(point)]
    return max(holding, key=lambda entry: len(entry[0]))[1]


def warm(source: Path) -> None:
    """Read the source once, so that all runs find it in the page cache."""
    from composer.weights.stream import blocks

    for path in source.glob("*.safetensors"):
        for _ in blocks(path):
            pass


def measure(cache: Path, spec: str, runs: int, pause: float) -> dict[str, Any]:
    source, out = cache / "llama-1b", cache / "out"
    make_checkpoint(source)
    shutil.rmtree(out, ignore_errors=True)
    total = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    warm(source)
    links = [build_in_child(spec, source, out, copy=False) for _ in range(runs)]
    copies, by_cp = [], []
    for number in range(runs):
        for turn in (0, 1):
            os.sync()
            time.sleep(pause)
            if (number + turn) % 2:
                by_cp.append(copy_with_cp(source, out))
            else:
                copies.append(build_in_child(spec, source, out, copy=True))
    return {
        "spec": spec,
        "source_bytes": total,
        "source_files": len(list(source.glob("*.safetensors"))),
        "file_system": find_file_system(cache.resolve()),
        "cpu": _read_cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "runs": runs,
        "pause": pause,
        "link": links,
        "copy": copies,
        "cp_seconds": by_cp,
        "copy_to_cp_speed": {
            "median": statistics.median(by_cp) / statistics.median(run["seconds"] for run in copies),
            "best": min(by_cp) / min(run["seconds"] for run in copies),
        },
    }


def _read_cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def format_table(result: dict[str, Any]) -> str:
    def format_row(label: str, seconds: list[float], runs: list[dict[str, Any]] | None) -> str:
        median, spread = statistics.median(seconds), f"{min(seconds):.2f} to {max(seconds):.2f}"
        speed = f"{result['source_bytes'] / median / 1e9:.2f}"
        if runs is None:
            return f"| {label} | {median:.2f} | {spread} | {speed} | {result['source_bytes'] / 1e6:,.1f} | |"
        rss = max(run["peak_rss"] for run in runs) / 1e6
        written = runs[0]["bytes_on_disk"] / 1e6
        return f"| {label} | {median:.2f} | {spread} | {speed if written > 1000 else ''} | {written:,.1f} | {rss:.0f} |"

    head = [
        f"`compose build {result['spec']}` from {result['source_bytes'] / 1e9:.2f} GB in {result['source_files']} files, "
        f"{result['file_system']}, {result['cpu']}, {result['cores']} cores, {result['runs']} runs each. "
        f"Fresh parameters: {result['link'][0]['fresh_parameters']:,} ({result['link'][0]['fresh_bytes'] / 1e6:.1f} MB).",
        "",
        "| | median s | s | GB/s | written MB | peak RSS MB |",
        "|---|---|---|---|---|---|",
        format_row("build, linked", [run["seconds"] for run in result["link"]], result["link"]),
        format_row("build, `--copy`", [run["seconds"] for run in result["copy"]], result["copy"]),
        format_row("`cp` and fsync", result["cp_seconds"], None),
        "",
        f"`--copy` runs at {result['copy_to_cp_speed']['median']:.2f} of `cp`'s speed by medians, "
        f"at {result['copy_to_cp_speed']['best']:.2f} by the best of each.",
    ]
    return "\n".join(head)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "build_1b", help="a folder with 6 GB of room")
    parser.add_argument("--spec", default="lawcat")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each copy, for disks that allow bursts only")
    parser.add_argument("--clean", action="store_true", help="remove the checkpoint afterwards")
    parser.add_argument("--child", nargs=3, metavar=("SPEC", "SOURCE", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--copy", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        spec, source, out = options.child
        print(json.dumps(build_once(spec, Path(source), Path(out), options.copy)))
        return
    result = measure(options.cache, options.spec, options.runs, options.pause)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(format_table(result))
    if options.clean:
        shutil.rmtree(options.cache / "llama-1b")


if __name__ == "__main__":
    main()
