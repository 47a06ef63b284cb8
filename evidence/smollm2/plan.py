"""The plan of an experiment: which students are built, how they are trained, and what they are scored on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from blocks.part import Closed
from composer.spec.places import plain
from composer.spec.reading import read_text
from composer.system.files import sha256
from converters.bounded import MOST_CONFIG
from converters.bounded import read_text as read_config

HERE = Path(__file__).parent
PLAN, FLAGSHIP, HEADS, SELECTORS, READING, COMPRESSED = (
    HERE / f"{name}.yaml" for name in ("students", "flagship", "heads", "selectors", "reading", "compressed")
)

Settings = dict[str, Any]
FILES = "files"


class Keep(Closed):
    """The key heads of a student that keep the source's softmax attention.

    - by: gates, the key heads with the widest gates; layers, whole layers with the widest gates on average; restored, whole layers
      by the score of ``compose select --by restored``; every, whole layers at equal distances; random, key heads by chance, which
      follow from the seed of the run.
    - heads: the number of key heads.
    - gates: the report of ``compose select --heads`` in place of the plan's, or the one with the scores of layers.
    """

    by: Literal["gates", "layers", "restored", "every", "random"]
    heads: PositiveInt
    gates: str | None = None


class Student(Closed):
    """One student, or one control.

    - spec: a shipped spec, or a spec file.
    - set: values of the spec that differ, as ``compose build --set`` takes them.
    - source: another student of the plan. Its weights, with the adapters merged, are the source in place of the teacher's.
    - keep: the key heads that keep softmax attention.
    - transfer, finetune: settings of the two stages, added to the plan's. A stage that is null is not run.
    - data: in place of the files of the command line, tasks that write their own texts. The word ``files`` stands for these files.
    - sequence: tokens in a row of training, in place of the plan's.
    - evaluations: what it is scored on, if not on everything. lengths: of retrieval, in place of the plan's.
    - seeds: a run for each.
    """

    name: str
    spec: str
    set: tuple[str, ...] = ()
    source: str | None = None
    keep: Keep | None = None
    transfer: Settings | None = None
    finetune: Settings | None = None
    data: tuple[str, ...] = ()
    sequence: PositiveInt | None = None
    evaluations: tuple[Literal["general", "written", "text", "retrieval"], ...] | None = None
    lengths: tuple[PositiveInt, ...] | None = None
    seeds: tuple[NonNegativeInt, ...] = (0,)


class ScoredTasks(Closed):
    """Tasks of this project, scored at several lengths. samples: the number of samples of each task at each length."""

    tasks: tuple[str, ...]
    lengths: tuple[PositiveInt, ...]
    samples: PositiveInt


class HarnessTask(Closed):
    """A task of lm-eval. local: its name in a folder with local copies. metric: used in tables. chance: the score of a guess."""

    local: str
    metric: str
    chance: float = 0.0


class Harness(Closed):
    """Tasks of lm-eval, by their names in lm-eval. rows: the number of rows of each task."""

    tasks: dict[str, HarnessTask]
    rows: PositiveInt


class Plan(Closed):
    """An experiment.

    - baseline: the name of the teacher.
    - gates: a report of ``compose select --heads``, from the folder of this module. Students with ``keep`` are chosen by it.
    - transfer, finetune: the settings of a stage that all students share.
    """

    baseline: str
    gates: str | None = None
    sequence: PositiveInt
    rows: str = "joined"
    held_out_rows: PositiveInt = 8
    transfer: Settings = Field(default_factory=dict)
    finetune: Settings = Field(default_factory=dict)
    general: Harness | None = None
    written: Harness | None = None
    text: ScoredTasks | None = None
    retrieval: ScoredTasks
    students: Annotated[tuple[Student, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        names = [student.name for student in self.students]
        if len(set(names)) < len(names) or self.baseline in names:
            raise ValueError("two students have one name")
        for student in self.students:
            if student.source is not None and student.source not in names[: names.index(student.name)]:
                raise ValueError(f"{student.name}: `source: {student.source}` names no student before it")
            if student.keep is not None and (student.keep.gates or self.gates) is None:
                raise ValueError(f"{student.name}: `keep` needs `gates`, a report of compose select --heads")
        return self

    def student(self, name: str) -> Student:
        """Return the student with this name."""
        return next(student for student in self.students if student.name == name)

    @property
    def needle_lengths(self) -> tuple[int, ...]:
        """The lengths at which any student is scored on retrieval."""
        lengths = {length for student in self.students for length in student.lengths or self.retrieval.lengths}
        return tuple(sorted(lengths))

    def gates_of(self, keep: Keep) -> Path:
        """Return the report with the gates that a student's key heads are chosen by."""
        return HERE / (keep.gates or self.gates or "")

    def recipe(self, student: Student) -> Settings:
        """Return the recipe of a student. It includes the settings that all students share."""
        recipe: Settings = {"sequence": student.sequence or self.sequence, "rows": self.rows}
        for stage, common in (("transfer", self.transfer), ("finetune", self.finetune)):
            settings = getattr(student, stage)
            if settings is not None:
                recipe[stage] = common | settings
        return recipe


