"""Pictures of the page for the documents: `python -m benchmarks.pictures RUN ORGANISED_RUN -o docs/pictures`.

RUN is the run that the pictures speak of, ORGANISED_RUN one whose D changes (an orchestrator's). Needs Chromium and the
packages of the extra `dev`.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from marft.view.app import application
from marft.view.episodes import Query
from marft.view.library import Library


@dataclass(frozen=True)
class Picture:
    """A view, its parameters, and how large the window is [pixels]."""

    name: str
    view: str
    parameters: dict[str, str]
    width: int = 1280
    height: int = 860
    dark: bool = False

    @property
    def address(self) -> str:
        """The part of the address that names the view."""
        return f"#/{self.view}?{urlencode(self.parameters)}"


def pictures(library: Library) -> list[Picture]:
    """What to show of the first run, and the team of the second."""
    first, second = (each["id"] for each in library.runs()["runs"])
    won = library.run(first).episodes(Query.of({"split": "sampled", "sort": "risen"}))["items"][0]
    episode = {"run": first, "id": won["id"], "colour": "logprob"}
    played = library.run(first).episodes(Query.of({"split": "train", "sort": "best", "iteration": "1"}))["items"][0]
    return [
        Picture("overview", "overview", {"runs": first}),
        Picture("team", "team", {"run": second}, height=640),
        Picture("episode", "episode", episode, height=760),
        Picture("episode-advantage", "episode", {"run": first, "id": played["id"], "colour": "advantage"}, height=760),
        Picture("compare", "compare", {"run": first, "task": won["task"]["id"]}, height=760),
        Picture("health-dark", "health", {"run": first}, dark=True),
    ]


@contextmanager
def served(library: Library) -> Iterator[str]:
    """The address of the page over the library's runs, while the block lasts."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(library), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


def take(runs: list[Path], at: Path) -> None:
    """Write one PNG per picture into `at`."""
    from playwright.sync_api import sync_playwright

    at.mkdir(parents=True, exist_ok=True)
    library = Library(runs)
    with served(library) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for picture in pictures(library):
            page = browser.new_page(
                viewport={"width": picture.width, "height": picture.height},
                color_scheme="dark" if picture.dark else "light",
            )
            page.goto(address + picture.address)
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(1000)  # charts are drawn when they come into view
            page.screenshot(path=at / f"{picture.name}.png")
            page.close()
        browser.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    take(arguments.runs, arguments.output)


if __name__ == "__main__":
    main()
