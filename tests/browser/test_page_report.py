"""A report opened from a disk, with the network off: every view works, and it says what the live page says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import handmade
import plays
import pytest
from looking import faults, unhurt
from playwright.sync_api import expect

from marft.view.library import Library
from marft.view.report import write_report


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("report")
    return [plays.orchestrated(folder / "orchestrated"), handmade.chain(folder / "chain")]


@pytest.fixture(scope="module")
def live(served: Callable[[Sequence[Path]], str], paths: list[Path]) -> str:
    return served(paths)


@pytest.fixture(scope="module")
def report(paths: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the report on the disk."""
    file = tmp_path_factory.mktemp("out") / "report.html"
    write_report(Library(paths), file)
    return file.as_uri()


@pytest.fixture
def offline(open_page: Callable[..., Any]) -> Any:
    """A page without a network; a request to anywhere fails the test, and so does a complaint of the console."""
    return open_page(offline=True)


VIEWS = {
    "overview?runs=0,1": "Overview",
    "team?run=0&agent=lead": "Team",
    "team?run=0&episode=train-000000:0&turn=1": "Turn 2 of 3",
    "episodes?run=0": "15 episodes",
    "episode?run=0&id=train-000001:0&colour=ratio": "Task T1",
    "compare?run=0&task=A": "evaluation, greedy, iteration 3",
    "health?run=1": "Health",
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens(offline: Any, report: str, view: str) -> None:
    offline.goto(f"{report}#/{view}")
    expect(offline.locator("main")).to_contain_text(VIEWS[view])
    expect(offline.locator(".loading")).to_have_count(0)
    expect(offline.locator(".failure[role=alert]")).to_have_count(0)
    assert unhurt(offline)


def test_no_fault_that_axe_finds(offline: Any, report: str) -> None:
    for view in ("team?run=0", "episode?run=0&id=train-000001:0&colour=advantage"):
        offline.goto(f"{report}#/{view}")
        expect(offline.locator(".agent-node, .action").first).to_be_visible()
        assert faults(offline) == []


QUERIES = [
    "split=greedy",
    "agent=critic&sort=best",
    "outcome=lost&sort=risen",
    "outcome=won&iteration=3&sort=unlikely",
    "search=ZEBRA",
    "search=the tool says",
    "task=T1&sort=oldest",
    "sort=fallen",
    "sort=longest",
    "sort=worst",
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_same_filters_give_the_same_episodes(page: Any, offline: Any, live: str, report: str, query: str) -> None:
    found = []
    for tab, address in ((page, live), (offline, report)):
        tab.goto(f"{address}#/episodes?run=0&{query}")
        expect(tab.locator("a.episode-link").first).to_be_visible()
        links = tab.locator("a.episode-link").evaluate_all("all => all.map((each) => each.dataset.id)")
        found.append((links, tab.locator(".title [role=status]").inner_text()))
    assert found[0] == found[1]
    assert found[0][0]


def test_a_hostile_reply_is_shown_and_not_run(offline: Any, report: str) -> None:
    offline.goto(f"{report}#/episodes?run=0&search=zebra")
    offline.locator("a.episode-link").click()
    expect(offline.locator(".reply").last).to_have_text(f"Zebra {plays.HOSTILE}")
    offline.get_by_role("radio", name="Log-probability").check()
    expect(offline.locator(".reply").last).to_have_text(f"Zebra {plays.HOSTILE}<|end|>")
    assert unhurt(offline)


def test_the_team_and_the_tokens_are_those_of_the_live_page(page: Any, offline: Any, live: str, report: str) -> None:
    read = "all => all.map((each) => ({ ...each.dataset }))"
    for view, what in (
        ("team?run=0&iteration=0", "svg .edge"),
        ("episode?run=0&id=train-000001:0&colour=advantage", "[data-token]"),
    ):
        found = []
        for tab, address in ((page, live), (offline, report)):
            tab.goto(f"{address}#/{view}")
            expect(tab.locator(what).first).to_be_attached()
            found.append(tab.locator(what).evaluate_all(read))
        assert found[0] == found[1]
        assert found[0]


def test_a_report_without_transcripts_says_so(offline: Any, paths: list[Path], tmp_path: Path) -> None:
    write_report(Library(paths), tmp_path / "none.html", episodes=0)
    offline.goto(f"{(tmp_path / 'none.html').as_uri()}#/episodes?run=0")
    expect(offline.locator("main")).to_contain_text("This report was made without transcripts.")
    expect(offline.locator("main")).not_to_contain_text("No episodes")


def test_a_report_that_holds_some_says_how_many(offline: Any, tmp_path: Path) -> None:
    run = plays.many(tmp_path / "run", count=120, files=2)
    write_report(Library([run]), tmp_path / "part.html", episodes=20)
    offline.goto(f"{(tmp_path / 'part.html').as_uri()}#/episodes?run=0")
    expect(offline.locator("main")).to_contain_text("This report holds 20 of the run’s 120 episodes")
    expect(offline.locator("a.episode-link")).to_have_count(20)