class Inputs(Closed):
    """The files of the command line.

    - teacher: a folder, a file or a model of the Hub.
    - data: texts to train on. text: text to measure perplexity on. haystack: text that needles are hidden in.
    - bfloat16: train with projections in bfloat16. This is slower on processors without instructions for it.
    - accumulate: parts that a batch of training is computed in, one after the other, which needs less memory. Gradients are equal.
    - device: where to run. dtype: of the weights in evaluations.
    - tasks: a folder with local copies of lm-eval's tasks. rows: the folder that the paths in these copies start from.
    """

    teacher: str
    data: tuple[str, ...]
    text: Path | None = None
    haystack: Path | None = None
    bfloat16: bool = False
    accumulate: PositiveInt | None = None
    device: str = "cpu"
    dtype: str = "float32"
    tasks: Path | None = None
    rows: Path | None = None


def read_plan(path: Path = PLAN, **changes: Any) -> Plan:
    """Read a plan, with other values of some fields. Raises OSError, SpecError or ValueError if the file cannot be read or is not a
    plan."""
    return Plan.model_validate({**plain(read_text(read_config(path, MOST_CONFIG), str(path))), **changes})


def compute_identity(plan: Plan, name: str, seed: int, inputs: Inputs) -> str:
    """Return the hash of all inputs and settings that decide a run's figures, without the versions of the code."""
    facts: dict[str, Any] = plan.model_dump(mode="json", exclude={"students", "general", "written", "gates"})
    facts["transfer"] = _as_kept(facts["transfer"])
    facts["harness"] = [(sorted(harness.tasks), harness.rows) for harness in (plan.general, plan.written) if harness is not None]
    chain: list[Any] = []
    student_name = None if name == plan.baseline else name
    while student_name is not None:
        student = plan.student(student_name)
        unset = {name for name in ("evaluations", "lengths") if getattr(student, name) is None}
        settings = student.model_dump(mode="json", exclude={"seeds", *unset})
        chain.append(settings | {"transfer": _as_kept(student.transfer)})
        if student.keep is not None:
            chain.append(sha256(plan.gates_of(student.keep)))
        student_name = student.source
    facts |= {"students": chain, "seed": seed}
    files = [Path(reference) for reference in inputs.data]
    facts["files"] = [sha256(path) for path in (*files, inputs.text, inputs.haystack) if path is not None and path.is_file()]
    facts["teacher"] = [sha256(path) for path in sorted(Path(inputs.teacher).glob("*.safetensors"))]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _as_kept(transfer: Settings | None) -> Settings | None:
    """Return the settings of a transfer as the identities of kept runs have them: ``start`` was ``init``, by default ``scaled``."""
    if transfer is None or "start" not in transfer:
        return transfer
    others = {name: setting for name, setting in transfer.items() if name != "start"}
    return others if transfer["start"] == "scaled" else others | {"init": transfer["start"]}
