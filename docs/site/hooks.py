"""What the site has besides the pages of docs/: generated references, pages from the rest of the repository, formulas.

Links are written as they work in the repository (`../examples/debate.yaml`, `../src/marft/types.py`). On the site such
a link leads to a page with the file's text, which is made here; a link to nothing is left alone: `--strict` finds it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from commands_page import commands_page
from config_page import config_page
from formulas import formula
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
# Code first, so that what looks like a link in it is none
LINK = re.compile(
    r"^(?P<fence> *`{3,}).*?^(?P=fence)|`[^`\n]+`|(?<=\]\()(?P<target>[^)\s]+)(?=[)\s])", re.DOTALL | re.MULTILINE
)
# With the paragraph before it, which tells readers of the plain file where to find the rest
GENERATED = re.compile(r"^[^\n]+\n\n<!-- generated: (?P<what>\w+) -->$", re.MULTILINE)
MADE = {"config": config_page, "commands": commands_page}
FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and one for every file outside docs/ that a page links to."""
    generated = {"examples.md": examples_page()}
    for name, place in ROOT_PAGES.items():
        if place != "index.md" and (ROOT / name).exists():
            generated[place] = (ROOT / name).read_text(encoding="utf8")
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()} | generated
    for place, text in pages.items():
        for target in _outside(text, _origin(place)):
            if target.is_file() and target.suffix != ".md" and not target.is_relative_to(ROOT / "examples"):
                name = target.relative_to(ROOT).as_posix()
                generated[f"source/{name}.md"] = _source_page(name, target.read_text(encoding="utf8"))
    for place, text in generated.items():
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fill in what is generated, and turn links that work in the repository into ones that work on the site."""
    place = page.file.src_uri
    origin = _origin(place)
    markdown = GENERATED.sub(lambda found: MADE[found["what"]](), markdown)

    def turned(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or _leads_away(target):
            return found[0]
        path, mark, anchor = target.partition("#")
        there = _on_site(Path(os.path.normpath(origin / path)))
        if there is None:
            return target
        there, _, own = there.partition("#")
        fragment = f"#{own}" if own else mark + anchor
        return posixpath.relpath(there, posixpath.dirname(place) or ".") + fragment

    return LINK.sub(turned, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Set the formulas: no script, no font and no other host is needed to read them."""

    def set_one(found: re.Match[str]) -> str:
        tex = unescape(found["tex"]).strip()
        try:
            return formula(tex, found["tag"] == "div")
        except ValueError as error:
            raise PluginError(f"{page.file.src_uri}: the formula {tex!r} cannot be set: {error}") from None

    return FORMULA.sub(set_one, html)


def examples_page() -> str:
    """Every config of examples/, with what it says about itself."""
    parts = ["# Examples\n\nEach file of `examples/`, as it is. `marft train examples/NAME` trains with one.\n"]
    for path in sorted((ROOT / "examples").rglob("*.y*ml"), key=lambda each: (each.parent != ROOT / "examples", each)):
        name = path.relative_to(ROOT / "examples").as_posix()
        text = path.read_text(encoding="utf8").rstrip()
        parts.append(f"## {name} {{ #{_anchor(name)} }}\n\n```yaml\n{text}\n```\n")
    return "\n".join(parts)


def _source_page(name: str, text: str) -> str:
    language = {"py": "python", "yaml": "yaml", "toml": "toml", "sh": "sh"}.get(name.rpartition(".")[2], "text")
    return f"---\ntitle: {name}\nsearch: {{exclude: true}}\n---\n\n# {name}\n\n````{language}\n{text.rstrip()}\n````\n"


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.removesuffix(".yaml").lower())


def _origin(place: str) -> Path:
    """The folder in the repository from which a page's links are written."""
    return ROOT if place in ROOT_PAGES.values() and place != "index.md" else (ROOT / "docs" / place).parent


def _leads_away(target: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]*:|#|/", target) is not None


def _outside(text: str, origin: Path) -> Iterator[Path]:
    for found in LINK.finditer(text):
        if (target := found["target"]) and not _leads_away(target):
            path = Path(os.path.normpath(origin / target.partition("#")[0]))
            if path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "docs"):
                yield path


def _on_site(path: Path) -> str | None:
    """Where a file of the repository is on the site; None where there is no such file."""
    if not path.is_relative_to(ROOT):
        return None
    name = path.relative_to(ROOT).as_posix()
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    if name in ROOT_PAGES:
        return ROOT_PAGES[name]
    if path == ROOT / "examples" or (path.is_dir() and path.is_relative_to(ROOT / "examples")):
        return "examples.md"
    if path.is_relative_to(ROOT / "examples") and path.is_file():
        return f"examples.md#{_anchor(path.relative_to(ROOT / 'examples').as_posix())}"
    return f"source/{name}.md" if path.is_file() else None
