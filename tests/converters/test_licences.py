"""The fields of a card that state a licence are read, whatever else its front matter has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from converters.errors import WeightsError
from converters.licences import read_card_licence
from converters.source import BROUGHT_ALONG, small_files


@pytest.mark.parametrize(
    ("front", "fields"),
    [
        ("license: llama3.2", {"license": "llama3.2"}),
        ("tags: [a]\nlicense: 'mit'\nlanguage: en", {"license": "mit"}),
        ("license:\n- mit\n- apache-2.0\ntags: x", {"license": ("mit", "apache-2.0")}),
        (
            "license: other\nlicense_name: mine\nlicense_link: LICENSE",
            {"license": "other", "license_name": "mine", "license_link": "LICENSE"},
        ),
        ("license: mit\nbroken: [", {"license": "mit"}),
        ("license: no", {}),
        ("license:", {}),
        (f"license: {'x' * 501}", {}),
        ("license: {a: b}", {}),
        ("model:\n  license: mit", {}),
        ("licensed: mit", {}),
        ("license: mit\nlicense: gpl", {"license": "mit"}),
        ("license: no\nlicense: gpl", {}),
        ("license: !!bool x", {}),
        ("license: !!int ''", {}),
        ("license: !!timestamp x", {}),
        ("license: [a, !!bool z]", {}),
        ("license: *a", {}),
        ('license: "\\UFFFFFFFF"', {}),
        ("license: mit\n" * 200_000, {}),
    ],
)
def test_the_fields_of_a_card_are_read(tmp_path: Path, front: str, fields: dict[str, object]) -> None:
    for newline in ("\n", "\r\n"):
        text = f"---\n{front}\n---\n# Model\n\nlicense: gpl\n".replace("\n", newline)
        (tmp_path / "README.md").write_bytes(text.encode())
        assert read_card_licence(tmp_path) == fields


@pytest.mark.parametrize("text", [b"", b"# Model\nlicense: mit\n", b"---\nlicense: mit\n", b"---\nlicense: \xff\n---\n"])
def test_a_card_without_front_matter_states_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "README.md").write_bytes(text)
    assert read_card_licence(tmp_path) == {}


def test_a_card_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("---\nlicense: mit\n---\n")
    (tmp_path / "model").mkdir()
    assert read_card_licence(tmp_path / "model") == {}
    (tmp_path / "model" / "README.md").symlink_to(tmp_path / "secret.md")
    assert read_card_licence(tmp_path / "model") == {}


@pytest.mark.parametrize(
    "name",
    [
        "LICENSE",
        "LICENSE-2.0",
        "Llama-3.2-LICENSE",
        "licence.md",
        "Notice",
        "USE_POLICY.md",
        "MODEL_LICENSE",
        "COPYING",
        "THIRD_PARTY_NOTICES",
    ],
)
def test_files_with_terms_are_found_in_any_case(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("terms")
    assert small_files(tmp_path, BROUGHT_ALONG) == (name,)


@pytest.mark.parametrize("name", ["modeling_license.py", "license.safetensors", "LICENSE.tar.gz", "notice.json", "license.bin"])
def test_code_and_weights_are_no_files_with_terms(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert small_files(tmp_path, BROUGHT_ALONG) == ()


@pytest.mark.parametrize("name", [b"LICENSE\xff", b"LICENSE\\a"])
def test_names_that_no_record_can_have_are_refused(tmp_path: Path, name: bytes) -> None:
    (tmp_path / os.fsdecode(name)).write_text("")
    with pytest.raises(WeightsError, match="rename it: expected UTF-8 without a backslash"):
        small_files(tmp_path, BROUGHT_ALONG)
