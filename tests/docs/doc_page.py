"""Runs the blocks of one page, in order, in one folder that holds a copy of `examples/`.

`python tests/docs/doc_page.py PAGE …` runs pages by hand and lists what was run and what was skipped, and why.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import typer
import yaml
from doc_blocks import Block, blocks, commands

from marft.cli.app import app
from marft.config import Config, load_config, parse_config
from marft.environments import build_environment
from marft.run.offline import offline_game
from marft.types import MarftError

ROOT = Path(__file__).parents[2]
SECONDS = 600  # for one block, on a machine that does other things too
MISTAKE = 2  # the exit status of a command that was asked for something it cannot do
BASE = {
    "model": {"name": "tiny"},
    "team": {"agents": [{"name": "ann"}, {"name": "bob"}]},
    "environment": {"name": "relay"},
}  # what a page's top-level keys are put into
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "PIP_NO_INDEX": "1",  # a page that forgets to skip an installation fails, and installs nothing
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "COLUMNS": "120",
}


@dataclass
class Report:
    """What became of a page's blocks; `failed` holds a line number and what went wrong."""

    ran: list[Block] = field(default_factory=list)
    skipped: list[Block] = field(default_factory=list)
    shown: list[Block] = field(default_factory=list)  # text, json, mermaid
    failed: list[tuple[int, str]] = field(default_factory=list)


class Failed(Exception):
    """A block did not do what it says."""


def run_page(text: str, name: str, folder: Path) -> Report:
    """Run all blocks of a page in `folder`, going on after a failure. Raises `BadBlock` for blocks of no convention."""
    report = Report()
    found = blocks(text)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with _inside(folder):
        for block in found:
            if block.language not in ACTIONS:
                report.shown.append(block)
                continue
            (report.skipped if block.action == "skip" else report.ran).append(block)
            try:
                ACTIONS[block.language](block, f"{name}:{block.line}", folder, namespace)
            except (Failed, MarftError) as error:
                report.failed.append((block.line, str(error)))
    return report


def run_sh(block: Block, where: str, folder: Path, namespace: dict[str, Any]) -> None:
    """With bash, which stops at the first failure; each `marft` command is also held against the command line."""
    for command in commands(block.source):
        if block.action != "fails":
            check_command(command, folder)
    if block.action == "skip":
        return
    # `with`: a function of that name appends the words wherever `marft train` is called
    train = f'marft() {{ if [ "$1" = train ]; then command marft "$@" {block.argument}; else command marft "$@"; fi; }}'
    lead = f"{train}\n" if block.action == "with" else ""
    until = block.argument if block.action == "until" else None
    for script in commands(block.source) if block.action in ("fails", "until") else [block.source]:
        status, output = _bash(lead + script, folder, until)
        if status not in {"fails": (MISTAKE,), "until": (0, -signal.SIGINT)}.get(block.action, (0,)):
            raise Failed(f"{script.strip()}\nended with status {status}:\n{output[-3000:]}")


