"""The experiments. Each is one ``compose ablate`` with three seeds."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from composer.ablation.options import Request

TEACHER = "examples/teacher"
SEEDS = (0, 1, 2)
OUT = "build-output/evidence"
"""Folder for models and steps. Results are kept in ``evidence/runs``."""


@dataclass(frozen=True)
class Experiment:
    """An ablation.

    - base: the experiment and the variant whose trained model, of the same seed, is the source.
    - make_command: the command that makes a source that does not ship. It writes config.json last.
    """

    name: str
    specs: tuple[str, ...]
    request: Request
    overrides: tuple[str, ...] = ()
    base: tuple[Experiment, str] | None = None
    make_command: str | None = None

    @property
    def command(self) -> str:
        """The equivalent command."""
        request = self.request
        source = f"--from {request.source}" if request.source else f"--fresh --tokenizer {request.tokenizer}"
        if self.base is not None:
            source = f"--from {OUT}/{self.name}/trained-SEED"
        words = [*(f"--data {reference}" for reference in request.data), *([f"--share {request.share:g}"] if request.data else [])]
        words += [f"--set {shlex.quote(override)}" for override in self.overrides]
        if request.tasks:
            words += [f"--tasks {','.join(request.tasks)}", f"--lengths {','.join(map(str, request.lengths))}"]
            words += [f"--samples {request.samples}"]
        seeds = "SEED" if self.base is not None else ",".join(map(str, request.seeds))
        return " ".join(["compose ablate", *self.specs, source, *words, f"--seeds {seeds}", f"-o {OUT}/{self.name}"])


SKILLS = ("stories,samples=1500", "passkey,samples=4000", "recall,samples=1200")
"""The teacher's training data."""
LENGTHS = (256, 512, 1024, 2048)
"""One, two, four and eight times the training length of teacher and students."""

SCORING = Request(TEACHER, tasks=("stories", "passkey", "recall"), lengths=LENGTHS, samples=40, seeds=SEEDS)
TRAINING = replace(SCORING, data=SKILLS, share=0.0)

EARLIER = "recipe.transfer.start=parts"
"""The start of the kept runs, which are from before recipes had this field. Their identities lack it."""
RECIPE = (
    "recipe.sequence=256",
    "recipe.rows=whole",
    "recipe.transfer={lr: 3e-2, epochs: null, tokens: null, steps: 200, batch: 16, warmup: 10, schedule: cosine, final: 0.05}",
    "recipe.finetune={lr: 3e-3, fresh_lr: 3e-3, epochs: null, tokens: null, steps: 600, batch: 16, average: rows, warmup: 10, "
    "schedule: cosine, final: 0.05, lora: {rank: 8, alpha: 16, targets: [q, k, v, o]}}",
    EARLIER,
)
"""Both stages: 3,200 and 9,600 rows of 256 tokens."""
STUDENTS = Experiment(
    "students",
    (
        "evidence/specs/lolcats.yaml",
        "evidence/specs/lolcats-without.yaml",
        "specs/lawcat.yaml",
        "ablations/lawcat-normalisation:without",
        "ablations/lawcat-convolution:without",
        "ablations/lawcat-rope:rope",
        "ablations/lawcat-window:with",
        "ablations/lawcat-sharing:both",
        "ablations/lawcat-sharing:convolution",
        "ablations/lawcat-sharing:neither",
        "evidence/specs/gate-rank.yaml:4",
        "evidence/specs/gate-rank.yaml:full",
        "evidence/specs/macchiato-full.yaml",
        "evidence/specs/gated-delta.yaml",
        "specs/alternating-delta.yaml",
        "evidence/specs/alternating-kda.yaml",
        "evidence/specs/alternating-lawcat.yaml",
        "specs/lawcat-delta.yaml",
        "evidence/specs/divided.yaml",
        "evidence/specs/cached.yaml",
        "evidence/specs/cached-positions.yaml",
    ),
    TRAINING,
    RECIPE,
)
TEACHERS = Experiment("teacher", ("softmax", "window"), replace(SCORING, seeds=(0,)))
CONFIRMATION = Experiment(
    "confirmation", ("specs/lawcat-delta.yaml", "specs/lawcat.yaml"), replace(TRAINING, seeds=(3, 4, 5)), RECIPE
)
"""The best two students, with seeds that no choice depends on."""
MACCHIATO = Experiment("macchiato", ("evidence/specs/macchiato.yaml",), TRAINING)
LEADS = Experiment(
    "macchiato-leads", ("evidence/specs/macchiato-leads.yaml", "evidence/specs/macchiato-delta.yaml"), TRAINING, RECIPE
)
"""Variants of Macchiato that test why it retrieves little, trained as the other students."""
SLOWER = Experiment("macchiato-slower", ("evidence/specs/macchiato-full.yaml",), TRAINING, (*RECIPE, "recipe.transfer.lr=3e-3"))
"""Macchiato with a tenth of the learning rate in transfer, to test whether its transfer diverged."""
LOLA_LENGTHS = Experiment("lola-lengths", ("evidence/specs/lola.yaml",), SCORING, base=(STUDENTS, "lolcats"))
LOLA = Experiment(
    "lola",
    ("evidence/specs/lola-cache.yaml", "evidence/specs/lola-scores.yaml"),
    Request(TEACHER, tasks=("passkey", "recall"), lengths=(256, 512), samples=50, seeds=SEEDS),
    base=(STUDENTS, "lolcats"),
)
TRANSFER = Experiment(
    "transfer", ("evidence/specs/attention-transfer.yaml",), Request(TEACHER, data=("stories,samples=9600",), seeds=SEEDS)
)
LATTE = Experiment(
    "latte",
    ("evidence/specs/latte-table-1.yaml", "evidence/specs/latte-latents.yaml"),
    Request(
        None,
        data=("stories,samples=9600",),
        share=0.0,
        tokenizer=TEACHER,
        tasks=("stories",),
        lengths=(256, 512, 1024),
        samples=40,
        seeds=SEEDS,
    ),
)
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (TEACHERS, STUDENTS, CONFIRMATION, MACCHIATO, LEADS, SLOWER, LOLA_LENGTHS, LOLA, TRANSFER, LATTE)
}
