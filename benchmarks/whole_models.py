"""`compose bench` on a random Llama as transformers has it, and LAWCAT and LoLCATs built from it.

    python benchmarks/whole_models.py --device cuda
    python benchmarks/whole_models.py --device cpu --width 128 --layers 2 --prefill 512,1k --decode 128,512 --batch 1,2

Left out, the trunk is 1,024 wide and has 8 layers (heads of 64, a quarter as many key heads), in bfloat16; prompts have 1,024 to
32,768 tokens, and positions are 512 to 32,768. The models stand in a folder that is removed at the end. Writes
benchmarks/results/whole_models_<device>/.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import composer

RESULTS = Path(__file__).parent / "results"
STUDENTS = ("lawcat", "lolcats")


def make_models(folder: Path, width: int, layers: int) -> list[str]:
    """The folders of the source and its students."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 256),
        head_dim=64,
        max_position_embeddings=2048,
    )
    source, model = folder / "llama", LlamaForCausalLM(config)
    torch.nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(source)
    for spec in STUDENTS:
        composer.build_folder(spec, source, folder / spec)
    return [str(source), *(str(folder / spec) for spec in STUDENTS)]


def main() -> None:
    """Make, and hand on to the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prefill", default="1k,4k,16k,32k")
    parser.add_argument("--decode", default="512,4k,32k")
    parser.add_argument("--batch", default="1,8")
    said = parser.parse_args()
    out = RESULTS / f"whole_models_{said.device}"
    with tempfile.TemporaryDirectory(prefix="whole-models-") as folder:
        models = make_models(Path(folder), said.width, said.layers)
        asked = ["--prefill", said.prefill, "--decode", said.decode, "--batch", said.batch, "--device", said.device]
        command = [sys.executable, "-m", "composer", "bench", *models, *asked, "-o", str(out), "--force"]
        sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