def run_python(block: Block, where: str, folder: Path, namespace: dict[str, Any]) -> None:
    """Compiled with the page's own line numbers; then written to its file, or executed."""
    try:
        code = compile("\n" * block.line + block.source, where, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise Failed(f"does not compile: {error}") from None
    if block.file is not None:
        _write(block, folder)
    elif block.action != "skip":
        try:
            with _no_longer_than(SECONDS):
                exec(code, namespace)
        except MarftError:
            if block.action != "fails":
                raise
        except BaseException:
            raise Failed(traceback.format_exc(limit=-4)) from None
        else:
            if block.action == "fails":
                raise Failed("was said to fail, and did not")


def run_yaml(block: Block, where: str, folder: Path, namespace: dict[str, Any]) -> None:
    """A config, or top-level keys of one, held against the schema, its environment's keys and its organisation."""
    try:
        raw = yaml.safe_load(block.source)
    except yaml.YAMLError as error:
        raise Failed(f"is not YAML: {error}") from None
    if block.file is not None:
        _write(block, folder)
    if not isinstance(raw, dict):
        raise Failed("holds no top-level keys of a config")
    try:
        if block.file is None or "environment" in raw or "team" in raw:
            check_config(parse_config(raw if block.file else {**BASE, **raw}, where), where)
    except MarftError:
        if block.action != "fails":
            raise
    else:
        if block.action == "fails":
            raise Failed("was said to be wrong, and is not")


ACTIONS = {"sh": run_sh, "python": run_python, "yaml": run_yaml}


def check_config(config: Config, where: str) -> None:
    """Raise `MarftError` unless a game can be made of the config; data that are not there are not missed."""
    if ":" in config.environment.name:
        build_environment(config.environment, where)
    offline_game(config, where)


def check_command(command: str, folder: Path) -> None:
    """Raise `Failed` where a `marft` command asks for a command, an option or a config key that there is not."""
    for words in _simple_commands(command):
        if "marft" not in words[:3]:  # `timeout 9 marft …` and `NAME=VALUE marft …` too
            continue
        name, *rest = words[words.index("marft") + 1 :] or ["--help"]
        group: Any = typer.main.get_command(app)
        context = typer.Context(group, info_name="marft")
        try:
            chosen = group if name.startswith("-") else group.commands.get(name)
            if chosen is None:
                raise Failed(f"{command}\nthere is no command 'marft {name}'")
            chosen.make_context(
                name, [name, *rest] if chosen is group else [*rest], parent=context
            )  # it empties its list
        except typer.Exit:  # --help, --version
            continue
        except typer.TyperException as error:
            raise Failed(f"{command}\n{error.format_message()}") from None
        configs = [word for word in rest if word.endswith((".yaml", ".yml")) and (folder / word).is_file()]
        overrides = [word for word in rest if "=" in word and not word.startswith("-") and "$" not in word]
        for config in configs[:1]:
            try:
                load_config(folder / config, overrides)
            except MarftError as error:
                raise Failed(f"{command}\n{error}") from None


def _simple_commands(command: str) -> Iterator[list[str]]:
    """The words of a line, split where bash would start another command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("();|&"):
            if words:
                yield words
            words = []
        else:
            words.append(word)


def _bash(script: str, folder: Path, until: str | None = None) -> tuple[int, str]:
    """Exit status, and what was printed; whatever the script leaves running is ended.

    One that goes on by itself is interrupted as a person would, once it has printed `until`.
    """
    environment = {**os.environ, **SETTINGS, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.NamedTemporaryFile("w+") as output:
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # A job in the background of a script ignores Ctrl-C, and so would all that it starts
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            if until is not None:
                _await(until, process, output.name)
                os.killpg(process.pid, signal.SIGINT)
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return status, output.read()


def _await(words: str, process: subprocess.Popen[bytes], output: str) -> None:
    """Until a process has printed these words. Raises `Failed` when it ends before, or takes too long."""
    end = time.monotonic() + SECONDS
    while words not in (printed := Path(output).read_text(encoding="utf8")):
        if process.poll() is not None or time.monotonic() > end:
            raise Failed(f"did not print {words!r}:\n{printed[-3000:]}")
        time.sleep(0.1)


def _write(block: Block, folder: Path) -> None:
    assert block.file is not None
    place = folder / block.file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(block.source, encoding="utf8")


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """In that folder, and with its modules; both are forgotten afterwards."""
    before, path = Path.cwd(), list(sys.path)
    kept = {name: os.environ.get(name) for name in SETTINGS}
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ.update(SETTINGS)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


@contextlib.contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    """Run the pages named on the command line."""
    failures = 0
    for page in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            report = run_page(page.read_text(encoding="utf8"), str(page), Path(folder).resolve())
        print(f"{page}: {len(report.ran)} ran, {len(report.skipped)} skipped, {len(report.shown)} shown")
        for block in report.skipped:
            print(f"  line {block.line}: {block.language}, skipped: {block.argument}")
        for line, why in report.failed:
            print(f"  line {line}: FAILED: {why}")
        failures += len(report.failed)
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
