"""Writes files to a repository of the Hub in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from blocks.part import Closed
from composer.errors import PushError
from composer.publishing.contents import SPEC_FILES, Contents, ContentsKind
from composer.reporting.tables import Readable, Table, View
from composer.spec.built_models import NAMED
from composer.weights.record import RECORD
from converters.bounded import brief, list_first
from converters.composed import EXPORT, SPEC_FILE
from converters.endpoint import checked_answers
from converters.errors import ConverterError
from converters.hub import HUB, LONGEST_ID, fetch_files, read_recorded_names

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
OF_THE_HUB = ".gitattributes"
"""The file that the Hub writes into each new repository."""
IN_WORDS: dict[ContentsKind, str] = {"model": "a built model", "export": "an export", "spec": "a spec"}


class PushReport(Readable, Closed):
    """A push. files: bytes of each file, by its path in the repository; left_out: files of the folder that no record names, which
    are not uploaded; removed: files of an earlier push that are no longer part of it; commit: None for a dry run."""

    kind: ContentsKind
    repo_id: str
    branch: str
    private: bool
    files: dict[str, int]
    left_out: tuple[str, ...]
    removed: tuple[str, ...] = ()
    commit: str | None = None
    url: str | None = None

    @property
    def table(self) -> Table:
        """A row a file."""
        rows = tuple((name, f"{size:,}") for name, size in self.files.items())
        return Table("", ("file", "bytes"), (*rows, ("all", f"{sum(self.files.values()):,}")))

    @property
    def headline(self) -> str:
        target = self.repo_id if self.branch == MAIN else f"{self.repo_id}@{self.branch}"
        return f"{'Would push to' if self.commit is None else 'Pushed to'} {target}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Where the files are, and which files of the folder are not there."""
        notes = [] if self.url is None else [f"{self.url}, commit {self.commit}"]
        notes += [f"not uploaded, as no record names them: {list_first(self.left_out)}"] if self.left_out else []
        notes += [f"removed, as they belonged to an earlier push: {list_first(self.removed)}"] if self.removed else []
        return tuple(notes)

    def view(self) -> View:
        return View(self.headline, (self.table,), self.remarks)


def check_repo_id(repo_id: str) -> None:
    """Raise PushError for a name that is not OWNER/NAME."""
    match = NAMED.fullmatch(f"{HUB}{repo_id}")
    if match is None or match["file"] is not None or match["revision"] is not None or len(repo_id) > LONGEST_ID:
        raise PushError(f"{brief(repo_id)} is no repository of the Hub; expected OWNER/NAME, of at most {LONGEST_ID} characters.")


def plan_push(contents: Contents, repo_id: str, branch: str, *, private: bool) -> PushReport:
    """Return the report of a dry run, without a request to the Hub."""
    return PushReport(
        kind=contents.kind, repo_id=repo_id, branch=branch, private=private, files=contents.sizes, left_out=contents.left_out
    )


