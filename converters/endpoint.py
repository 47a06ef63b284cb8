"""The answers of the Hub's endpoint, or of whatever answers in its place, are checked before ``huggingface_hub`` uses them.

Its library makes names of files in its cache from hashes in headers and in lists of files, and takes for granted that an answer has
the form that the Hub's has. A mirror, a proxy or a network that asks for a login may answer anything.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from converters.bounded import brief, parse_json, shorten
from converters.errors import HubError

MOST_FILES = 10_000
"""Files of a repository, at most."""
MOST_PAGES = 400
"""Pages of lists of files, at most: the Hub's have 50 files or more."""
MOST_ANSWER = 64 * 2**20
"""Bytes of an answer of the API, at most: some 200 for each file."""
LONG = 10
"""The most time for a whole answer of the API, in times of the limit for each of its parts."""
TRIES, PROGRESS = 3, 2**20
"""A file is requested at most so often, unless the bytes between two requests are this many more."""
LONGEST_WAIT = 300
"""Seconds that an answer may ask to wait before the next request, at most: the Hub's limits are for windows of five minutes."""
SLOWEST = 1000
"""Bytes per second that a file must have at least, on average over the time of ``LONG``."""
_HASH = re.compile(r'(W/)?"?[0-9a-f]{32,64}(-[0-9]+)?"?', re.IGNORECASE)
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_ETAG, _LINKED_ETAG, _LINKED_SIZE, _REPO_COMMIT = "ETag", "X-Linked-ETag", "X-Linked-Size", "X-Repo-Commit"
_WAIT = re.compile(r"(?:.*;\s*t=)?\s*(\d+)\s*")
_LISTED = re.compile(r"/api/(models|datasets)/.+/(revision|tree)/")
"""The paths of the API whose answers name a commit, or files and their hashes."""
_FILE = re.compile(r"(?!/api/)|.*/resolve")
"""The paths of files, redirects included."""


@contextmanager
def checked_answers(most_files: int | None = MOST_FILES, *, limit_tries: bool = True) -> Iterator[None]:
    """For the block, limit the time of requests of ``huggingface_hub``, and check the answers. A HubError names what is wrong.

    Requests for lists of files, which the library sends without a time limit, have that of the others.

    most_files: the most files of a repository; None: any number. limit_tries: give up a file whose download is cut off again and
    again. A reader of parts of files needs False.
    """
    from huggingface_hub import get_session

    session = get_session()
    before, check = session.event_hooks, _Checks(most_files, limit_tries)
    session.event_hooks = {"request": [*before["request"], check.request], "response": [*before["response"], check.response]}
    try:
        yield
    finally:
        session.event_hooks = before


def patience() -> int:
    """Seconds for an answer, as huggingface_hub reads them from the environment."""
    from huggingface_hub import constants

    return constants.HF_HUB_ETAG_TIMEOUT


