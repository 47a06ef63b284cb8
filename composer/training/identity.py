"""The settings that identify a run, and how those of a resumed run differ from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, Field, JsonValue

from blocks.part import Closed
from composer.runs.identity import Fingerprint
from composer.spec.places import brief

REFERENCES = "said"
"""The key of the data references. They identify nothing, as the data have hashes of their own; messages name them."""


class TeacherFingerprint(Fingerprint):
    """The teacher's identity, and its folder."""

    folder: str


class DataReferences(Closed):
    """The options that name the data."""

    model_config = ConfigDict(populate_by_name=True)
    data: tuple[str, ...] = Field(validation_alias="--data", serialization_alias="--data")
    held_out: tuple[str, ...] = Field(validation_alias="--held-out", serialization_alias="--held-out")
    share: float = Field(validation_alias="--share", serialization_alias="--share")
    held_out_rows: int | None = Field(validation_alias="--held-out-rows", serialization_alias="--held-out-rows")


class RunSettings(Closed):
    """Every setting that decides a run's numbers, by its name on the command line. teacher: None where no stage learns from it."""

    model_config = ConfigDict(populate_by_name=True)
    model: Fingerprint
    teacher: TeacherFingerprint | None = Field(default=None, exclude_if=lambda teacher: teacher is None)
    teacher_logits: str | None = Field(
        default=None,
        validation_alias="--teacher-logits",
        serialization_alias="--teacher-logits",
        exclude_if=lambda logits: logits is None,
    )
    """SHA-256 of the record of the stored logits; None where no stage learns from any."""
    recipe: dict[str, JsonValue]
    stage: tuple[str, ...]
    data: str
    held_out_data: str | None = Field(validation_alias="held-out data", serialization_alias="held-out data")
    seed: int
    device: str = Field(validation_alias="kind of device", serialization_alias="kind of device")
    autocast: bool = Field(validation_alias="--bfloat16", serialization_alias="--bfloat16")
    backend: str = Field(validation_alias="--backend", serialization_alias="--backend")
    stream: bool = Field(validation_alias="--stream", serialization_alias="--stream")
    references: DataReferences = Field(validation_alias=REFERENCES, serialization_alias=REFERENCES)

    def by_option(self) -> RunIdentity:
        """The settings by their names on the command line, as JSON has them."""
        return self.model_dump(mode="json", by_alias=True)


RunIdentity = Mapping[str, Any]
"""``RunSettings`` as JSON."""
ROWS = ("recipe.sequence", "recipe.rows")
"""The settings that decide how texts are packed into rows."""
LONG = 8
"""The most differing settings that a message lists."""


def differences(then: RunIdentity, now: RunIdentity) -> list[str]:
    """A line for each setting that differs, with both values. Settings that differ because another one does are left out."""
    found = {name: f"{name}: was {_in_words(was)}, now {_in_words(new)}" for name, was, new in _settings(then, now)}
    recipe = [name for name in found if name.startswith("recipe.")]
    if then.get("data") != now.get("data"):
        found.update(_of_data(then, now, ("--data", "--held-out", "--share")))
        if not found.keys() & {*ROWS, "--data", "--held-out", "--share", "seed"}:
            found["data"] = "data: the texts are others than then"
    if then.get("held-out data") != now.get("held-out data"):
        found.update(_of_data(then, now, ("--data", "--held-out", "--share", "--held-out-rows")))
        if not recipe and not found.keys() & {"data", "--data", "--held-out", "--share", "--held-out-rows", "seed"}:
            found["held-out data"] = "held-out data: the texts, or how many of them, are others than then"
    if then.get("model") != now.get("model"):
        found["model"] = f"model: {_files(then.get('model'), now.get('model'))}"
    if "teacher" in now and then.get("teacher") != now["teacher"]:
        found["teacher"] = f"teacher: {_teacher(then.get('teacher'), now.get('teacher'))}"
    lines = list(found.values())
    return lines if len(lines) <= LONG else [*lines[:LONG], f"and {len(lines) - LONG} more"]


def _settings(then: RunIdentity, now: RunIdentity) -> Iterator[tuple[str, Any, Any]]:
    for name, new in now.items():
        if name == "recipe":
            yield from _leaves("recipe", then.get(name), new)
        elif name not in ("data", "held-out data", "model", "teacher", REFERENCES) and then.get(name) != new:
            yield name, then.get(name), new


def _leaves(path: str, was: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """The values that differ, down to the depth where both are mappings."""
    if isinstance(was, dict) and isinstance(new, dict):
        for key in {**new, **was}:
            yield from _leaves(f"{path}.{key}", was.get(key), new.get(key))
    elif was != new:
        yield path, was, new


def _of_data(then: RunIdentity, now: RunIdentity, options: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The options whose values differ."""
    was, new = then[REFERENCES], now[REFERENCES]
    for option in options:
        if was[option] != new[option]:
            yield option, f"{option}: was {_in_words(was[option])}, now {_in_words(new[option])}"


def _files(was: Any, new: Any) -> str:
    """The parts of a model's identity that differ, in words."""
    if not (isinstance(was, dict) and isinstance(new, dict)):
        return "another than then"
    if was.get("spec") != new.get("spec"):
        return f"was of the spec {_in_words(was.get('spec'))}, is now of {_in_words(new.get('spec'))}"
    return "its " + " and its ".join(key for key in ("config", "files") if was.get(key) != new.get(key)) + " are others than then"


def _teacher(was: Any, new: Any) -> str:
    folders = [one.get("folder") if isinstance(one, dict) else None for one in (was, new)]
    if folders[0] != folders[1]:
        return f"was {_in_words(folders[0])}, now {_in_words(folders[1])}"
    return _files(was, new)


def _in_words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_in_words(one)}" for key, one in value.items() if one is not None) + "}"
    return value if isinstance(value, str) else brief(value)
