"""The arguments and options that several commands share, so that each means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.spec.shipped import shipped_specs
from converters.trunk import Dtype

SPEC = (
    "A YAML file, the name of a shipped spec (`compose show` lists them), or the folder of a built model. One of a sweep is "
    "SWEEP:VARIANT."
)


def complete_spec(incomplete: str) -> list[str]:
    """The shipped specs that begin with ``incomplete``; the shell completes files."""
    return [name for name in shipped_specs() if name.startswith(incomplete)]


SpecName = Annotated[str, typer.Argument(help=SPEC, autocompletion=complete_spec)]
SOURCE = (
    "A folder with config.json and safetensors, a built model too, a GGUF file, or a model of the Hub (OWNER/NAME, "
    "OWNER/NAME@REVISION, hub:OWNER/NAME, hub:OWNER/NAME/FILE.gguf)."
)
MaybeFrom = Annotated[str | None, typer.Option("--from", metavar="SOURCE", help=SOURCE)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a value of the spec: head.memory.0.size=32. May be repeated."),
]
SetRecipe = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change the recipe for this run: recipe.finetune.lr=1e-4. May be repeated."),
]
Seq = Annotated[
    str,
    typer.Option(
        "--seq", metavar="TOKENS", help="Length at which a state that grows, and the source's cache, are counted; 4k is 4,096."
    ),
]
Revision = Annotated[str | None, typer.Option(help="A branch, tag or commit of a model of the Hub.")]
Backend = Annotated[
    str,
    typer.Option("--backend", help="auto takes each part's fastest form; reference is the definition, torch runs anywhere."),
]
Graph = Annotated[bool, typer.Option("--graph/--no-graph", help="On a GPU, record the step of a token once, and replay it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress; warnings and results are printed all the same.")]
Data = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="REF",
        help="A file (.jsonl, .txt, .csv, .parquet), hub:OWNER/NAME, or a task such as passkey,samples=2000. May be repeated.",
    ),
]
HeldOut = Annotated[
    list[str] | None,
    typer.Option("--held-out", metavar="REF", help="Data to evaluate on; left out, a share of --data that is not trained on."),
]
HeldShare = Annotated[float, typer.Option("--share", help="Share of --data to hold out, without --held-out; 0: none.")]
HeldRows = Annotated[
    int | None,
    typer.Option(
        "--held-out-rows",
        metavar="N",
        help="Rows to evaluate on at most; left out: as many as keep evaluation to a fifth of the run.",
    ),
]
Interval = Annotated[float, typer.Option("--checkpoint-seconds", help="At least so many pass between two checkpoints.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="A run that learns nothing, or goes through few tokens many times, is an error.")
]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="What the system says before the first turn.")]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token; above, tokens are sampled.")]
TopP = Annotated[float, typer.Option(help="Sample among the likeliest tokens of this probability.")]
RunsOn = Annotated[str, typer.Option("--device", help="Where to run: cpu or cuda.")]
Bfloat16 = Annotated[bool, typer.Option("--bfloat16", help="Let projections compute in bfloat16.")]
WeightsDtype = Annotated[Dtype | None, typer.Option("--dtype", help="Type of all weights; left out, as they are stored.")]
TextOption = Annotated[Path | None, typer.Option("--text", metavar="FILE", help="Text that perplexity is measured on.")]
HaystackOption = Annotated[Path | None, typer.Option("--haystack", metavar="FILE", help="Text that needles are hidden in.")]
Babi = Annotated[
    Path | None, typer.Option("--babi", metavar="FOLDER", help="bAbI's files, for babilong; left out, facts are generated.")
]
Checkpointing = Annotated[
    bool,
    typer.Option(
        "--gradient-checkpointing",
        help="Where the whole model learns, compute the inside of its layers again in the backward pass: less memory, more time.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")]
Anew = Annotated[bool, typer.Option("--force", help="Replace the result, and the run, in their place.")]
