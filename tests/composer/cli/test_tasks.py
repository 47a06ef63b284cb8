"""`compose tasks` lists exactly the tasks that `eval` and training accept, with their options."""

from __future__ import annotations

import json

import pytest

from composer.evaluation.arguments import KINDS, read_tasks
from composer.evaluation.options import EvaluationOptions
from tests.composer.cli.conftest import Compose
from tests.composer.programs import printed


def test_the_list_has_every_task_with_its_kind_of_score(compose: Compose) -> None:
    result = compose("tasks")
    assert result.exit_code == 0
    rows = [line.split(maxsplit=2) for line in result.stdout.splitlines() if line.startswith("  ") and line[2] != " "][1:]
    assert [row[0] for row in rows] == list(KINDS)
    assert all(row[1] == KINDS[row[0]].scored for row in rows)


@pytest.mark.parametrize("name", KINDS)
def test_a_single_task_is_described(compose: Compose, name: str) -> None:
    """`--tasks` accepts each listed option with its default. samples, seed and length exist for all tasks."""
    (from_json,) = json.loads(compose("tasks", name, "--json").stdout)
    result = compose("tasks", name)
    assert result.exit_code == 0
    for option in from_json["options"]:
        assert f"\n  {option['name']}: " in result.stdout
        assert option["type"]
        default = option["default"]
        if default is not None and not option["required"]:
            text = str(default).lower() if isinstance(default, bool) else default
            file = "" if name != "perplexity" else ",text=x"
            (from_options,) = read_tasks([f"{name}{file},{option['name']}={text}"], EvaluationOptions())
            assert from_options.task.name == name
    assert {option["name"] for option in from_json["options"]}.isdisjoint({"samples", "seed", "length", "kind"})


def test_unknown_tasks_are_refused(compose: Compose) -> None:
    result = compose("tasks", "recal")
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'No task "recal"; did you mean "recall"?' in result.stderr


def test_the_list_is_printed_without_torch() -> None:
    """The list is printed without torch."""
    program = "import sys; from composer.cli.main import app; import contextlib\n"
    program += "with contextlib.suppress(SystemExit): app(['tasks'])\n"
    program += "print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert printed(program).splitlines()[-1] == "False False"
