"""What guards the page: addresses, names of the machine, what a browser may run, and that nothing is written."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient
from view_runs import episode, write_run

from marft.view.app import application
from marft.view.library import Library
from marft.view.policy import PAGE, fingerprint, inline_scripts


def client(*paths: Path, page: Path = PAGE) -> TestClient:
    return TestClient(application(Library(paths), page), base_url="http://127.0.0.1")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "one", rows=[{"iteration": 0}], episodes={"train-000000": [episode()]})


@pytest.mark.parametrize(
    "identity",
    ["../metrics:0", "train-000000", "train-0:0", "train-000000:-1", "train-000000:0/../x", "/etc/passwd:0", "x", "٣"],
)
def test_an_id_is_nothing_but_a_file_and_a_line(run: Path, identity: str) -> None:
    answer = client(run).get("/api/episode", params={"run": "0", "id": identity})
    assert answer.status_code == 404
    assert "names no episode" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/vendor/%2e%2e/%2e%2e/app.py"])
def test_nothing_but_the_page_is_served(run: Path, path: str) -> None:
    assert client(run).get(path).status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "169.254.1.1", ""])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/source.js"])
def test_another_name_for_this_machine_is_refused(run: Path, host: str, path: str) -> None:
    answer = client(run).get(path, headers={"host": host})
    assert answer.status_code == 400
    assert "runs" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "localhost"])
def test_this_machine_is_answered(run: Path, host: str) -> None:
    assert client(run).get("/api/runs", headers={"host": host}).status_code == 200


def test_only_reading_is_possible(run: Path) -> None:
    assert client(run).post("/api/runs").status_code == 405


def test_the_page_may_run_its_own_scripts_alone(run: Path, tmp_path: Path) -> None:
    answer = client(run).get("/")
    assert answer.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    scripts = inline_scripts(answer.text)
    assert len(scripts) >= 1  # the import map at least
    assert policy["script-src"].split() == ["'self'", *map(fingerprint, scripts)]
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data:"
    # as `printf alert | openssl dgst -sha256 -binary | base64` has it
    assert fingerprint("alert") == "'sha256-35BQWN1npAn++BSA6B5HNlcrDttNf7mHxpXNB+Jg7IE='"


def test_answers_are_never_kept(run: Path) -> None:
    assert client(run).get("/api/runs").headers["cache-control"] == "no-store"
    assert client(run).get("/source.js").headers["cache-control"] == "no-cache"  # asked again whether it is the same
    assert client(run).get("/source.js").headers["content-type"].startswith("text/javascript")


def test_an_installation_without_its_page_says_so(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = client(run, page=tmp_path / "empty").get("/")
    assert (answer.status_code, answer.text) == (
        404,
        "The page is missing from this installation: marft/view/page/index.html.",
    )


def test_looking_at_a_run_writes_nothing_into_it(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for question in ("runs", "metrics?run=0", "team?run=0", "episode?run=0&id=train-000000:0", "health?run=0"):
        assert client(run).get(f"/api/{question}").status_code == 200
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
