"""The same task at two times, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import plays
import pytest
from looking import WATCH, faults, shift, too_wide, unhurt
from playwright.sync_api import expect


@pytest.fixture(scope="module")
def address(served: Callable[[Sequence[Path]], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page over the orchestrated run (0) and the same as older runs were written (1)."""
    folder = tmp_path_factory.mktemp("compare")
    return served([plays.orchestrated(folder / "new"), plays.orchestrated(folder / "old", old=True)])


def chosen(page: Any) -> list[str]:
    """The ids that the two choices stand at."""
    return [page.get_by_role("combobox", name=name).input_value() for name in ("Left", "Right")]


def said(page: Any, side: str) -> list[str]:
    """Who speaks in a column."""
    return list(page.locator(f".cell.{side} h3").all_text_contents())


def test_begins_with_the_first_and_the_last_evaluation(page: Any, address: str) -> None:
    page.goto(f"{address}#/compare?run=0&task=A")
    expect(page.locator(".cell.right .action")).to_have_count(3)
    assert chosen(page) == ["evaluation-000000:0", "evaluation-000003:0"]  # the greedy ones
    sides = page.locator(".side")
    expect(sides.nth(0)).to_contain_text("lost reward 0, success 0")
    expect(sides.nth(1)).to_contain_text("won reward +1, success 1")
    options = page.get_by_role("combobox", name="Left").locator("option").all_text_contents()
    assert options == [
        "evaluation, greedy, iteration 0: lost 0",
        "evaluation, sampled, iteration 0: won +1",
        "evaluation, greedy, iteration 3: won +1",
        "evaluation, sampled, iteration 3: won +1",
    ]


def test_begins_with_the_first_and_the_last_play_where_none_was_evaluated(page: Any, address: str) -> None:
    page.goto(f"{address}#/compare?run=0&task=T1")
    expect(page.locator(".cell.left .action")).to_have_count(6)
    assert chosen(page) == ["train-000000:0", "train-000002:0"]
    assert said(page, "left") == ["lead", "coder", "coder", "lead", "critic", "lead"]
    assert said(page, "right") == ["lead", "critic", "lead"]
    expect(page.locator(".cell.right").nth(3)).to_contain_text("Nobody speaks here.")


def test_begins_with_the_play_one_was_reading(page: Any, address: str) -> None:
    page.goto(f"{address}#/episode?run=0&id=train-000000:1")
    page.get_by_role("link", name="Compare with another play").click()
    expect(page.locator(".cell.left .action")).to_have_count(6)
    assert chosen(page) == ["train-000000:1", "train-000002:0"]  # and the newest other of training
    page.get_by_role("combobox", name="Left").select_option("train-000001:0")
    expect(page.locator(".cell.left .action")).to_have_count(3)
    assert chosen(page) == ["train-000001:0", "train-000002:0"]
    page.goto(f"{address}#/compare?run=0&task=A&left=evaluation-000003:0")
    expect(page.locator(".cell.left .action")).to_have_count(3)
    assert chosen(page) == ["evaluation-000003:0", "evaluation-000000:0"]


def test_actions_stand_beside_each_other(page: Any, address: str) -> None:
    page.goto(f"{address}#/compare?run=0&task=T1")
    expect(page.locator(".cell.left .action")).to_have_count(6)
    for index in range(3):
        left = page.locator(".cell.left .action").nth(index).bounding_box()
        right = page.locator(".cell.right .action").nth(index).bounding_box()
        assert left["y"] == right["y"]
        assert left["x"] + left["width"] <= right["x"]


def test_another_play_is_chosen_and_kept_in_the_link(page: Any, address: str) -> None:
    page.goto(f"{address}#/compare?run=0&task=T1")
    page.get_by_role("combobox", name="Right").select_option("train-000000:1")
    expect(page.locator(".cell.right").last).to_contain_text("42 for sure.")
    page.get_by_role("combobox", name="Left").select_option("train-000001:0")
    expect(page.locator(".cell.left .action")).to_have_count(3)
    page.reload()
    expect(page.locator(".cell.left .action")).to_have_count(3)
    assert chosen(page) == ["train-000001:0", "train-000000:1"]


