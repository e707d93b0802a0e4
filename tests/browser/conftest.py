"""A browser, the page served from hand-made runs, and a page that fails its test when the browser complains.

`page` goes to no host but the one it is served from; a console error or warning, an error of a script and a request
elsewhere fail the test. `served(paths)` gives the address of the page over some runs; a file on the disk may be opened
as well. `open_page(**options)` makes pages of other sizes, colours and settings.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import handmade
import pytest

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
NEEDED = ("playwright", "axe_playwright_python", "starlette", "uvicorn")

if not os.environ.get("CI") and not all(map(importlib.util.find_spec, NEEDED)):
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests; skipped where there is none, unless CI is set."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no Chromium on PATH")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def served() -> Iterator[Callable[[Sequence[Path]], str]]:
    """A function from run directories to the address of the page that shows them."""
    import uvicorn

    from marft.view.app import application
    from marft.view.library import Library

    running: list[tuple[Any, threading.Thread]] = []

    def start(paths: Sequence[Path]) -> str:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = uvicorn.Server(uvicorn.Config(application(Library(paths)), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{listening.getsockname()[1]}/"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(timeout=5)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Hand-made runs that no test changes: two chains that differ, a debate and one that is empty."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "first": handmade.chain(folder / "first"),
        "second": handmade.chain(folder / "second", lr=0.01, lift=0.1),
        "debate": handmade.debate(folder / "debate"),
        "empty": handmade.empty(folder / "empty"),
    }


@pytest.fixture(scope="session")
def single(served: Callable[[Sequence[Path]], str], runs: dict[str, Path]) -> str:
    """The address of the page over the chain alone."""
    return served([runs["first"]])


@pytest.fixture(scope="session")
def several(served: Callable[[Sequence[Path]], str], runs: dict[str, Path]) -> str:
    """The address of the page over all hand-made runs: ids "0" first, "1" second, "2" debate, "3" empty."""
    return served(list(runs.values()))


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained of; a test that provokes a complaint takes it out."""
    return []


@pytest.fixture
def open_page(browser: Any, complaints: list[str]) -> Iterator[Callable[..., Any]]:
    """A function that opens a page with options of a browser context; what goes wrong in one fails the test."""
    contexts: list[Any] = []

    def start(**options: Any) -> Any:
        context = browser.new_context(
            **{"viewport": {"width": 1200, "height": 900}, "reduced_motion": "reduce", **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if _local(request.url) else complaints.append(f"asked {request.url}"))
        return page

    yield start
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    """A page of the size of a small laptop."""
    return open_page()


def _local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "about", "file") or parts.hostname == "127.0.0.1"
