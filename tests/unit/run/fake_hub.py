"""A hub on this machine with as much of the Hugging Face hub's HTTP interface as pushing and opening a run needs."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from huggingface_hub import constants
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN = "hf_writes"


class FakeHub:
    """Repositories are lists of commits; a commit is a mapping of paths to contents. Files are never LFS files."""

    def __init__(self) -> None:
        self.commits: dict[str, list[dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.url = ""
        self.downloads: list[str] = []

    def app(self) -> Starlette:
        repository = "{user}/{name}"
        return Starlette(
            routes=[
                Route("/api/repos/create", self.create, methods=["POST"]),
                Route("/api/validate-yaml", self.validate, methods=["POST"]),
                Route(f"/api/models/{repository}/preupload/main", self.preupload, methods=["POST"]),
                Route(f"/api/models/{repository}/commit/main", self.commit, methods=["POST"]),
                Route(f"/api/models/{repository}/tree/{{revision}}", self.tree),
                Route(f"/api/models/{repository}/revision/{{revision}}", self.info),
                Route(f"/api/models/{repository}", self.info),
                Route(f"/{repository}/resolve/{{revision}}/{{path:path}}", self.resolve, methods=["GET", "HEAD"]),
            ]
        )

    def files(self, repository: str) -> dict[str, bytes]:
        return self.commits[repository][-1]

    async def create(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"error": "Forbidden"}, 403)
        body = await request.json()
        repository = f"{body['organization'] or 'me'}/{body['name']}"
        if repository in self.commits:
            return JSONResponse({"error": "exists", "url": f"{self.url}/{repository}"}, 409)
        self.commits[repository] = [{".gitattributes": b"*.bin filter=lfs\n"}]
        if body.get("private") or body.get("visibility") == "private":
            self.private.add(repository)
        return JSONResponse({"url": f"{self.url}/{repository}", "name": repository})

    async def validate(self, request: Request) -> Response:
        ok = (await request.json())["content"].startswith("---\n")
        return JSONResponse({"warnings": [], "errors": [] if ok else [{"message": "no front matter"}]})

    async def preupload(self, request: Request) -> Response:
        files = [
            {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
            for each in (await request.json())["files"]
        ]
        return JSONResponse({"files": files})

    async def commit(self, request: Request) -> Response:
        repository = _named(request)
        files = dict(self.commits[repository][-1])
        for line in (await request.body()).splitlines():
            operation = json.loads(line)
            if operation["key"] == "file":
                files[operation["value"]["path"]] = base64.b64decode(operation["value"]["content"])
            elif operation["key"] == "deletedFile":
                del files[operation["value"]["path"]]
        self.commits[repository].append(files)
        oid = commit_name(repository, len(self.commits[repository]) - 1)
        return JSONResponse({"commitUrl": f"{self.url}/{repository}/commit/{oid}", "commitOid": oid})

    async def info(self, request: Request) -> Response:
        found = self._at(request)
        if isinstance(found, Response):
            return found
        number, _ = found
        repository = _named(request)
        return JSONResponse({"id": repository, "sha": commit_name(repository, number), "siblings": [], "tags": []})

    async def tree(self, request: Request) -> Response:
        found = self._at(request)
        if isinstance(found, Response):
            return found
        entries = [
            {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for path, content in found[1].items()
        ]
        return JSONResponse(entries)

    async def resolve(self, request: Request) -> Response:
        found = self._at(request)
        if isinstance(found, Response):
            return found
        number, files = found
        path = request.path_params["path"]
        if request.method == "GET":
            self.downloads.append(path)
        etag = hashlib.sha1(files[path]).hexdigest()
        headers = {"X-Repo-Commit": commit_name(_named(request), number), "ETag": f'"{etag}"'}
        return Response(files[path], headers=headers, media_type="application/octet-stream")

    def _at(self, request: Request) -> tuple[int, dict[str, bytes]] | Response:
        repository, revision = _named(request), request.path_params.get("revision", "main")
        if repository not in self.commits:
            return JSONResponse({"error": "not found"}, 404, headers={"X-Error-Code": "RepoNotFound"})
        commits = self.commits[repository]
        for number, files in reversed(list(enumerate(commits))):
            if revision in (commit_name(repository, number), "main"):
                return number, files
        return JSONResponse({"error": "no revision"}, 404, headers={"X-Error-Code": "RevisionNotFound"})


def _named(request: Request) -> str:
    return f"{request.path_params['user']}/{request.path_params['name']}"


def commit_name(repository: str, number: int) -> str:
    return hashlib.sha1(f"{repository} {number}".encode()).hexdigest()


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub on a free port, in a thread."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        hub.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(hub.app(), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            thread.join(0.01)
        try:
            yield hub
        finally:
            server.should_exit = True
            thread.join(10)


def pretend(patch: Any, hub: FakeHub, cache: Any, token: str | None = TOKEN) -> None:
    """Let the hub's client in this process speak to the fake one, with an empty cache."""
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    patch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    if token is None:
        patch.delenv("HF_TOKEN", raising=False)
    else:
        patch.setenv("HF_TOKEN", token)
