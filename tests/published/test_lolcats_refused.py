"""Files that are no LoLCATs checkpoint, or do not fit these heads or this model, are rejected. No code runs, and nothing is
left.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.composer.cli.conftest import Compose
from tests.published.lolcats import PEFT, QUERY, SETTINGS, SPEC, State, adapters, attention, maps, options, saved, two_files


class Command:
    """An object that runs a command when it is unpickled."""

    def __init__(self, run: Callable[..., Any], *arguments: Any) -> None:
        self.run, self.arguments = run, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.run, self.arguments


def remove(name: str) -> Callable[[State], None]:
    return lambda state: state.pop(name)


def put(name: str, value: Any) -> Callable[[State], None]:
    return lambda state: state.update({name: value})


LORA_A, LORA_B = (PEFT + attention(0, f"k_proj.lora_{letter}.default.weight") for letter in "AB")
WRONG: dict[str, tuple[Callable[[State], None], list[str]]] = {
    "a map is missing": (
        remove(attention(1, QUERY)),
        ["1 parameters that no file has", "model.layers.1.self_attn.composed.head.feature_map.query_weight [4, 8, 4]"],
    ),
    "a factor is missing": (remove(attention(0, "window_factors")), ["model.layers.0.self_attn.composed.head.window.weight [4]"]),
    "an unknown name": (put("model.layers.0.self_attn.bias", torch.zeros(3)), ["holds 1 that LoLCATs", "self_attn.bias ([3])"]),
    "a name of another module": (
        put("model.layers.0.mlp.feature_map_q.mlp.layer", torch.zeros(3)),
        ["0.mlp.feature_map_q.mlp.layer"],
    ),
    "a layer more": (put(attention(7, QUERY), torch.zeros(4, 8, 4)), ["1 tensors that the heads have no place for", "layers.7."]),
    "a map of another shape": (put(attention(0, QUERY), torch.zeros(4, 8, 5)), ["expected [4, 8, 4], the file has [4, 8, 5]"]),
    "a map of key heads": (put(attention(0, QUERY), torch.zeros(2, 8, 4)), ["expected [4, 8, 4], the file has [2, 8, 4]"]),
    "a flat factor": (put(attention(0, "window_factors"), torch.zeros(4)), ["expected [1, 4, 1, 1], the file has [4]"]),
    "a shape of terabytes": (
        put(attention(0, QUERY), torch.zeros(1).expand(10**6, 10**6)),
        ["expected [4, 8, 4], the file has [1000000, 1000000]"],
    ),
    "numbers of another kind": (put(attention(0, QUERY), torch.zeros(4, 8, 4, dtype=torch.int64)), [QUERY]),
    "a sparse tensor": (put(attention(0, QUERY), torch.zeros(4, 8, 4).to_sparse()), [QUERY]),
    "no tensor": (put(attention(0, QUERY), [1.0, 2.0]), [f"{QUERY} (list)"]),
    "a name that is none": (put(3, torch.zeros(2)), ["3 ([2])"]),  # pyright: ignore[reportArgumentType]
    "values that are not finite": (put(attention(0, QUERY), torch.full((4, 8, 4), torch.nan)), ["not finite"]),
    "an adapter without its other half": (
        remove(LORA_B),
        ["1 adapters that are missing", "lora_B of model.layers.0.self_attn.k_proj"],
    ),
    "an adapter of another rank": (put(LORA_A, torch.zeros(3, 32)), ["expected [2, 32], the file has [3, 32]"]),
    "an adapter that is not finite": (put(LORA_A, torch.full((2, 32), torch.inf)), ["not finite"]),
    "an adapter of another projection": (put(LORA_A.replace("k_proj", "gate_proj"), torch.zeros(2, 32)), ["gate_proj.lora_A"]),
    "an adapter of a layer more": (
        put(LORA_A.replace("layers.0", "layers.2"), torch.zeros(2, 32)),
        ["without a place in the model", "layers.2."],
    ),
    "a name that comes twice": (put(PEFT + attention(0, QUERY), torch.zeros(4, 8, 4)), ["is twice in", "which one counts?"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_tensors_that_do_not_fit_are_named(compose: Compose, source: Path, tmp_path: Path, case: str) -> None:
    state = maps() | adapters()
    change, messages = WRONG[case]
    change(state)
    file = saved(tmp_path / "model.pt", state)
    assert_refused(compose("build", SPEC, "--from", source, f"--lolcats={file}", *SETTINGS, "-o", "cats"), messages, tmp_path, file)


def assert_refused(result: Any, messages: list[str], folder: Path, *files: Path) -> None:
    assert result.exit_code == 2, result.output
    assert all(message in result.stderr for message in messages), result.stderr
    assert "Traceback" not in result.stderr
    assert {path.name for path in folder.iterdir()} == {file.name for file in files}, "nothing is left behind"


def pickle_that_runs(folder: Path) -> Any:
    """Return a pickle that would create a folder if it ran."""
    return {attention(0, QUERY): Command(os.mkdir, str(folder / "was-run"))}


def repack(folder: Path, compression: int) -> Path:
    """Return a checkpoint with repacked members."""
    path = saved(folder / "whole.pt", maps())
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(folder / "model.pt", "w", compression) as new:
        for member in old.namelist():
            new.writestr(member, old.read(member))
    path.unlink()
    return folder / "model.pt"


def cut(folder: Path) -> Path:
    path = saved(folder / "model.pt", maps())
    path.write_bytes(path.read_bytes()[:-200])
    return path


def large(folder: Path) -> Path:
    path = saved(folder / "model.pt", maps())
    os.truncate(path, 2**30 + 1)
    return path


def short(folder: Path) -> Path:
    """Return a checkpoint whose last tensor claims more numbers than the file has."""
    path = saved(folder / "whole.pt", {attention(0, QUERY): torch.zeros(10**6)})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(folder / "model.pt", "w") as new:
        for member in old.namelist():
            new.writestr(member, old.read(member)[:40] if "/data/" in member else old.read(member))
    path.unlink()
    return folder / "model.pt"


def written(folder: Path, content: bytes) -> Path:
    (folder / "model.pt").write_bytes(content)
    return folder / "model.pt"


def legacy(folder: Path) -> Path:
    torch.save(maps(), folder / "model.pt", _use_new_zipfile_serialization=False)
    return folder / "model.pt"


def queue(folder: Path) -> Path:
    os.mkfifo(folder / "model.pt")
    return folder / "model.pt"


def nested(folder: Path) -> Path:
    (folder / "model.pt").mkdir()
    return folder / "model.pt"


HOSTILE: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "a command": (
        lambda folder: saved(folder / "model.pt", pickle_that_runs(folder)),
        ["is not read", "mkdir", "Only tensors are read"],
    ),
    "a command beside the weights": (
        lambda folder: saved(folder / "model.pt", {"model_state_dict": maps(), "step": Command(os.mkdir, str(folder / "was-run"))}),
        ["is not read", "mkdir"],
    ),
    "an optimizer beside the weights": (
        lambda folder: saved(folder / "model.pt", {"model": maps(), "optimizer": {"step": torch.zeros(1)}}),
        ["holds more than the weights of 'model': optimizer (dict)"],
    ),
    "a whole module": (lambda folder: saved(folder / "model.pt", torch.nn.Linear(2, 2)), ["is not read"]),
    "a list": (lambda folder: saved(folder / "model.pt", [torch.zeros(2)]), ["holds a list; expected a mapping"]),
    "a text": (lambda folder: written(folder, b"no zip"), ["is no archive as torch.save writes it"]),
    "nothing": (lambda folder: written(folder, b""), ["is no archive as torch.save writes it"]),
    "a zip of something else": (lambda folder: written(folder, b"PK\x05\x06" + bytes(18)), ["is not read"]),
    "a file of before": (legacy, ["is no archive as torch.save writes it"]),
    "a packed one": (lambda folder: repack(folder, zipfile.ZIP_DEFLATED), ["is packed, which torch.save never does"]),
    "a large one": (large, ["is larger than 1,073,741,824 bytes"]),
    "half of one": (cut, ["is no archive as torch.save writes it"]),
    "one that claims more than it has": (short, ["is not read"]),
    "a folder": (nested, ["a folder, and a file was expected"]),
    "a pipe": (queue, ["no regular file"]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_files_that_are_not_checkpoints_are_refused(compose: Compose, source: Path, tmp_path: Path, case: str) -> None:
    make, messages = HOSTILE[case]
    file = make(tmp_path)
    assert_refused(compose("build", SPEC, "--from", source, f"--lolcats={file}", *SETTINGS, "-o", "cats"), messages, tmp_path, file)


def test_missing_files_are_refused(compose: Compose, source: Path, tmp_path: Path) -> None:
    result = compose("build", SPEC, "--from", source, "--lolcats=model.pt", *SETTINGS, "-o", "cats")
    assert_refused(result, ["model.pt cannot be read: No such file"], tmp_path)


@pytest.mark.parametrize(
    ("spec", "settings", "messages"),
    [
        ("lolcats-workshop", [], ["tensors of another shape"]),
        (
            SPEC,
            [*SETTINGS[2:], "--set=head.feature_map={kind: exp, linear: true, dim: 4, two_sided: true}"],
            ["4 tensors that mean something else", "it was made for `hedgehog, dim: 4", "and here is `exp, dim: 4"],
        ),
        (
            "lolcats-local-rope",
            SETTINGS[:1],
            ["tensors that mean something else", "saw states after `rope", "sees states as they are"],
        ),
        ("lawcat", [], ["that the heads have no place for", "that no file has"]),
        ("lola", SETTINGS[:1], ["8 adapters: their scale is in a recipe with `finetune"]),
    ],
)
def test_specs_with_other_heads_are_refused(
    compose: Compose, source: Path, tmp_path: Path, spec: str, settings: list[str], messages: list[str]
) -> None:
    files = two_files(tmp_path)
    assert_refused(compose("build", spec, "--from", source, *options(files), *settings, "-o", "cats"), messages, tmp_path, *files)


def test_only_the_published_base_model_is_accepted(compose: Compose, source: Path, tmp_path: Path) -> None:
    files = two_files(tmp_path)
    assert compose("build", SPEC, "--from", source, *options(files), *SETTINGS, "-o", "cats").exit_code == 0
    again = compose("build", SPEC, "--from", "cats", *options(files), *SETTINGS, "-o", "again")
    assert_refused(again, ["is a student already"], tmp_path, *files, Path("cats"))
    fresh = compose("build", "latte", "--fresh", *options(files), "-o", "again")
    assert_refused(fresh, ["name the source with --from"], tmp_path, *files, Path("cats"))


def test_tensors_in_both_files_are_refused(compose: Compose, source: Path, tmp_path: Path) -> None:
    files = [*two_files(tmp_path), saved(tmp_path / "third.pt", {attention(0, QUERY): torch.zeros(4, 8, 4)})]
    result = compose("build", SPEC, "--from", source, *options(files), *SETTINGS, "-o", "cats")
    assert_refused(result, ["which one counts?", "maps.pt", "third.pt"], tmp_path, *files)
