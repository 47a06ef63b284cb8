"""A model's name is a folder first and a repository otherwise. Rejections by converters are source errors."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from composer.errors import SourceError
from composer.weights import sources
from composer.weights.config import dimensions
from composer.weights.sources import default_output, describe_model, open_model, tokenizer_folder
from tests.checkpoints import LLAMA3_ROPE, llama
from tests.gguf_files import gguf_model, write_gguf


def test_folders_take_precedence_over_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    llama(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "fetch", lambda *_: pytest.fail("asked the Hub"))
    source = open_model("owner/model")
    assert (source.folder, source.repo_id, source.commit) == (tmp_path / "owner" / "model", None, None)


def test_a_repository_is_pinned_to_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = llama(tmp_path / "snapshot")
    monkeypatch.setattr(sources, "fetch", lambda repo_id, revision: (folder, f"commit of {repo_id} at {revision}"))
    source = open_model("owner/model", "v2")
    assert (source.repo_id, source.revision, source.commit) == ("owner/model", "v2", "commit of owner/model at v2")
    assert default_output("lawcat", source) == Path("lawcat-model")


@pytest.mark.parametrize("reference", ["owner/model@v2", "hub:owner/model@v2"])
def test_revisions_may_follow_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str):
    folder, calls = llama(tmp_path / "snapshot"), []

    def fetch(*place: object, **_: object) -> tuple[Path, str]:
        calls.append(place)
        return folder, "commit"

    monkeypatch.setattr(sources, "fetch", fetch)
    source = open_model(reference)
    assert (source.repo_id, source.revision, source.commit) == ("owner/model", "v2", "commit")
    describe_model(reference)
    tokenizer_folder(reference)
    assert calls == [("owner/model", "v2")] * 3
    for reader in (open_model, describe_model):
        with pytest.raises(SourceError, match="leave one of them out"):
            reader(reference, "v3")
    assert len(calls) == 3


@pytest.mark.parametrize("reference", ["lawcat", "mine.yaml", "ablations/lawcat-rope:none"])
def test_specs_in_place_of_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str):
    """The Hub is not queried for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "fetch", lambda *_, **__: pytest.fail("asked the Hub"))
    (tmp_path / "mine.yaml").write_text("compose: 1")
    for reader in (open_model, describe_model, tokenizer_folder):
        with pytest.raises(
            SourceError, match=f"^{reference} is a spec, and this is for models. Build it first: `compose build {reference} "
        ):
            reader(reference)
    llama(tmp_path / "lawcat")
    assert describe_model("lawcat").trunk.hidden_size, "a folder of that name is a model"


def test_folder_names_may_contain_the_revision_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the Hub"))
    llama(tmp_path / "owner" / "model@v2")
    assert open_model("owner/model@v2").folder == tmp_path / "owner" / "model@v2"
    with pytest.raises(SourceError, match=r"'owner/model@v2' is a folder here"):
        open_model("owner/model@v2", "v3")
    with pytest.raises(SourceError, match=f"'{tmp_path}/user@host/model' is neither a folder here nor"):
        open_model(tmp_path / "user@host" / "model")


def test_revisions_of_folders_are_refused(tmp_path: Path):
    with pytest.raises(SourceError, match="revision"):
        open_model(llama(tmp_path), "main")


