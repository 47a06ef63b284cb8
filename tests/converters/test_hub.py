"""A model comes from the Hub's cache at a pinned commit, weights only as safetensors, and every failure says what to do."""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects

from converters.errors import HubError
from converters.hub import fetch
from converters.licences import CARD, LICENCE_FILES

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ADAPTER = "adapter/adapter_model.safetensors"


@pytest.fixture
def hub_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict:
    """A replacement for the Hub. Returns the recorded calls."""
    seen: dict = {}

    def snapshot_download(repo_id: str, **options: object) -> str:
        seen.update(options, repo_id=repo_id)
        return str(tmp_path / "models--owner--model" / "snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return seen


def test_the_revision_is_resolved_to_a_commit(hub_calls: dict):
    folder, commit = fetch("owner/model", "main")
    assert (hub_calls["repo_id"], hub_calls["revision"]) == ("owner/model", "main")
    assert commit == COMMIT == folder.name


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("config.json", True),
        ("model.safetensors", True),
        ("model-00001-of-00003.safetensors", True),
        ("model.safetensors.index.json", True),
        ("tokenizer.json", True),
        ("tokenizer.model", True),
        ("additional_chat_templates/rag.jinja", True),
        ("LICENSE", True),
        ("Notice.txt", True),
        ("README.md", True),
        ("pytorch_model.bin", False),
        ("original/consolidated.00.pth", False),
        ("original/tokenizer.model", False),
        ("consolidated.safetensors", False),
        ("checkpoint-10/model.safetensors", False),
        ("model.gguf", False),
    ],
)
def test_only_what_a_build_needs_is_fetched(hub_calls: dict, file: str, wanted: bool):
    fetch("owner/model")
    allowed = any(fnmatch.fnmatch(file, pattern) for pattern in hub_calls["allow_patterns"])
    ignored = any(fnmatch.fnmatch(file, pattern) for pattern in hub_calls["ignore_patterns"])
    assert (allowed and not ignored) == wanted


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"model_type": "composed", "adapter": "adapter"}, {"composition.json", "adapter/adapter_config.json", ADAPTER}),
        ({"model_type": "composed", "adapter": "a*"}, {"composition.json"}),
        ({"model_type": "composed"}, {"composition.json"}),
        ({"model_type": "composed_qwen3", "adapter": "adapter"}, {"composition.json", "adapter/adapter_config.json", ADAPTER}),
        ({"model_type": ["composed"]}, set()),
        ({"model_type": "llama", "adapter": "adapter"}, set()),
        ([], set()),
    ],
)
def test_composed_models_are_fetched_with_record_and_adapters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: object, wanted: set[str]
):
    """All files are of one commit, and files in other folders of the repository are ignored."""
    always = {"config.json", "fresh.safetensors", "tokenizer.json"}
    never = {
        "original/model.safetensors",
        "checkpoint-10/adapter_model.safetensors",
        "adapter/adapter_model.bin",
        "training/log.jsonl",
    }
    files = sorted(always | never | {"composition.json", "adapter/adapter_config.json", ADAPTER})
    folder, fetched, revisions = tmp_path / COMMIT, set(), []
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))

    def snapshot_download(repo_id: str, *, revision: str | None, **patterns: Any) -> str:
        revisions.append(revision)
        fetched.update(filter_repo_objects(files, **patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert fetch("owner/model", "main") == (folder, COMMIT)
    assert fetched == always | wanted
    assert revisions == (["main", COMMIT] if wanted else ["main"])


def test_the_configs_can_be_fetched_alone(hub_calls: dict):
    fetch("owner/model", weights=False)
    assert hub_calls["allow_patterns"] == ["config.json", "adapter_config.json"]


def test_a_tokenizer_can_be_fetched_without_weights(hub_calls: dict):
    fetch("owner/model", weights=False, tokenizer=True)
    assert {"config.json", "tokenizer*"} <= set(hub_calls["allow_patterns"])
    assert not any(
        fnmatch.fnmatch(file, pattern) for pattern in hub_calls["allow_patterns"] for file in ("model.safetensors", "x.bin")
    )


def answered(status: int) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.GatedRepoError("gated", response=answered(403)), "gated: accept its terms.*hf auth login"),
        (errors.RepositoryNotFoundError("404", response=answered(404)), "not a folder here, and the Hub has no such model"),
        (errors.RevisionNotFoundError("404", response=answered(404)), "no revision 'v9'"),
        (errors.OfflineModeIsEnabled("offline"), "Hub cannot be reached"),
        (errors.LocalEntryNotFoundError("nothing cached"), "Hub cannot be reached"),
        (errors.HfHubHTTPError("500", response=answered(500)), "Fetching 'owner/model' at revision 'v9' failed: 500"),
        (OSError(28, "No space left on device"), "failed: .*No space left"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_explain_what_to_do(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str):
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(HubError, match=message):
        fetch("owner/model", "v9")


@pytest.mark.parametrize("name", ["../models/llama", "./llama", "/models/llama", "a/b/c", "", "owner/", "what?"])
def test_a_path_is_never_looked_up_as_a_repository(hub_calls: dict, name: str):
    with pytest.raises(HubError, match="neither a folder here nor a model's name"):
        fetch(name)
    assert not hub_calls


def test_a_model_in_the_cache_is_found_without_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--owner--model"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    assert fetch("owner/model") == fetch("owner/model", "main") == fetch("owner/model", COMMIT) == (snapshot, COMMIT)
    offline = r"HF_HUB_OFFLINE is set, so the Hub was not asked\. Unset HF_HUB_OFFLINE, or name a folder\."
    with pytest.raises(HubError, match=offline):
        fetch("owner/model", "v9")
    with pytest.raises(HubError, match=offline):
        fetch("owner/other")


def test_reading_a_folder_imports_neither_torch_nor_the_hub():
    code = "import sys, converters.source, converters.hub; print([m for m in ('torch', 'huggingface_hub') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_is_fetched_alone(hub_calls: dict) -> None:
    with pytest.raises(HubError, match="'owner/model' has no file 'sub/a\\[1\\].gguf', or the Hub cannot be reached"):
        fetch("owner/model", file="sub/a[1].gguf")
    assert hub_calls["allow_patterns"] == ["sub/a[[]1].gguf", CARD, *LICENCE_FILES]
    assert fnmatch.fnmatch("sub/a[1].gguf", hub_calls["allow_patterns"][0])
