"""Numbers and numbers of tokens are read in one way in every command, or rejected with the name of the option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.cli.main import COMMANDS, load_command
from composer.errors import BenchError, ComposerError, EvaluationError
from composer.options.arguments import LEAST_SEED, numbers_of, read_tokens
from composer.options.classes import options_of
from tests.composer.cli.conftest import Compose
from tests.composer.programs import ROOT

TEACHER = ROOT / "examples" / "teacher"

NONE = ["", "1q", "1,,2", "--1", "1.5k", "k", "1 k", "1kk", "٣", "1e3", "1,", "9" * 13, "9" * 5000]


def test_numbers_are_read_from_text_lists_or_single_values() -> None:
    assert numbers_of(None, "--prefill", BenchError) == ()
    assert numbers_of("1k, 512,64K,100", "--prefill", BenchError) == (1024, 512, 65536, 100)
    assert numbers_of("0", "--prefill", BenchError, minimum=0) == (0,)
    assert numbers_of("3,1,3", "--seeds", BenchError, thousands=False) == (3, 1, 3)
    assert numbers_of("0,-1", "--layers", BenchError, minimum=None, thousands=False) == (0, -1)
    assert numbers_of((512, 64), "--prefill", BenchError) == (512, 64)
    assert numbers_of(7, "--prefill", BenchError) == (7,)


@pytest.mark.parametrize("text", NONE)
def test_invalid_numbers_are_refused(text: str) -> None:
    with pytest.raises(
        BenchError, match='^--decode: expected a whole number of at least 1, such as 512,4k, where 4k is 4,096, got "'
    ):
        numbers_of(text, "--decode", BenchError)


@pytest.mark.parametrize("text", [*NONE, "1k"])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(EvaluationError, match='^--seeds: expected a whole number of at least 1, such as 0,1,2, got "'):
        numbers_of(text, "--seeds", EvaluationError, thousands=False)


def test_numbers_of_tokens_may_be_in_units_of_1024() -> None:
    assert [read_tokens(value) for value in ("4k", " 128K ", "512", 7)] == [4096, 131072, 512, 7]


@pytest.mark.parametrize("value", [*NONE, "512,1k", True, 4.5, None])
def test_invalid_numbers_of_tokens_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="^expected a whole number of at least 1, such as 4096 or 4k, got "):
        read_tokens(value)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("value", ["0", 0, -3])
def test_fewer_than_one_token_is_refused(value: str | int) -> None:
    with pytest.raises(ValueError, match=r"^expected a whole number of at least 1, got -?\d$"):
        read_tokens(value)


class InMemory:
    """A placeholder for a model in memory."""


OF_FOLDERS: dict[str, Callable[[Any], object]] = {
    "generate": lambda model: composer.generate(model, "a"),
    "chat": composer.chat,
    "evaluate": lambda model: composer.evaluate(model, "recall", 128),
    "evaluate several": lambda model: composer.evaluate(["teacher", model], "recall", 128),
    "evaluate by label": lambda model: composer.evaluate({"mine": model}, "recall", 128),
    "bench": lambda model: composer.bench(model, prefill=8),
    "calibrate": lambda model: composer.calibrate(model, "recall", "out"),
    "distill": lambda model: composer.distill(model, "recall", "out"),
    "merge": composer.merge,
    "verify": composer.verify,
    "sample": lambda model: composer.sample(model, "texts.jsonl"),
    "explain": lambda model: composer.explain("lawcat", model),
    "build_folder": lambda model: composer.build_folder("lawcat", model, "out"),
}


@pytest.mark.parametrize("name", OF_FOLDERS)
def test_functions_of_folders_refuse_models_in_memory(name: str) -> None:
    """The error tells to write the model to a folder. `build`, `draw` and `inspect` do accept models."""
    with pytest.raises(ComposerError, match=r"^expected a folder, or the name of a model, got a InMemory\..*save_pretrained"):
        OF_FOLDERS[name](InMemory())


def test_a_list_of_prompts_is_refused() -> None:
    """Several prompts are rejected before a model is read."""
    with pytest.raises(ComposerError, match="^prompt: expected text, got a list$"):
        composer.generate("nothing", ["a", "b"])  # pyright: ignore[reportArgumentType]


def test_every_command_takes_thousands_of_tokens(compose: Compose, teacher: Path) -> None:
    assert composer.explain("softmax", teacher, sequence="4k") == composer.explain("softmax", teacher, sequence=4096)
    assert composer.draw("softmax", teacher, sequence="128k").svg == composer.draw("softmax", teacher, sequence=131072).svg
    result = compose("explain", "softmax", "--from", teacher, "--seq", "128k")
    assert result.exit_code == 0
    assert "131,072 tokens" in result.stdout
    assert compose("draw", "softmax", "--seq", "128k").stdout == compose("draw", "softmax", "--seq", "131072").stdout


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "softmax", "--from", "TEACHER", "--seq", "4q"),
        ("draw", "softmax", "--seq", "4q"),
        ("generate", "TEACHER", "--prompt", "a", "--max-new-tokens", "4q"),
        ("chat", "TEACHER", "--max-new-tokens", "4q"),
        ("sample", "TEACHER", "-o", "t.jsonl", "--length", "4q"),
        ("select", "lolcats", "--from", "TEACHER", "--data", "d.txt", "-o", "o", "--keep", "1", "--seq", "4q"),
        ("eval", "TEACHER", "--tasks", "passkey", "--lengths", "128", "--batch-tokens", "4q"),
    ],
    ids=lambda command: command[0],
)
def test_other_words_are_refused_with_their_option(compose: Compose, teacher: Path, command: tuple[str, ...]) -> None:
    result = compose(*(teacher if word == "TEACHER" else word for word in command))
    assert result.exit_code == 2
    assert f"{command[-2]}" in result.stderr
    assert ', such as 4096 or 4k, got "4q"' in result.stderr
    with pytest.raises(ComposerError, match="seq"):
        composer.explain("softmax", teacher, sequence="4q")


TRAINING: dict[str, int | float] = {
    "--seed": 0,
    "--held-out-rows": 1,
    "--checkpoint-seconds": 0.0,
    "--steps": 1,
    "--batch": 1,
}
NUMBERS: dict[str, tuple[tuple[str, ...], dict[str, int | float]]] = {
    "ablate": (("lolcats", "--from", "TEACHER", "-o", "o"), {"--samples": 1, "--jobs": 1, "--seeds": 0, "--lengths": 2}),
    "bench": (
        ("TEACHER", "--prefill", "8"),
        {"--repeats": 1, "--steps": 1, "--threads": 1, "--seed": 0, "--prefill": 1, "--decode": 1, "--batch": 1},
    ),
    "build": (("lolcats", "--from", "TEACHER", "-o", "o"), {"--seed": LEAST_SEED}),
    "calibrate": (("m", "--data", "passkey"), {"--seed": 0}),
    "chat": (("TEACHER",), {"--max-new-tokens": 1, "--seed": LEAST_SEED, "--temperature": 0.0, "--top-p": 0.0}),
    "distill": (("m", "--data", "passkey"), TRAINING),
    "draw": (("lolcats",), {"--seq": 1}),
    "eval": (
        ("TEACHER", "--tasks", "passkey", "--lm-eval", "piqa"),
        {"--samples": 1, "--seed": 0, "--lengths": 2, "--batch-tokens": 1, "--max-length": 2, "--num-fewshot": 0},
    ),
    "explain": (("lolcats", "--from", "TEACHER"), {"--seq": 1}),
    "generate": (
        ("TEACHER", "--prompt", "a"),
        {"--max-new-tokens": 1, "--seed": LEAST_SEED, "--temperature": 0.0, "--top-p": 0.0},
    ),
    "inspect": (("TEACHER",), {"--length": 2, "--queries": 2, "--seed": 0}),
    "logits": (
        ("TEACHER", "--data", "passkey", "-o", "o"),
        {"--sequence": 2, "--seed": 0, "--batch": 1, "--temperature": 0.01, "--top-k": 1},
    ),
    "sample": (
        ("TEACHER", "-o", "t.jsonl"),
        {"--texts": 1, "--length": 2, "--batch": 1, "--seed": 0, "--temperature": 0.01, "--top-p": 0.01},
    ),
    "select": (
        ("lolcats", "--from", "TEACHER", "--data", "d", "-o", "o"),
        {"--rows": 1, "--keep": 1, "--seed": 0, "--seq": 1, "--steps": 1, "--least-per-layer": 1},
    ),
    "serve": (("TEACHER",), {"--port": 0, "--context": 2}),
    "train": (("m", "--data", "passkey"), TRAINING),
    "view": ((), {"--port": 1}),
}
"""Of each command: what it needs besides, and its options that are numbers, with the least of each."""
ANY = {"--layers", "--share", "--limit"}
"""Options whose bounds are checked elsewhere: numbers without a minimum, a number in the data reference, and a count or share."""


def test_all_numeric_options_are_tested() -> None:
    numeric = {
        command.name: {
            option.flag
            for option in options_of(command.options).values()
            if not option.is_hidden and (option.kind in (int, float) or option.metavar in ("N", "N,…", "TOKENS"))
        }
        for command in map(load_command, COMMANDS)
    }
    assert {name: options - ANY for name, options in numeric.items() if options - ANY} == {
        name: set(options) for name, (_, options) in NUMBERS.items() if name in numeric
    }


@pytest.mark.parametrize(("command", "option"), [(name, option) for name, (_, options) in NUMBERS.items() for option in options])
def test_too_small_numbers_have_one_message(compose: Compose, tmp_path: Path, command: str, option: str) -> None:
    """The check runs before anything is read or imported, and nothing is written."""
    needed, options = NUMBERS[command]
    least = options[option]
    value = str(-5 if least > LEAST_SEED else int(least) - 1)
    words = [str(TEACHER) if word == "TEACHER" else word for word in needed]
    result = compose(command, *words, option, value)
    assert result.exit_code == 2
    bound = f"a number of at least {least:g}" if isinstance(least, float) else f"a whole number of at least {least:,}"
    assert result.stderr.splitlines()[-1] == f"{option}: expected {bound}, got {value}"
    assert not list(tmp_path.iterdir())


SEEDED = {
    "build": lambda seed: composer.build("lolcats", TEACHER, seed=seed),
    "build_folder": lambda seed: composer.build_folder("lolcats", TEACHER, "out", seed=seed),
    "generate": lambda seed: composer.generate(TEACHER, "Once", max_new_tokens=1, temperature=1.0, seed=seed),
    "sample": lambda seed: composer.sample(TEACHER, "texts.jsonl", texts=1, length=4, seed=seed),
}


@pytest.mark.parametrize("name", SEEDED)
def test_seeds_beyond_64_bits_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest seed is accepted. A larger one is rejected, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    for value in (2**63, 2**70, -(2**63) - 1, 1.5, True):
        with pytest.raises(ComposerError, match=r"^(--)?seed"):
            SEEDED[name](value)
    assert not list(tmp_path.iterdir())
    SEEDED[name](2**63 - 1)


def test_dtypes_are_refused_in_the_same_words() -> None:
    value: Any = "float46"
    messages = set()
    for call in (
        lambda: composer.build("lolcats", TEACHER, dtype=value),
        lambda: composer.build_folder("lolcats", TEACHER, dtype=value),
        lambda: composer.explain("lolcats", dtype=value),
        lambda: composer.load("nowhere", dtype=value),
        lambda: composer.draw("lolcats", dtype=value),
        lambda: composer.bench(TEACHER, prefill=8, dtype=value),
    ):
        with pytest.raises(ComposerError) as caught:
            call()
        messages.add(str(caught.value))
    (message,) = messages
    assert message.startswith('dtype: "float46" is unknown; did you mean "float64"')
