"""Models from the Hub, through ``huggingface_hub`` and its cache."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from converters.bounded import MOST_CONFIG, MOST_RECORD, read_json, shorten, within
from converters.composed import ADAPTER_CONFIG, ADAPTER_KEY, EXPORT, RECORD
from converters.endpoint import MOST_FILES, checked_answers, patience
from converters.errors import HubError
from converters.licences import CARD, LICENCE_FILES
from converters.model_types import is_composed_type
from converters.source import BROUGHT_ALONG, INDEX, TOKENIZER

HUB = "hub:"
"""Before a name on the Hub, where a folder or a file might be meant."""
_LOG = logging.getLogger(__name__)
_REPO_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
LONGEST_ID = 96
"""Characters of a repository's name, as the Hub allows them."""
LONGEST_NAME = 200
"""Characters of a name that a message shows."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


def fetch(
    repo_id: str, revision: str | None = None, *, weights: bool = True, tokenizer: bool = False, file: str | None = None
) -> tuple[Path, str | None]:
    """Download a model into the Hub's local cache. Return its folder there, and the commit of ``revision``.

    weights: False downloads only ``config.json`` and the config of adapters, or, with ``tokenizer``, also its tokenizer. The record
    and adapters of a model of this project are downloaded, too. Pickles are never downloaded. file: download only this file, and
    the files with its licence. A ``HubError`` states what to do.
    """
    beside = ["*.safetensors", INDEX, CARD, *BROUGHT_ALONG] if weights else TOKENIZER if tokenizer else ()
    wanted = ["config.json", ADAPTER_CONFIG, *beside] if file is None else [glob.escape(file), CARD, *LICENCE_FILES]
    with _hub_request(repo_id, revision):
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(repo_id, revision=revision, allow_patterns=wanted, ignore_patterns=_LEFT_THERE))
        commit = folder.name if _COMMIT.fullmatch(folder.name) else None
        if weights and file is None and (file_names := _beside(folder)):
            snapshot_download(repo_id, revision=commit or revision, allow_patterns=file_names)
    if file is not None and not (folder / file).exists():
        model_name = _name_of(repo_id, revision)
        raise HubError(f"{model_name} has no file {file!r}, or the Hub cannot be reached. Check the name on the model's page.")
    return folder, commit


def fetch_files(repo_id: str, revision: str | None, names: Iterable[str]) -> Path:
    """Download the files of these names into the Hub's local cache, as far as the repository has them. Return its folder there.

    Raises HubError as ``fetch`` does.
    """
    with _hub_request(repo_id, revision):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=[glob.escape(name) for name in sorted(names)]))


def fetch_recorded(repo_id: str, revision: str | None) -> Path:
    """Download a built or an exported model with all files that its record names, and no others. Return its folder in the Hub's
    local cache.

    Raises HubError as ``fetch`` does, and for a repository without a record.
    """
    folder = fetch_files(repo_id, revision, (RECORD, EXPORT))
    names = read_recorded_names(folder)
    if not names:
        raise HubError(
            f"{_name_of(repo_id, revision)} has no {RECORD} and no {EXPORT}; expected a model that `compose push` wrote."
        )
    if len(names) > MOST_FILES:
        raise HubError(f"The record of {_name_of(repo_id, revision)} names {len(names):,} files; expected at most {MOST_FILES:,}.")
    commit = folder.name if _COMMIT.fullmatch(folder.name) else revision
    return fetch_files(repo_id, commit, names)


def read_recorded_names(folder: Path) -> set[str]:
    """Return the names of the files that the record of a built or an exported model lists, and of the record; none without a
    record."""
    for record, keys in ((EXPORT, ("files",)), (RECORD, ("files", "documents"))):
        try:
            document = read_json(within(folder, record), MOST_RECORD)
        except (OSError, ValueError):
            continue
        lists = [document.get(key) for key in keys] if isinstance(document, Mapping) else []
        return {record, *(str(name) for names in lists if isinstance(names, Mapping) for name in names)}
    return set()


def _name_of(repo_id: str, revision: str | None) -> str:
    return f"{repo_id!r}" + (f" at revision {revision!r}" if revision else "")


@contextmanager
def _hub_request(repo_id: str, revision: str | None) -> Iterator[None]:
    """For the block, limit the time for an answer of the Hub, and raise errors of ``huggingface_hub`` as HubErrors."""
    if not _REPO_ID.fullmatch(repo_id) or len(repo_id) > LONGEST_ID:
        raise HubError(
            f"{shorten(repr(repo_id), LONGEST_NAME)} is neither a folder here nor a model's name on the Hub, such as 'owner/model'."
        )
    from huggingface_hub import constants, errors

    model_name = _name_of(repo_id, revision)
    if not _is_offline():
        _LOG.info(f"Requesting {model_name} from the Hub, with a limit of {patience()} s for each answer (HF_HUB_ETAG_TIMEOUT) …")
    try:
        with checked_answers():
            yield
    except HubError:
        raise
    except errors.GatedRepoError as error:
        raise HubError(
            f"{model_name} is gated: accept its terms on its page on the Hub, then log in with `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{repo_id!r} has no revision {revision!r}. Name a branch, a tag or a commit.") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{repo_id!r} is not a folder here, and the Hub has no such model, or it is private: "
            "check the name, or log in with `hf auth login`."
        ) from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        if _is_offline():
            reason, remedy = "HF_HUB_OFFLINE is set, so the Hub was not asked", "Unset HF_HUB_OFFLINE"
        elif type(error.__cause__).__name__.endswith("Timeout"):
            reason = f"the Hub has not answered within {patience()} s"
            remedy = "Wait longer (HF_HUB_ETAG_TIMEOUT=SECONDS)"
        else:
            reason, remedy = "the Hub cannot be reached", "Connect"
        raise HubError(
            f"{model_name} is not a folder here, not (or not all) in the Hub's local cache, and {reason}. {remedy}, or name a "
            "folder."
        ) from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise HubError(f"Fetching {model_name} failed: {_on_one_line(error)}") from error
    except Exception as error:  # for an answer of another form, the library raises errors of any class
        problem = _on_one_line(error).rstrip(".")
        raise HubError(
            f"Fetching {model_name} failed, as {constants.ENDPOINT} does not answer as a Hub does: {problem}."
        ) from error


def _on_one_line(error: Exception) -> str:
    return shorten(" ".join(str(error).split()) or type(error).__name__, 500)


def _is_offline() -> bool:
    """Return whether huggingface_hub sends no requests."""
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def _beside(folder: Path) -> list[str]:
    """Patterns of the files beside the weights of a model of this project, by its config, which has been fetched."""
    try:
        config = read_json(folder / "config.json", MOST_CONFIG)
    except (OSError, ValueError):  # the error is raised where the model is read
        return []
    if not isinstance(config, dict) or not is_composed_type(config.get("model_type")):
        return []
    adapter = config.get(ADAPTER_KEY)
    within = [] if adapter is None else [f"{glob.escape(str(adapter))}/{name}" for name in (ADAPTER_CONFIG, "*.safetensors")]
    return [RECORD, *within]


_LEFT_THERE = ["original/*", "*/*.safetensors", "consolidated*"]
