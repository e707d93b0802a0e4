"""The documentation as a site: it builds strictly, leads nowhere wrong, asks no other host, and leaves no key out."""

import importlib
import os
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from pydantic import BaseModel

import marft
from marft.cli.app import app
from marft.config import Config
from marft.environments import known_environments
from marft.imports import import_object

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))
HOST = "https://here/"


class Page(HTMLParser):
    """What a built page links to, what it loads, and the names it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.ids: set[str] = set()
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.classes |= set(given.get("class", "").split())
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next", "alternate"):
            self.assets.append(given["href"])
        self.assets += [given[name] for name in ("src", "srcset", "poster", "data") if given.get(name)]
        self.assets += re.findall(r"url\((.*?)\)", given.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, from a process that reaches no network."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = "http://127.0.0.1:9"
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Address (from the site's root) -> page."""
    found = sorted(site.rglob("*.html"))
    return {path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf8")) for path in found}


def test_every_page_of_the_navigation_is_there(site: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf8")
    listed = re.findall(r"[\w/-]+\.md$", text[text.index("\nnav:") :], re.MULTILINE)
    assert len(listed) > 30
    for name in listed:
        place = site / ("" if name == "index.md" else name.removesuffix(".md")) / "index.html"
        assert place.is_file(), name
    assert "<title>marft</title>" in (site / "index.html").read_text(encoding="utf8")


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[str, Page]) -> None:
    wrong = []
    for address, page in pages.items():
        if address == "404.html":  # its links start at the root of wherever the site is put
            continue
        for link in page.links:
            target = urlparse(urljoin(HOST + address, link))
            if target.netloc != "here":
                continue
            path = unquote(target.path).lstrip("/")
            path += "index.html" if path.endswith("/") or not path else ""
            if not (site / path).is_file():
                wrong.append(f"{address}: {link}")
            elif target.fragment and path in pages and unquote(target.fragment) not in pages[path].ids:
                wrong.append(f"{address}: {link} (no such anchor)")
    assert not wrong, "\n".join(wrong)


def test_no_other_host_is_asked_for_anything(site: Path, pages: dict[str, Page]) -> None:
    asked = [f"{address}: {asset}" for address, page in pages.items() for asset in page.assets if _elsewhere(asset)]
    for path in site.rglob("*.css"):
        styles = path.read_text(encoding="utf8")
        named = re.findall(r"""url\(["']?([^)"']+)|@import\s+["']([^"']+)""", styles)
        asked += [f"{path.name}: {name}" for name in map("".join, named) if _elsewhere(name)]
    assert not asked, "\n".join(asked)
    # The theme's script fetches mermaid from elsewhere where a page has a diagram of that class
    assert not [address for address, page in pages.items() if "mermaid" in page.classes]


def test_what_is_loaded_from_elsewhere_is_seen() -> None:
    page = Page(
        '<script src="https://a/x.js"></script><link rel="stylesheet" href="//b/x.css"><img srcset="https://c/x">'
        '<p style="background: url(https://d/x)"><a href="https://e/"></a>'
        '<link rel="icon" href="data:x"><img src="/y.png">'
    )
    assert [urlparse(urljoin(HOST, each)).netloc for each in page.assets if _elsewhere(each)] == ["a", "b", "c", "d"]
    assert page.links == ["https://e/"]


def test_formulas_are_set_and_no_latex_is_left(site: Path) -> None:
    text = (site / "algorithm" / "index.html").read_text(encoding="utf8")
    source = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf8")
    assert text.count('<div class="formula"') == source.count("$$") // 2
    assert text.count('<svg class="formula"') > 100
    assert "arithmatex" not in text


def test_search_finds_keys_and_pages(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf8")
    for words in ("update.action_normalisation", "marft export", "explained variance"):
        assert words in index


def test_every_public_name_is_in_the_python_reference(pages: dict[str, Page]) -> None:
    names = {anchor.rpartition(".")[2] for anchor in pages["reference/python/index.html"].ids}
    assert set(marft.__all__) <= names


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nowhere", "../src/nowhere.py", "/absolute.md"])
def test_a_link_to_nothing_stops_a_strict_build(link: str, tmp_path: Path) -> None:
    """With the repository's own settings for links, on a page of one line."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n[link]({link})\n", encoding="utf8")
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(tmp_path / "docs"),
        site_dir=str(tmp_path / "site"),
        nav=[{"Home": "index.md"}],
        plugins=[],
        hooks=[],
        exclude_docs="",
        extra_css=[],
        theme="mkdocs",
        strict=True,
    )
    with pytest.raises(Abort):
        build(config)


def _elsewhere(asset: str) -> bool:
    return urlparse(urljoin(HOST, asset.strip("'\" "))).netloc not in ("here", "") and not asset.startswith("data:")


def _keys(model: type[BaseModel], path: str, seen: dict[type, list[str]]) -> Iterator[tuple[type, str]]:
    """(section, path of a key) for every key of the schema, from the classes' own annotations."""
    seen.setdefault(model, []).append(path)
    for key, field in model.model_fields.items():
        yield model, key
        for place, inner in _models(field.annotation, f"{path}.{key}".lstrip(".")):
            if place not in seen.get(inner, ()):
                yield from _keys(inner, place, seen)


def _models(annotation: typing.Any, path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield path, annotation
    holds = typing.get_origin(annotation) in (list, dict)
    for inner in typing.get_args(annotation):
        yield from _models(inner, f"{path}.NAME" if holds else path)


def test_every_key_of_the_schema_is_in_the_reference() -> None:
    text = importlib.import_module("config_page").config_page()
    seen: dict[type, list[str]] = {}
    keys = list(_keys(Config, "", seen))
    assert len({section for section, _ in keys}) > 15
    for section, key in keys:
        places = [f"{path}.{key}".lstrip(".") for path in seen[section]]
        rows = [place for place in places if re.search(rf"^\| `{re.escape(place)}`", text, re.MULTILINE)]
        assert len(rows) == 1, (section.__name__, key, places)
    assert {section.__name__ for section, _ in keys} > {
        "DebateConfig",
        "McpConfig",
        "CurriculumConfig",
        "EndpointConfig",
    }


def test_every_key_says_what_it_means() -> None:
    assert importlib.import_module("config_page").undescribed() == []


def test_every_key_of_an_environment_is_in_the_reference() -> None:
    text = importlib.import_module("config_page").config_page()
    for known in known_environments():
        start = text.index(f"### {known.name} {{")
        part = text[start : text.find("\n### ", start + 1)]
        for key in import_object(known.path, "environment").Parameters.model_fields:
            assert f"| `environment.{key}`" in part, (known.name, key)


def test_defaults_and_bounds_are_those_of_the_schema() -> None:
    text = importlib.import_module("config_page").config_page()
    for row in (
        "| `rollout.vllm.gpu_memory_utilization` | number > 0, ≤ 1 | `0.4` |",
        "| `team.agents` | list of: section | required |",
        "| `team.agents.NAME.tools` | list of: text | `[]` |",
        '| `credit.chain` | `team` or `agent` | `"team"` |',
        "| `team.turns` | integer > 0 | `1` |",
        "| `tools` | names with: section | `{}` |",
    ):
        assert row in re.sub(r"\{ #\S+ \}", "", text), row
    assert "`update.lr`{ #update.lr }" in text  # pages link to keys
    for name in ("trio", "debate-vote"):
        assert f"| `{name}` |" in text
    learner = yaml.safe_load(text[text.index("### grpo {") :].partition("```yaml\n")[2].partition("```")[0])
    assert learner["credit"]["baseline"] == "group"


def test_every_option_of_every_command_is_in_the_reference() -> None:
    text = importlib.import_module("commands_page").commands_page()
    assert len(app.registered_commands) >= 10
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        part = text[text.index(f"## marft {name}\n") :].partition("\n## ")[0]
        assert (command.callback.__doc__ or "").partition("\n")[0] in part
        for parameter, annotation in typing.get_type_hints(command.callback, include_extras=True).items():
            given = [word for each in getattr(annotation, "__metadata__", ()) for word in each.param_decls or ()]
            for word in (each for words in given for each in words.split("/")):
                assert word in part, (name, parameter, word)


@pytest.mark.parametrize(
    ("tex", "fits"),
    [(r"\tfrac12 e^2", True), (r"\max\big(a, \bar b\big) \le c", True), (r"\begin{cases} a \end{cases}", False)],
)
def test_a_formula_is_set_or_refused(tex: str, fits: bool) -> None:
    formula = importlib.import_module("formulas").formula
    if not fits:
        with pytest.raises(ValueError, match="Unknown symbol"):
            formula(tex, False)
        return
    drawn = formula(tex, False)
    assert re.search(r'<svg class="formula" role="img" aria-label="[^"]+" viewBox="0 -[\d. -]+"', drawn)
    assert re.search(r'<path d="M[-\d MLQCZ]+Z"/>', drawn)


def test_links_of_the_repository_become_links_of_the_site() -> None:
    hooks = importlib.import_module("hooks")
    page = type("P", (), {"file": type("F", (), {"src_uri": "how-to/data.md"})})
    text = """
[a](../../examples/debate.yaml) [b](../../src/marft/types.py) [c](../game.md#agents) [d](../../CONTRIBUTING.md)
[e](../../examples/paper) [f](https://x.org/y.md) `[g](../../src/marft/types.py)` [h](../../src/nowhere.py)
"""
    text += "\n\n```python\ncall[x](../../src/marft/types.py)\n```\n"
    turned = hooks.on_page_markdown(text, page, None, None)
    assert re.findall(r"\]\((.*?)\)", turned) == [
        "../examples.md#debate",
        "../source/src/marft/types.py.md",
        "../game.md#agents",
        "../contributing.md",
        "../examples.md",
        "https://x.org/y.md",
        "../../src/marft/types.py",
        "../../src/nowhere.py",
        "../../src/marft/types.py",
    ]
