"""What is built, trained and scored: each experiment is one `compose ablate`, with three seeds."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from composer.ablation.plan import Request

TEACHER = "examples/teacher"
SEEDS = (0, 1, 2)
OUT = "build-output/evidence"
"""Where models and steps of the runs stand; what they found is kept in ``evidence/runs``."""


@dataclass(frozen=True)
class Experiment:
    """An ablation. trained: the experiment and the variant whose model, of the same seed, is what this one builds from. made: the
    command that makes the source, where it does not ship with the project."""

    name: str
    specs: tuple[str, ...]
    request: Request
    overrides: tuple[str, ...] = ()
    trained: tuple[Experiment, str] | None = None
    made: str | None = None

    @property
    def command(self) -> str:
        """What does the same by hand."""
        request = self.request
        source = f"--from {request.source}" if request.source else f"--fresh --tokenizer {request.tokenizer}"
        if self.trained is not None:
            source = f"--from {OUT}/{self.name}/trained-SEED"
        words = [*(f"--data {said}" for said in request.data), *([f"--share {request.share:g}"] if request.data else [])]
        words += [f"--set {shlex.quote(said)}" for said in self.overrides]
        if request.tasks:
            words += [f"--tasks {','.join(request.tasks)}", f"--lengths {','.join(map(str, request.lengths))}"]
            words += [f"--samples {request.samples}"]
        seeds = "SEED" if self.trained is not None else ",".join(map(str, request.seeds))
        return " ".join(["compose ablate", *self.specs, source, *words, f"--seeds {seeds}", f"-o {OUT}/{self.name}"])


SKILLS = ("stories,samples=1200", "passkey,samples=1200", "recall,samples=800")
"""What the teacher was trained on."""
LENGTHS = (256, 512, 1024, 2048)
"""Once, twice, four and eight times what teacher and students are trained on."""

SCORED = Request(TEACHER, tasks=("stories", "passkey", "recall"), lengths=LENGTHS, samples=40, seeds=SEEDS)
TAUGHT = replace(SCORED, data=SKILLS, share=0.0)

RECIPE = (
    "recipe.sequence=256",
    "recipe.rows=whole",
    "recipe.transfer={lr: 3e-2, epochs: null, tokens: null, steps: 80, batch: 8, warmup: 10, schedule: cosine, final: 0.05}",
    "recipe.finetune={lr: 3e-3, fresh_lr: 3e-3, epochs: null, tokens: null, steps: 300, batch: 8, average: rows, warmup: 10, "
    "schedule: cosine, final: 0.05, lora: {rank: 8, alpha: 16, targets: [q, k, v, o]}}",
)
"""Both stages for minutes: 640 and 2,400 rows of 256 tokens."""

FULL_RECIPE = (
    "recipe.sequence=256",
    "recipe.rows=whole",
    "recipe.transfer={lr: 3e-2, epochs: null, tokens: null, steps: 200, batch: 16, warmup: 10, schedule: cosine, final: 0.05}",
    "recipe.finetune={lr: 3e-3, fresh_lr: 3e-3, epochs: null, tokens: null, steps: 600, batch: 16, average: rows, warmup: 10, "
    "schedule: cosine, final: 0.05, lora: {rank: 8, alpha: 16, targets: [q, k, v, o]}}",
)
"""Both stages with eight times the rows: 3,200 and 9,600."""
FULL = Experiment(
    "full",
    (
        "evidence/specs/lolcats-full.yaml",
        "specs/lawcat.yaml",
        "specs/alternating-delta.yaml",
        "evidence/specs/alternating-kda.yaml",
        "evidence/specs/macchiato-full.yaml",
        "specs/gated-delta.yaml",
        "ablations/lawcat-convolution:without",
        "ablations/lawcat-normalisation:without",
        "ablations/lawcat-window:with",
        "evidence/specs/lolcats.yaml:no-window",
        "ablations/lawcat-rope:rope",
        "evidence/specs/alternating-lawcat.yaml",
        "evidence/specs/lolcats.yaml:rope-in-window",
        "evidence/specs/lolcats.yaml:no-rope",
        "ablations/lawcat-sharing:both",
        "ablations/lawcat-sharing:convolution",
        "ablations/lawcat-sharing:neither",
        "evidence/specs/divided.yaml",
        "evidence/specs/gate-rank.yaml:4",
        "evidence/specs/gate-rank.yaml:full",
        "evidence/specs/cached.yaml",
        "evidence/specs/cached-positions.yaml",
    ),
    replace(SCORED, data=("stories,samples=1500", "passkey,samples=4000", "recall,samples=1200"), share=0.0),
    FULL_RECIPE,
)
TEACHERS = Experiment("teacher", ("softmax", "window"), replace(SCORED, seeds=(0,)))
STUDENTS = Experiment(
    "students",
    (
        "evidence/specs/lolcats.yaml",
        "ablations/lawcat-normalisation",
        "ablations/lawcat-convolution",
        "ablations/lawcat-rope",
        "ablations/lawcat-window",
        "evidence/specs/alternating-lawcat.yaml",
        "evidence/specs/divided.yaml",
        "specs/alternating-delta.yaml",
        "evidence/specs/cached.yaml",
        "ablations/lawcat-sharing",
        "evidence/specs/gate-rank.yaml",
    ),
    TAUGHT,
    RECIPE,
)
MACCHIATO = Experiment("macchiato", ("evidence/specs/macchiato.yaml",), TAUGHT)
LOLA = Experiment(
    "lola",
    ("evidence/specs/lola-cache.yaml", "evidence/specs/lola-scores.yaml"),
    Request(TEACHER, tasks=("passkey", "recall"), lengths=(256, 512), samples=50, seeds=SEEDS),
    trained=(FULL, "lolcats"),
)
TRANSFER = Experiment(
    "transfer", ("examples/attention-transfer.yaml",), Request(TEACHER, data=("stories,samples=1500",), seeds=SEEDS)
)
LATTE = Experiment(
    "latte",
    ("evidence/specs/latte-table-1.yaml", "evidence/specs/latte-latents.yaml"),
    Request(
        None,
        data=("stories,samples=2400",),
        share=0.0,
        tokenizer=TEACHER,
        tasks=("stories",),
        lengths=(256, 512, 1024),
        samples=40,
        seeds=SEEDS,
    ),
)
LOLA_FULL = Experiment("lola-full", ("evidence/specs/lola.yaml",), SCORED, trained=(FULL, "lolcats"))
EXPERIMENTS = {one.name: one for one in (FULL, LOLA_FULL, TEACHERS, STUDENTS, MACCHIATO, LOLA, TRANSFER, LATTE)}