def test_the_strip_shows_every_time_the_task_was_played(page: Any, address: str) -> None:
    page.goto(f"{address}#/compare?run=0&task=T2")
    expect(page.locator(".strip .play")).to_have_count(3)
    expect(page.locator(".strip figcaption")).to_contain_text("Played 3 times, won 1")
    kinds = page.locator(".strip .play").evaluate_all("all => all.map((each) => each.getAttribute('class'))")
    assert kinds == ["play failed", "play lost", "play won"]
    assert page.locator(".strip .play text").all_text_contents() == ["L", "R"]


def test_colours_share_one_scale(page: Any, address: str) -> None:
    page.goto(f"{address}#/compare?run=0&task=T1&left=train-000001:0&right=train-000000:1")
    page.get_by_role("radio", name="Log-probability").check()
    expect(page.locator(".cell.left [data-token]")).to_have_count(8)  # 3, 3 and 2 tokens
    expect(page.locator(".cell.right [data-token]")).to_have_count(19)  # 3, 3, 2, 3, 3 and 5
    page.locator(".cell.right .reply").last.locator("[data-token='2']").hover()
    expect(page.locator(".readout")).to_contain_text("lead, token 3 of 5")
    page.get_by_role("radio", name="Advantage").check()
    left = page.locator(".cell.left .reply").first.locator("[data-token]")
    assert left.evaluate_all("all => all.map((each) => each.dataset.advantage)") == ["-2", "0.5", "1"]
    expect(page.locator(".cell.right").first).to_contain_text("nothing was learnt from this reply")


def test_a_run_without_tokens_is_plain(page: Any, address: str) -> None:
    page.goto(f"{address}#/compare?run=1&task=A&colour=logprob")
    expect(page.locator(".cell.right .action")).to_have_count(3)
    expect(page.locator(".colour-missing")).to_contain_text("before tokens were kept")
    expect(page.locator("[data-token]")).to_have_count(0)


def test_without_a_task_those_that_changed_most_are_offered(page: Any, address: str) -> None:
    page.goto(f"{address}#/compare?run=0")
    tasks = page.locator(".tasks a")
    expect(tasks).to_have_count(2)
    assert [task.inner_text() for task in tasks.all()] == [f"How much is 6 * 7, task {name}?" for name in "AB"]
    tasks.first.click()
    expect(page.locator(".cell.right .action")).to_have_count(3)


def test_hostile_text_is_text(page: Any, address: str) -> None:
    page.goto(f"{address}#/compare?run=0&task=T2&left=train-000001:1&colour=logprob")
    expect(page.locator(".cell.left").last).to_contain_text(plays.HOSTILE)
    assert unhurt(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_fault_that_axe_finds(open_page: Callable[..., Any], address: str, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    for view in ("compare?run=0&task=T1&colour=logprob", "compare?run=0"):
        page.goto(f"{address}#/{view}")
        expect(page.locator(".cell.right .action, .tasks a").first).to_be_visible()
        assert faults(page) == []


def test_on_a_phone(open_page: Callable[..., Any], address: str) -> None:
    page = open_page(viewport={"width": 360, "height": 740})
    page.goto(f"{address}#/compare?run=0&task=T1&colour=logprob")
    expect(page.locator(".cell.right .action").first).to_be_visible()
    assert too_wide(page) <= 0
    left, right = (page.locator(f".cell.{side} .action").first.bounding_box() for side in ("left", "right"))
    assert left["y"] + left["height"] <= right["y"]  # one below the other
    expect(page.locator(".cell.right").first).to_contain_text("training, iteration 2")  # and each says which it is
    assert faults(page) == []


def test_nothing_jumps(page: Any, address: str) -> None:
    page.add_init_script(WATCH)
    page.goto(f"{address}#/compare?run=0&task=A")
    expect(page.locator(".cell.right .action")).to_have_count(3)
    page.wait_for_timeout(300)
    assert shift(page) < 0.05
