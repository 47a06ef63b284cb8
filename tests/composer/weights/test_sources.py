"""A model's name is a folder first and a repository after that; what converters refuse is told as a source error."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.errors import SourceError
from composer.weights import sources
from composer.weights.dimensions import dimensions
from composer.weights.naming import default_output
from composer.weights.sources import describe_model, open_model
from tests.checkpoints import LLAMA3_ROPE, llama


def test_a_folder_wins_over_a_repository_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_a_revision_of_a_folder_is_a_mistake(tmp_path: Path):
    with pytest.raises(SourceError, match="revision"):
        open_model(llama(tmp_path), "main")


@pytest.mark.parametrize("reader", [open_model, describe_model])
def test_what_is_wrong_with_a_source_is_told_to_the_user(tmp_path: Path, reader):
    with pytest.raises(SourceError, match="neither a folder here nor"):
        reader(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"no config\.json"):
        reader(tmp_path)


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