@pytest.mark.parametrize("reader", [open_model, describe_model])
def test_invalid_sources_are_reported(tmp_path: Path, reader):
    with pytest.raises(SourceError, match="neither a folder here nor"):
        reader(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(SourceError, match=r"no config\.json"):
        reader(tmp_path)


SLIPS = {
    "beside it": (
        "examples/teahcer",
        r'^there is no folder "examples/teahcer"; did you mean "examples/teacher"\? A model of the Hub ',
    ),
    "in its parent": ("exampels/teacher", r'"exampels/teacher"; did you mean "examples/teacher"\?'),
    "here": ("studnet", r'"studnet"; did you mean "student"\?$'),
    "a path": ("./examples/teahcer", r'"\./examples/teahcer"; did you mean "examples/teacher"\?$'),
    "nothing near": ("examples/other", r'there is no folder "examples/other" in examples\. .* is hub:examples/other\.$'),
    "a path to nothing": ("./nothing", "neither a folder here nor"),
    "no model": ("examples/empyt", r'there is no folder "examples/empyt" in examples\.'),
    "a file": ("examples/teacher/config.json", r"is a file; expected .* or a file \*\.gguf\. .* in: examples/teacher$"),
    "many slashes": ("a/b/c", "neither a folder here nor"),
}


@pytest.mark.parametrize("reader", [open_model, describe_model])
@pytest.mark.parametrize("slip", SLIPS)
def test_misspelt_folders_are_not_looked_up_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slip: str, reader):
    llama(tmp_path / "examples" / "teacher")
    llama(tmp_path / "student")
    (tmp_path / "examples" / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the Hub"))
    reference, message = SLIPS[slip]
    with pytest.raises(SourceError, match=message):
        reader(reference)


def test_repositories_are_looked_up_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, calls = llama(tmp_path / "owner" / "model"), []
    monkeypatch.chdir(tmp_path)

    def fetch(repo_id: str, *_: object, **__: object) -> tuple[Path, None]:
        calls.append(repo_id)
        return folder, None

    monkeypatch.setattr(sources, "fetch", fetch)
    for reference in ("hub:owner/modle", "hub:owner/model", "other/model"):
        assert open_model(reference).repo_id == reference.removeprefix("hub:")
    assert describe_model("hub:owner/modle")
    assert calls == ["owner/modle", "owner/model", "other/model", "owner/modle"]


def test_a_description_needs_no_weights(tmp_path: Path):
    folder = llama(tmp_path, rope_parameters=LLAMA3_ROPE)
    (folder / "model.safetensors").unlink()
    size = dimensions(describe_model(folder).trunk)
    assert (size.hidden_size, size.layers, size.heads, size.key_heads, size.head_dim) == (32, 2, 4, 2, 8)
    assert size.rope_theta == 500000.0
    assert size.rope_scaling is not None
    assert (size.rope_scaling.factor, size.rope_scaling.original_length) == (8.0, 64)
    assert (size.rope_scaling.low_frequency_factor, size.rope_scaling.high_frequency_factor) == (1.0, 4.0)


def test_the_default_output_is_called_after_spec_and_source(tmp_path: Path):
    assert default_output("lawcat", open_model(llama(tmp_path / "Llama-3.2-1B"))) == Path("lawcat-Llama-3.2-1B")


@pytest.mark.parametrize(
    ("reference", "place"),
    [
        ("hub:owner/model/sub/tiny.gguf", ("owner/model", None, "sub/tiny.gguf")),
        ("hub:owner/model/tiny.gguf@refs/pr/1", ("owner/model", "refs/pr/1", "tiny.gguf")),
        ("hub:owner/model/tiny.GGUF", ("owner/model", None, "tiny.GGUF")),
        ("hub:owner/model.gguf", ("owner/model.gguf", None, None)),
        ("hub:owner/model.gguf@v2", ("owner/model.gguf", "v2", None)),
    ],
)
def test_gguf_files_of_the_hub_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, place: tuple[str, str | None, str | None]
) -> None:
    """Only the file is downloaded, and the record names its repository and its commit."""
    calls = []
    repo_id, revision, name = place
    folder = tmp_path / "snapshot"
    if name is None:
        llama(folder)
    else:
        (folder / name).parent.mkdir(parents=True)
        write_gguf(folder / name, gguf_model("llama"))

    def fetch(*asked_for: object, **options: object) -> tuple[Path, str]:
        calls.append((*asked_for, options.get("file")))
        return folder, "commit"

    monkeypatch.setattr(sources, "fetch", fetch)
    source = open_model(reference)
    assert (source.repo_id, source.revision, source.commit) == (repo_id, revision, "commit")
    assert describe_model(reference).trunk.hidden_size == source.trunk.hidden_size
    assert calls == [(repo_id, revision, name)] * 2
    if name is not None:
        assert source.unpacked is not None
        assert source.unpacked.path == folder / name
        assert default_output("lawcat", source) == Path("lawcat-tiny")
        with pytest.raises(SourceError, match=f"compose build softmax --from {reference} -o FOLDER"):
            tokenizer_folder(reference)
