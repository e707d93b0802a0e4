"""One file that holds the page and the runs it shows: opens from a disk, without a server and without a network.

The data are gzip in base64 within the page, so no text of a model can be taken for markup.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marft.run.directory import to_json, write_text
from marft.types import MarftError
from marft.view.library import Library, RunView
from marft.view.policy import PAGE, inline_scripts, report_policy

MARKER = "<!-- made by marft report -->"
_STYLESHEET = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
_IMPORT_MAP = re.compile(r'(<script type="importmap">)(.*?)(</script>)', re.DOTALL)


def write_report(library: Library, path: Path, episodes: int = 2000, page: Path = PAGE) -> int:
    """Write the runs of a library to one html file, with at most so many episodes of each; returns its size in bytes.

    An older report is replaced. Raises `MarftError` for any other file in the way, which stays as it is.
    """
    check_target(path)
    html = assemble(page, gather(library, episodes))
    try:
        write_text(path, html)
    except OSError as error:
        raise MarftError(f"{path}: cannot be written ({error.strerror or error}); choose another -o") from None
    return path.stat().st_size


def check_target(path: Path) -> None:
    """Raise `MarftError` unless a report may be written there."""
    if path.is_dir():
        raise MarftError(f"{path}: is a folder; give a file, such as -o {path / 'report.html'}")
    if not path.parent.is_dir():
        raise MarftError(f"{path}: there is no folder '{path.parent}'; make it, or choose another -o")
    try:
        if path.exists():
            with open(path, "rb") as file:
                if MARKER.encode("ascii") not in file.read(1000):
                    raise MarftError(f"{path}: is there already and is no report of marft's; choose another -o")
    except OSError as error:
        raise MarftError(f"{path}: cannot be read ({error.strerror}); choose another -o") from None


def gather(library: Library, episodes: int) -> dict[str, Any]:
    """Every answer that `page/source.js` gives in a report: by run, with at most so many episodes of each."""
    views = library.views
    held = {identity: _episodes(view, episodes) for identity, view in views.items()}
    runs = library.runs()
    for run in runs["runs"]:
        found = held[run["id"]]
        run |= {"live": False, "episodes_held": len(found["items"]), "episodes_all": found.pop("all")}
    return {
        "runs": {**runs, "report": True, "made": time.strftime("%Y-%m-%dT%H:%M:%S")},
        "glossary": library.glossary(),
        "metrics": {identity: view.metrics() for identity, view in views.items()},
        "evaluations": {identity: view.evaluations() for identity, view in views.items()},
        "team": {identity: {"whole": view.team(), "iterations": view.teams()} for identity, view in views.items()},
        "episodes": held,
        "health": {identity: view.health() for identity, view in views.items()},
    }


def choose(items: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """At most so many of a run's episodes, oldest first.

    Evaluations come before training play, the oldest and the newest of them before others; training play is spread
    evenly over the iterations.
    """
    if len(items) <= most:
        return list(items)
    evaluations: dict[int, list[int]] = {}  # by iteration: places in `items`
    for place, item in enumerate(items):
        if item["split"] != "train":
            evaluations.setdefault(item["iteration"], []).append(place)
    iterations = sorted(evaluations)
    ends = [each for pair in zip(iterations, reversed(iterations), strict=True) for each in pair]  # 0, 9, 1, 8, …
    places = [place for iteration in dict.fromkeys(ends) for place in evaluations[iteration]][:most]
    train = [place for place, item in enumerate(items) if item["split"] == "train"]
    left = most - len(places)
    places += [train[number * len(train) // left] for number in range(min(left, len(train)))] if left else []
    return [items[place] for place in sorted(places)]


def assemble(page: Path, data: Mapping[str, Any]) -> str:
    """The page as one html text: styles and modules within it, and the data."""
    index = page / "index.html"
    if not index.is_file():
        raise MarftError(f"{index}: the page is missing from this installation; install marft again")
    html = index.read_text(encoding="utf8")
    styles = [_style(page / name) for name in _STYLESHEET.findall(html)]
    html = _STYLESHEET.sub(lambda found: f"<style>{_style(page / found[1])}</style>", html)
    html = _IMPORT_MAP.sub(lambda found: f"{found[1]}{_modules(page, found[2])}{found[3]}", html)
    policy = report_policy(inline_scripts(html), styles)
    head = f'<head>\n{MARKER}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    html = html.replace("<head>", head, 1)
    # A lone surrogate has no UTF-8 form; its backslash form is that character in JSON
    packed = gzip.compress(to_json(data).encode("utf8", errors="backslashreplace"), mtime=0)
    holder = (
        f'<script type="application/octet-stream" id="marft-data">{base64.b64encode(packed).decode("ascii")}</script>'
    )
    return html.replace("</body>", f"{holder}\n</body>", 1)


def _episodes(view: RunView, most: int) -> dict[str, Any]:
    items = view.items()
    chosen = choose(items, most)
    return {"all": len(items), "items": chosen, "records": view.records([item["id"] for item in chosen])}


def _style(path: Path) -> str:
    return path.read_text(encoding="utf8")


def _modules(page: Path, text: str) -> str:
    """The import map with every module as a data: URL."""
    given = json.loads(text)["imports"]
    modules = {}
    for name, file in given.items():
        encoded = base64.b64encode((page / file).read_bytes()).decode("ascii")
        modules[name] = f"data:text/javascript;charset=utf-8;base64,{encoded}"
    return json.dumps({"imports": modules})
