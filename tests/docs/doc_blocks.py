"""The fenced blocks of a Markdown page, and what the comment on the line before each says to do with it.

The conventions stand in CONTRIBUTING.md ("Documentation"). Sybil finds the fences; `doc_page.py` runs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sybil import Document, Region
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

RUN = ("sh", "python", "yaml")  # languages whose blocks do something
LANGUAGES = (*RUN, "text", "json", "mermaid")
REASONS = ("needs a GPU", "needs a network", "takes minutes", "shows a pattern")
DIRECTIVE = re.compile(r"<!--+\s*block\b:?(?P<words>.*?)--+>", re.DOTALL)
FENCES = RawFencedCodeBlockLexer(info_pattern=re.compile(r"(?P<language>[^\n]*)(?:\n|\Z)"))
FILE = re.compile(r"# file: (?P<name>[\w./-]+)\n")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    `line` is that of its fence; `action` is "run", "skip" (with a reason as `argument`), "with" (words for
    `marft train` as `argument`), "until" (what a command prints before it is ended) or "fails". `file` is where the
    block is written, if it says so.
    """

    line: int
    language: str
    source: str
    action: str = "run"
    argument: str = ""
    file: str | None = None


class BadBlock(Exception):
    """A block, or a comment about one, that keeps to no convention: where, and why."""


def documents(root: Path) -> list[Path]:
    """Every page whose blocks are run."""
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [page for page in pages if page.exists()] + sorted((root / "docs").rglob("*.md"))


def blocks(text: str) -> list[Block]:
    """The blocks of a page in order. Raises `BadBlock` with every fault, a line each."""
    document = Document(text, "page")
    regions: list[Region] = []
    for region in sorted(FENCES(document), key=lambda each: each.start):
        if not regions or region.start > regions[-1].end:  # a fence within a longer one is text
            regions.append(region)
    comments = [
        found for found in DIRECTIVE.finditer(text) if not any(r.start < found.start() < r.end for r in regions)
    ]
    found, faults = [], []
    for region in regions:
        before = next((each for each in comments if _is_just_before(text, each.end(), region.start)), None)
        if before is not None:
            comments.remove(before)
        line = text.count("\n", 0, region.start) + 1
        try:
            found.append(_block(region, line, before["words"].strip() if before else None))
        except BadBlock as fault:
            faults.append(f"line {line}: {fault}")
    for comment in comments:
        faults.append(f"line {text.count(chr(10), 0, comment.start()) + 1}: `{comment[0]}` stands before no block")
    if faults:
        raise BadBlock("\n".join(faults))
    return found


def commands(source: str) -> Iterator[str]:
    """The commands of a `sh` block: its lines, continued ones (backslash) joined, without comments and empty lines."""
    for line in source.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def _is_just_before(text: str, end: int, start: int) -> bool:
    """Only the rest of its line, and the indent or list mark of the fence, lie between."""
    return end <= start and re.fullmatch(r"[ \t]*\n[ \t>]*", text[end:start]) is not None


def _block(region: Region, line: int, words: str | None) -> Block:
    language, source = region.lexemes["language"].strip(), str(region.lexemes["source"])
    if language not in LANGUAGES:
        raise BadBlock(f"a block in {language!r}; say one of {', '.join(LANGUAGES)}")
    action, _, argument = ("run" if words is None else words).partition(" ")
    named = FILE.match(source) if language in ("python", "yaml") else None
    block = Block(line, language, source, action, argument.strip(), named["name"] if named else None)
    if words is not None:
        _check_directive(block)
    return block


def _check_directive(block: Block) -> None:
    if block.language not in RUN:
        raise BadBlock(f"a {block.language} block is never run, so it has no directive")
    if block.action == "skip" and block.argument not in REASONS:
        raise BadBlock(f"skip {block.argument!r}; the reasons are {', '.join(REASONS)}")
    if block.action == "with" and not (block.language == "sh" and "marft train" in block.source and block.argument):
        raise BadBlock("`with` needs words, and a `sh` block that holds `marft train`")
    if block.action == "fails" and block.argument:
        raise BadBlock("`fails` takes no words")
    if block.action == "until" and not (block.language == "sh" and block.argument):
        raise BadBlock("`until` needs the words that its `sh` commands print before they are ended")
    if block.action not in ("skip", "with", "until", "fails"):
        raise BadBlock(f"{block.action!r}; a directive is `skip`, `with`, `until` or `fails`")