class _Checks:
    """The hooks of one block. files, pages: of all lists so far. starts: of each file, the first byte of each request for it.
    sizes: in bytes, as headers state them. A redirect may change a file's path, so the largest size bounds every file."""

    def __init__(self, most_files: int | None, limit_tries: bool) -> None:
        self.most_files, self.limit_tries = most_files, limit_tries
        self.files = self.pages = 0
        self.starts: dict[str, list[int]] = {}
        self.sizes: list[int] = []

    def request(self, request: Any) -> None:
        if request.method not in ("GET", "HEAD"):
            return  # an upload takes its time
        limits = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {part: limits.get(part) or patience() for part in ("connect", "read", "write", "pool")}
        if not self.limit_tries or request.method == "HEAD" or "/resolve/" not in request.url.path:
            return
        starts = self.starts.setdefault(str(request.url), [])
        starts.append(int((re.match(r"bytes=(\d+)", request.headers.get("Range", "")) or (0, 0))[1]))
        if len(starts) > TRIES and starts[-1] - starts[-1 - TRIES] < PROGRESS:
            raise _refusal(request, f"only a part of the file, {TRIES} times")

    def response(self, response: Any) -> None:
        for header in ("Retry-After", "RateLimit") if response.status_code >= 400 else ():
            wait = _WAIT.fullmatch(response.headers.get(header, ""))
            if wait is not None and (len(wait[1]) > 9 or int(wait[1]) > LONGEST_WAIT):
                raise HubError(f"{response.request.url.host} asks to wait for {shorten(wait[1])} s. Try again after that time.")
        commit = response.headers.get(_REPO_COMMIT)
        if commit is not None and not _COMMIT.fullmatch(commit):
            raise _refusal(response.request, f"the commit {brief(commit)}, and a commit is a hash")
        if response.request.method == "HEAD" and response.status_code < 400:
            etag = response.headers.get(_LINKED_ETAG) or response.headers.get(_ETAG)
            if etag is not None and not _HASH.fullmatch(etag):
                raise _refusal(response.request, f"the ETag {brief(etag)}, and the Hub's are hashes")
            size = response.headers.get(_LINKED_SIZE) or response.headers.get("Content-Length") or ""
            self.sizes += [int(size)] if re.fullmatch(r"\d{1,18}", size) else []
        path, is_get = response.request.url.path, response.request.method == "GET"
        if is_get and response.status_code == 200 and _LISTED.match(path):
            self.check_list(response.request, _read(response))
        elif is_get and self.limit_tries and self.sizes and response.status_code in (200, 206) and _FILE.match(path):
            parts = self.limited(response.request, response.iter_bytes())
            response.iter_bytes = lambda chunk_size=None: parts

    def limited(self, request: Any, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the parts of a file. Raises HubError for a file that does not end, or hardly moves."""
        size, late, until = 0, 0, time.monotonic() + LONG * patience()
        for part in parts:
            size += len(part)
            if size > max(self.sizes):
                raise _refusal(request, f"more than {max(self.sizes):,} bytes, the largest size that it has stated")
            if time.monotonic() > until:
                if size - late < SLOWEST * LONG * patience():
                    raise _refusal(request, f"{size - late:,} bytes of the file in {LONG * patience()} s")
                late, until = size, time.monotonic() + LONG * patience()
            yield part

    def check_list(self, request: Any, content: bytes) -> None:
        """Raise HubError unless this is the description of a repository, or a part of the list of its files."""
        try:
            document = parse_json(content)
        except ValueError:
            raise _refusal(request, f"{brief(content[:80].decode(errors='replace'))}, and JSON was expected") from None
        if isinstance(document, list):
            files = document
        else:
            commit = document.get("sha") if isinstance(document, dict) else None
            if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
                raise _refusal(request, f"{brief(document)}, and a repository with its commit was expected")
            files = document.get("siblings") or []
        if not isinstance(files, list) or not all(map(_is_entry, files)):
            wrong = next((file for file in files if not _is_entry(file)), None) if isinstance(files, list) else files
            raise _refusal(request, f"the file {brief(wrong)}, which is no entry of a list of files")
        self.files += len(files) if isinstance(document, list) else 0
        self.pages += 1
        if self.most_files is not None and self.pages > MOST_PAGES:
            raise _refusal(request, f"more than {MOST_PAGES} pages of a list of files")
        if self.most_files is not None and max(self.files, len(files)) > self.most_files:
            raise _refusal(request, f"a list of more than {self.most_files:,} files, which is the most that is fetched")


def _is_entry(entry: object) -> bool:
    """Whether this can be a file or a folder of a list."""
    match entry:
        case {"rfilename": str()}:
            return True
        case {"type": "directory", "path": str()}:
            return True
        case {"type": "file", "path": str(), "size": int(), "oid": str(oid), **more}:
            large = more.get("lfs")
            if large is not None and not (isinstance(large, dict) and _HASH.fullmatch(str(large.get("oid")))):
                return False
            return _HASH.fullmatch(oid) is not None
    return False


def _read(response: Any) -> bytes:
    """Return the body of an answer. It is kept for ``huggingface_hub``, which reads it again."""
    content, until = bytearray(), time.monotonic() + LONG * patience()
    for part in response.iter_bytes():
        content += part
        if len(content) > MOST_ANSWER:
            raise _refusal(response.request, f"more than {MOST_ANSWER:,} bytes, and a list of files was expected")
        if time.monotonic() > until:
            raise _refusal(response.request, f"no whole answer within {LONG * patience()} s")
    response._content = bytes(content)  # as its method `read` does, which has no limit
    return response._content


def _refusal(request: Any, problem: str) -> HubError:
    return HubError(
        f"{request.url.host} does not answer as a Hub does: to {request.method} {brief(request.url.path)} it sent {problem}. "
        "If this network asks for a login, log in. If HF_ENDPOINT is set, check it."
    )
