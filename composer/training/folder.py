"""The run folder of training, beside its output: ``run.json`` has the settings that a resumed run must share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, JsonValue

from blocks.part import Closed
from composer.errors import TrainingError
from composer.runs.identity import Fingerprint
from composer.runs.store import RunStore, Settings, differences

RUN = "run.json"
STORE = RunStore("run", TrainingError, mark=RUN, has_resume=True, is_temporary=True)
DATA, HELD_OUT_DATA, REFERENCES = "data", "held-out data", "references"
"""Keys of the settings: the hashes of the rows, and the options that name them. The options identify nothing, as the rows have
separate hashes; messages name them."""
OF_ROWS = ("recipe.sequence", "recipe.rows", "seed", "--data", "--held-out", "--share")
"""The settings that decide which rows are trained on."""


class TeacherFingerprint(Fingerprint):
    """The teacher's identity, and its folder."""

    folder: str

    def short(self) -> dict[str, Any]:
        return {"folder": self.folder} | super().short()


class DataReferences(Closed):
    """The options that name the data."""

    model_config = ConfigDict(populate_by_name=True)
    data: tuple[str, ...] = Field(validation_alias="--data", serialization_alias="--data")
    held_out: tuple[str, ...] = Field(validation_alias="--held-out", serialization_alias="--held-out")
    share: float = Field(validation_alias="--share", serialization_alias="--share")
    held_out_rows: int | None = Field(validation_alias="--held-out-rows", serialization_alias="--held-out-rows")


class RunSettings(Settings):
    """Every setting that decides a run's numbers, by its name on the command line. teacher: None where no stage learns from it."""

    model_config = ConfigDict(populate_by_name=True)
    model: Fingerprint
    teacher: TeacherFingerprint | None = None
    teacher_logits: str | None = Field(default=None, validation_alias="--teacher-logits", serialization_alias="--teacher-logits")
    """SHA-256 of the record of the stored logits; None where no stage learns from any."""
    recipe: dict[str, JsonValue]
    stage: tuple[str, ...]
    data: str
    held_out_data: str | None = Field(validation_alias=HELD_OUT_DATA, serialization_alias=HELD_OUT_DATA)
    seed: int
    device: str = Field(validation_alias="kind of device", serialization_alias="kind of device")
    autocast: bool = Field(validation_alias="--bfloat16", serialization_alias="--bfloat16")
    backend: str = Field(validation_alias="--backend", serialization_alias="--backend")
    stream: bool = Field(validation_alias="--stream", serialization_alias="--stream")
    references: DataReferences

    def identity(self) -> dict[str, Any]:
        """Return the settings as JSON, with hashes of the files of model and teacher."""
        short = {"model": self.model.short(), "teacher": None if self.teacher is None else self.teacher.short()}
        return super().identity() | short

    def differences(self, now: Any) -> list[str]:
        return run_differences(self.identity(), now.identity())


def run_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting that differs. Rows that differ because another setting does are left out.

    then, now: as ``RunSettings.identity`` returns them.
    """
    rows = (DATA, HELD_OUT_DATA)
    before, after = ({key: value for key, value in side.items() if key not in (*rows, REFERENCES)} for side in (then, now))
    if before.get("stage") != after.get("stage"):  # only some stages learn from a teacher
        before, after = ({key: value for key, value in side.items() if key != "teacher"} for side in (before, after))
    lines = list(differences(before, after))
    for kind, options in zip(rows, (OF_ROWS[-3:], (*OF_ROWS[-3:], "--held-out-rows")), strict=True):
        if then.get(kind) == now.get(kind):
            continue
        was, new = ({option: side[REFERENCES][option] for option in options} for side in (then, now))
        lines += [line for line in differences(was, new) if line not in lines]
        # Fewer steps, in any stage of the recipe, need fewer held-out rows.
        explaining = OF_ROWS if kind == DATA else (*OF_ROWS, DATA, "recipe", "--held-out-rows")
        if not any(line.startswith(explaining) for line in lines):
            lines.append(f"{kind}: the texts, or how many of them, are others than then")
    return lines


def check_run_folder(folder: Path, *, resume: bool, force: bool) -> None:
    """Raise TrainingError if a run can neither start nor continue in a folder, as another run or other files are in it."""
    if (folder / RUN).is_file():
        with STORE.writing(folder), STORE.lock(folder):
            pass
    STORE.check(folder, resume=resume, force=force)


@contextmanager
def run_folder(folder: Path, settings: RunSettings, *, resume: bool, force: bool) -> Iterator[None]:
    """Lock the folder of a run for the block. A new one appears together with its ``run.json``, or not at all.

    resume: continue the folder's run. force: replace it. Raises TrainingError.
    """
    with STORE.hold(folder, resume=resume, force=force):
        STORE.begin(folder, settings, force=not resume)
        yield
