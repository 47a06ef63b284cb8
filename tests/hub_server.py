"""A small local Hub that keeps repositories in memory and answers the calls of ``huggingface_hub``."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

TOKEN = "hf_of_the_tests"


@dataclass
class Repository:
    """A repository. commits: the files of each commit, by path. branches: the last commit of each."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        name = hashlib.sha1(f"{branch} {len(self.commits)} {id(self)}".encode()).hexdigest()
        self.commits[name], self.branches[branch] = files, name
        return name

    def files(self, branch: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches[branch]]


@dataclass
class LocalHub:
    """The state of the server. uploads: the large files that were sent, by SHA-256. calls: method and path of each request.
    intercept: called first with a request and its path; it returns whether it has answered.
    """

    endpoint: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    uploads: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    refuse_commits_with: int | None = None
    intercept: Callable[[Handler, str], bool] = lambda request, path: False

    def create(self, repo_id: str, files: dict[str, bytes] | None = None, *, private: bool = False) -> Repository:
        repository = Repository(private)
        repository.commit("main", {".gitattributes": b"", **(files or {})})
        self.repositories[repo_id] = repository
        return repository


class Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def handle_any(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.calls.append(f"{self.command} {path}")
        if self.hub.intercept(self, path):
            return
        if path == "/api/repos/create":
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.answer({"warnings": [], "errors": []})
        elif match := re.fullmatch(r"/large/(\w+)", path):
            assert hashlib.sha256(body).hexdigest() == match[1]
            self.hub.large[match[1]] = body
            self.hub.uploads.append(match[1])
            self.answer({})
        elif re.fullmatch(r"/[^/]+/[^/]+\.git/info/lfs/objects/batch", path):
            self.answer({"transfer": "basic", "objects": [self.batch(entry) for entry in json.loads(body)["objects"]]})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(\w+)(?:/(.+))?", path):
            self.of_repository(match[1], match[2], match[3], body)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*match.groups())
        else:
            self.answer({"error": f"unknown path {path}"}, 404)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def create(self, fields: dict[str, Any]) -> None:
        repo_id = f"{fields['organization']}/{fields['name']}"
        known = repo_id in self.hub.repositories
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer({"error": "Unauthorized"}, 401)
            return
        if not known:
            self.hub.create(repo_id, private=fields.get("private", fields.get("visibility") == "private"))
        self.answer({"url": f"{self.hub.endpoint}/{repo_id}", "id": repo_id}, 409 if known else 200)

    def batch(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the answer for a large file. A known file needs no upload."""
        if fields["oid"] in self.hub.large:
            return fields
        return fields | {"actions": {"upload": {"href": f"{self.hub.endpoint}/large/{fields['oid']}"}}}

    def repository(self, repo_id: str) -> Repository | None:
        repository = self.hub.repositories.get(repo_id)
        if repository is None or (repository.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return None
        return repository

    def of_repository(self, repo_id: str, what: str, rest: str | None, body: bytes) -> None:
        repository = self.repository(repo_id)
        if repository is None:
            return
        if what == "refs":
            branches = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": at} for name, at in repository.branches.items()]
            self.answer({"branches": branches, "converts": [], "tags": []})
            return
        if what == "branch":
            repository.branches[str(rest)] = repository.branches["main"]
            self.answer({})
            return
        revision = "main" if rest is None else rest
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            self.answer({"error": "Revision not found"}, 404, {"X-Error-Code": "RevisionNotFound"})
            return
        files = repository.commits[commit]
        if what == "revision":
            siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
            self.answer({"id": repo_id, "sha": commit, "private": repository.private, "siblings": siblings, "tags": []})
        elif what == "tree":
            self.answer(
                [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in files.items()
                ]
            )
        elif what == "preupload":
            fields = json.loads(body)["files"]
            modes = {file["path"]: "lfs" if file["path"].endswith(".safetensors") else "regular" for file in fields}
            self.answer({"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]})
        elif what == "commit":
            self.commit(repo_id, repository, revision, files, [json.loads(line) for line in body.splitlines() if line])

    def commit(
        self, repo_id: str, repository: Repository, branch: str, files: dict[str, bytes], lines: list[dict[str, Any]]
    ) -> None:
        if self.hub.refuse_commits_with is not None:
            self.answer({"error": "refused"}, self.hub.refuse_commits_with)
            return
        after = dict(files)
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                assert value.get("parentCommit") == repository.branches[branch]
            elif line["key"] == "file":
                after[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                after[value["path"]] = self.hub.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del after[value["path"]]
        oid = repository.commit(branch, after)
        self.answer({"commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{repo_id}/commit/{oid}"})

    def resolve(self, repo_id: str, revision: str, name: str) -> None:
        repository = self.repository(repo_id)
        if repository is None:
            return
        commit = repository.branches.get(revision, revision)
        content = repository.commits.get(commit, {}).get(name)
        if content is None:
            self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        self.send_bytes(content, 200, {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'})

    def answer(self, document: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_bytes(json.dumps(document).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def send_bytes(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def local_hub(cache: str) -> Iterator[LocalHub]:
    """For the block, let ``huggingface_hub`` use a local server and a cache in this folder."""
    hub = LocalHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HUB_CACHE", cache)
        patch.setenv("HF_TOKEN", TOKEN)
        close_session()
        try:
            yield hub
        finally:
            close_session()
            server.shutdown()
            server.server_close()
            thread.join()
