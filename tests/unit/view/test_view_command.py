"""`marft view` and `marft report` as a person runs them."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from view_runs import episode, write_run

from marft.cli import main

QUIET = "import sys; from marft.cli import main; main(sys.argv[1:])"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", rows=[{"iteration": 0, "reward": 1.0}], episodes={"train-000000": [episode()]})


def fails(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def test_the_page_is_served_on_this_machine_until_control_c(run: Path) -> None:
    environment = {**os.environ, "DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""}
    command = [sys.executable, "-c", QUIET, "view", str(run)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            host, port = address.removeprefix("http://").removesuffix("/").split(":")
            assert host == "127.0.0.1"
            with urllib.request.urlopen(f"{address}api/runs", timeout=60) as answer:
                assert [each["name"] for each in json.load(answer)["runs"]] == ["run"]
                assert "server" not in answer.headers
            for other in _addresses():  # nobody else's machine may look
                with socket.socket() as outside:
                    outside.settimeout(5)
                    assert outside.connect_ex((other, int(port))) != 0
            server.send_signal(signal.SIGINT)
            rest, errors = server.communicate(timeout=60)
        finally:
            server.kill()
    assert (server.returncode, rest, errors) == (0, "", "")


def _addresses() -> set[str]:
    """This machine's other IPv4 addresses; 127.0.0.2 is one on Linux."""
    found = {"127.0.0.2"}
    with suppress(OSError):
        found |= {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    return found - {"127.0.0.1"}


def test_a_taken_port_is_said_in_a_sentence(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = fails("view", str(run), "--no-browser", "--port", port, capsys=capsys)
    assert said == f"error: --port {port}: the port is taken; choose another, or 0 for any that is free\n"


@pytest.mark.parametrize("command", ["view", "report"])
def test_what_is_no_run_is_named(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = fails(command, str(run.with_name("rum")), capsys=capsys)
    assert said == f"error: {run.with_name('rum')}: there is no such run; did you mean '{run}'?\n"


def test_a_report_is_written(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(run), "-o", str(tmp_path / "report.html"), "--episodes", "1"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'report.html'} (")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_a_file_in_the_way_of_a_report_is_kept(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.html").write_text("mine")
    assert "is no report of marft's" in fails("report", str(run), "-o", str(tmp_path / "notes.html"), capsys=capsys)
    assert (tmp_path / "notes.html").read_text() == "mine"


def test_looking_at_runs_loads_neither_torch_nor_a_server() -> None:
    heavy = "torch", "transformers", "pandas"
    code = f"import marft.view.report, sys; print([each for each in {(*heavy, 'starlette')} if each in sys.modules])"
    code += f"; import marft.view.app; print([each for each in {heavy} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"