def push_contents(contents: Contents, repo_id: str, branch: str, *, private: bool, force: bool) -> PushReport:
    """Upload files to a repository, which is created if it does not exist.

    A repository with other files, or with contents of another kind, is refused unless ``force``. Files of an earlier push that are
    no longer part of the contents are removed; other files are kept. Raises PushError.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    with _in_words(repo_id):
        api = HfApi()
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        is_new = _make_branch(api, repo_id, branch)
        info: Any = api.model_info(repo_id, revision=branch)
        present = {file.rfilename for file in info.siblings or ()} - {OF_THE_HUB}
        pushed_files = present if is_new else _read_known_files(repo_id, info.sha, present)
        if not (force or is_new):
            _check_replaceable(contents, repo_id, present, pushed_files)
        removed = sorted((present & pushed_files) - contents.files.keys())
        operations: list[Any] = [CommitOperationDelete(path_in_repo=name) for name in removed]
        operations += [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=file if isinstance(file, bytes) else str(file))
            for name, file in sorted(contents.files.items())
        ]
        commit = api.create_commit(
            repo_id, operations, commit_message=f"Push {IN_WORDS[contents.kind]}", revision=branch, parent_commit=info.sha
        )
    done = {"commit": commit.oid, "url": str(url), "removed": () if is_new else tuple(removed)}
    return plan_push(contents, repo_id, branch, private=bool(info.private)).model_copy(update=done)


def _make_branch(api: HfApi, repo_id: str, branch: str) -> bool:
    """Create a branch where there is none. Return whether it was created: it begins with the files of the main one."""
    if branch == MAIN or branch in {ref.name for ref in api.list_repo_refs(repo_id).branches}:
        return False
    api.create_branch(repo_id, branch=branch)
    return True


def _read_known_files(repo_id: str, commit: str | None, present: set[str]) -> set[str]:
    """Return the files that an earlier push to the repository named."""
    kind = _kind_of(present)
    if kind is None:
        return set()
    if kind == "spec":
        return set(SPEC_FILES)
    return read_recorded_names(fetch_files(repo_id, commit, (RECORD, EXPORT)))


def _kind_of(names: set[str]) -> ContentsKind | None:
    """What a repository with these files holds; None where it holds nothing of this project."""
    kinds: tuple[tuple[str, ContentsKind], ...] = ((EXPORT, "export"), (RECORD, "model"), (SPEC_FILE, "spec"))
    return next((kind for file, kind in kinds if file in names), None)


def _check_replaceable(contents: Contents, repo_id: str, present: set[str], pushed_files: set[str]) -> None:
    """Raise PushError for a repository whose files must not be replaced."""
    kind = _kind_of(present)
    if kind is not None and kind != contents.kind:
        raise PushError(
            f"{repo_id} holds {IN_WORDS[kind]}, and this is {IN_WORDS[contents.kind]}. Push it to a separate branch "
            "(--branch NAME), or to another repository, or replace what is there: --force"
        )
    if strangers := sorted(present - pushed_files):
        raise PushError(
            f"{repo_id} has files that `compose push` did not write ({list_first(strangers)}). Choose another repository, or write "
            "beside them, replacing files of the same name: --force"
        )


@contextmanager
def progress_bars(*, visible: bool) -> Iterator[None]:
    """For the block, show or hide the progress bars of ``huggingface_hub``."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if visible or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def _in_words(repo_id: str) -> Iterator[None]:
    """For the block, raise errors of ``huggingface_hub`` as PushErrors of one sentence and what to do."""
    from huggingface_hub import constants, errors

    transport: type[Exception] = errors.HfHubHTTPError.__bases__[0]  # of httpx, whichever version huggingface_hub uses
    log_in = "log in with a token that may write there: `hf auth login`."
    try:
        with checked_answers():
            yield
    except errors.OfflineModeIsEnabled as error:
        raise PushError(f"{repo_id} cannot be pushed to, as HF_HUB_OFFLINE is set. Unset it, and push again.") from error
    except errors.LocalTokenNotFoundError as error:
        raise PushError(f"{repo_id} cannot be pushed to without a token: {log_in}") from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403, 404):
            raise PushError(f"The Hub does not let you write to {repo_id} (status {status}): {log_in}") from error
        if status in (409, 412):
            raise PushError(f"{repo_id} was changed while this was pushed. Push again.") from error
        raise PushError(f"The Hub refused the push to {repo_id} (status {status}): {_last_line(error)}") from error
    except ConverterError as error:
        raise PushError(str(error)) from error
    except errors.HFValidationError as error:
        raise PushError(f"{repo_id} cannot be pushed to: {_last_line(error)}") from error
    except (transport, OSError) as error:
        raise PushError(
            f"The Hub cannot be reached for the push to {repo_id}: {_last_line(error)}. Connect, and push again."
        ) from error
    except Exception as error:  # for an answer of another form, the library raises errors of any class
        raise PushError(
            f"{repo_id} cannot be pushed to, as {constants.ENDPOINT} does not answer as a Hub does: {_last_line(error)}."
        ) from error


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
