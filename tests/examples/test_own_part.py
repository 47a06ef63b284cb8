"""The example package's tests and the laws for its parts run by the plugin, which also finds a part that breaks a law."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.laws.suite import parts_under_test
from tests.composer.programs import printed_behind_composer
from tests.outside import EXAMPLE, GATE

pytestmark = pytest.mark.long

README = EXAMPLE / "README.md"
BROKEN = GATE.replace("-self.rate)", "-self.rate) * (inputs.shape[1] > 1)")
"""A gate that forgets nothing in a call of one token."""


def run_laws(folder: Path, *arguments: str) -> str:
    """Return pytest's output in a folder. It has to succeed, or to fail a test."""
    options = ["-p", "composer.laws.plugin", "-p", "no:cacheprovider", "-p", "no:randomly", "-v", *arguments]
    code = f"""
        import pytest
        sys.path.insert(0, {str(EXAMPLE)!r})
        assert pytest.main({options!r}) in (0, 1)
    """
    return printed_behind_composer(code, folder)


def test_the_example_package_passes_its_tests_and_laws() -> None:
    """The options are those of its own pyproject.toml."""
    output = run_laws(EXAMPLE, "-k", "test_own_part or test_kernel or uneven or rows")
    assert " failed" not in output
    for place in (
        "tests/test_own_part.py::test_queries_see_the_last_multiples PASSED",
        "test_kernel[calls, own_part.strided: each query against the pairs that it sees, in one pass] PASSED",
        "test_law[gate: own_part.between-a text in calls is the whole, uneven] PASSED",
        "test_law[memory: own_part.strided above a state-rows are independent] PASSED",
    ):
        assert place in output


def test_a_part_that_breaks_a_law_fails_that_law(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN, encoding="utf-8")
    output = run_laws(tmp_path, "--composer-parts", "mine.py", "-k", "calls or rows")
    assert "test_law[gate: mine.slow-a text in calls is the whole, one by one] FAILED" in output
    assert "test_law[gate: mine.slow-rows are independent] PASSED" in output


def test_parts_that_cannot_be_registered_are_refused() -> None:
    """pytest prints the error and runs no test."""
    with pytest.raises(pytest.UsageError, match="--composer-parts: there is no module `no_such_package` here"):
        parts_under_test(("no_such_package",))


def test_the_readme_is_short_and_names_every_file() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    files = [path for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".yaml", ".toml")]
    assert len(files) >= 7
    missing = [path.name for path in files if str(path.relative_to(EXAMPLE)) not in text]
    assert not missing


@pytest.mark.parametrize("word", ["attention_composer.parts", "--composer-parts own_part"])
def test_the_project_file_registers_the_parts(word: str) -> None:
    assert word in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
