"""The server of the page: the JSON API over a `Library`, and the page's own files, to browsers on this machine only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marft.run.directory import to_json
from marft.types import MarftError
from marft.view.episodes import Query, number
from marft.view.library import Library
from marft.view.policy import PAGE, served_policy
from marft.view.reading import NotHere

HOSTS = ["127.0.0.1", "localhost"]  # a page of another name that resolves to this machine is refused
Answer = Callable[[Request], Any]


def application(library: Library, page: Path = PAGE) -> Starlette:
    """Everything that is served. Each answer is computed in a thread, so that a long one holds up no other run's."""

    def run(request: Request) -> Any:
        return library.run(_word(request, "run"))

    answers: dict[str, Answer] = {
        "runs": lambda request: library.runs(),
        "metrics": lambda request: run(request).metrics(),
        "evaluations": lambda request: run(request).evaluations(),
        "glossary": lambda request: library.glossary(),
        "team": lambda request: run(request).team(number(request.query_params, "iteration")),
        "episodes": lambda request: run(request).episodes(Query.of(request.query_params)),
        "episode": lambda request: run(request).episode(_word(request, "id")),
        "task": lambda request: run(request).task(_word(request, "task")),
        "health": lambda request: run(request).health(),
    }
    routes = [Route(f"/api/{name}", _endpoint(answer), methods=["GET"]) for name, answer in answers.items()]
    return Starlette(
        routes=[
            *routes,
            Route("/", lambda request: _index(page), methods=["GET"]),
            Route("/favicon.ico", lambda request: Response(status_code=204), methods=["GET"]),
            Mount("/", StaticFiles(directory=page)),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS), Middleware(Headers, page=page)],
        exception_handlers={HTTPException: _http_error, Exception: _server_error},
    )


class Headers:
    """Adds to every answer what a browser may do with it: nothing but this page's own scripts and styles."""

    def __init__(self, app: ASGIApp, page: Path) -> None:
        self.app = app
        self.page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back with the headers."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = served_policy(_html(self.page))
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers["Referrer-Policy"] = "no-referrer"
                # The page's own files are asked for again each time too: an update of marft must show at once
                headers["Cache-Control"] = "no-store" if scope["path"].startswith("/api/") else "no-cache"
            await send(message)

        await self.app(scope, receive, answer)


def _endpoint(answer: Answer) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            return _json(answer(request))
        except MarftError as error:
            return _json({"error": " ".join(str(error).split())}, 404 if isinstance(error, NotHere) else 400)

    return endpoint


def _word(request: Request, key: str) -> str:
    word = request.query_params.get(key, "")
    if word == "":
        raise MarftError(f"{key}: is missing from the address")
    return word


def _index(page: Path) -> Response:
    html = _html(page)
    if not html:
        return Response("The page is missing from this installation: marft/view/page/index.html.", 404)
    return Response(html, media_type="text/html")


def _html(page: Path) -> str:
    file = page / "index.html"
    return file.read_text(encoding="utf8") if file.is_file() else ""


def _json(value: Any, status: int = 200) -> Response:
    # A lone surrogate has no UTF-8 form; its backslash form is that character in JSON
    body = to_json(value).encode("utf8", errors="backslashreplace")
    return Response(body, status, media_type="application/json")


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": f"{request.url.path}: {error.detail}"}, error.status_code)


def _server_error(request: Request, error: Exception) -> Response:
    return _json({"error": f"{request.url.path}: {type(error).__name__}; the terminal has more"}, 500)
