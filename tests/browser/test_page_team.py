"""The team's page: D as it was played, an agent's facts, and an episode turn by turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import handmade
import plays
import pytest
from looking import WATCH, faults, shift, too_wide, unhurt
from playwright.sync_api import expect

Edges = set[tuple[str, str, bool, int]]


@pytest.fixture(scope="module")
def address(served: Callable[[Sequence[Path]], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page over an orchestrated team (run 0), a debate (1) and a chain of twelve (2)."""
    folder = tmp_path_factory.mktemp("team")
    chain = folder / "chain"
    names = [f"agent{number}" for number in range(12)]
    plays.begin(chain, [{"name": name} for name in names], "chain", iterations=1)
    actions: plays.Actions = []
    for place, name in enumerate(names):
        plays.speak(actions, name, 0, range(place), ["so", "<|end|>"], -0.1)
    plays.training(chain, 0, [plays.episode("T", 1.0, actions)])
    return served([plays.orchestrated(folder / "orchestrated"), handmade.debate(folder / "debate"), chain])


def edges(page: Any, kind: str = "") -> Edges:
    """The arrows drawn: from, to, whether of an earlier turn, how often."""
    found = page.eval_on_selector_all(
        f"svg .edge{kind}",
        "all => all.map((each) => [each.dataset.from, each.dataset.to, each.dataset.recall, each.dataset.count])",
    )
    return {(speaker, reader, recall == "true", int(count)) for speaker, reader, recall, count in found}


def test_draws_who_read_whom_as_played(page: Any, address: str) -> None:
    page.goto(f"{address}#/team?run=0")
    expect(page.locator("svg .edge")).to_have_count(4)
    assert edges(page) == {
        ("lead", "coder", False, 12),  # all but the failed one and the two that call the critic alone
        ("coder", "lead", True, 12),
        ("lead", "critic", False, 4),
        ("critic", "lead", True, 4),
    }
    # 12 and 4 of the 14 episodes that did not fail; the arrow played more often is the thicker one
    assert sorted(page.locator("svg text").all_text_contents()) == ["0.29", "0.29", "0.86", "0.86"]
    width = {
        key: float(page.locator(f"svg .edge[data-from=lead][data-to={key}] .line").get_attribute("stroke-width"))
        for key in ("coder", "critic")
    }
    assert width["coder"] > width["critic"]
    dashed = page.locator("svg .edge[data-recall=true] .line[stroke-dasharray]")
    expect(dashed).to_have_count(2)


def test_an_iteration_shows_its_own_arrows(page: Any, address: str) -> None:
    page.goto(f"{address}#/team?run=0")
    page.get_by_role("combobox", name="Iteration").select_option("2")
    expect(page.locator("svg .edge")).to_have_count(2)
    assert edges(page) == {("lead", "critic", False, 2), ("critic", "lead", True, 2)}
    expect(page.locator("main")).to_contain_text("2 episodes of iteration 2")
    page.reload()
    expect(page.locator("svg .edge")).to_have_count(2)
    page.get_by_role("combobox", name="Iteration").select_option("0")
    expect(page.locator("svg .edge")).to_have_count(4)
    assert ("lead", "coder", False, 6) in edges(page)  # two of training, four of the evaluation before it


def test_an_agent_says_what_it_is(page: Any, address: str) -> None:
    page.goto(f"{address}#/team?run=0")
    coder, critic = page.locator("[data-agent=coder]"), page.locator("[data-agent=critic]")
    expect(coder).to_contain_text("learns, task hidden")
    expect(coder).to_contain_text("tools: python")
    expect(coder).to_contain_text("influence +0.25")
    expect(coder).to_contain_text("[0.125, 0.375]")
    expect(critic).to_contain_text("frozen")
    expect(page.locator("[data-agent=lead]")).to_contain_text("sees the task")
    critic.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".profile")).to_contain_text(f"You are critic. {plays.HOSTILE}")
    expect(page.locator(".profile")).to_contain_text("small")
    assert unhurt(page)
    page.reload()
    expect(page.locator(".profile h2")).to_have_text("critic")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="coder")).first
    assert row.get_by_role("cell").all_text_contents() == [
        "yes",
        "no",
        "lead",
        "python",
        "+0.25 [0.125, 0.375]",
        "coder",
        "small",
    ]


def test_steps_through_the_turns_of_an_episode(page: Any, address: str) -> None:
    page.goto(f"{address}#/team?run=0&episode=train-000000:0")
    expect(page.get_by_text("Turn 1 of 3")).to_be_visible()
    assert {each[:3] for each in edges(page, ".strong")} == {("lead", "coder", False)}  # its tool's answer is no arrow
    assert {each[:3] for each in edges(page, ".faint")} == {
        ("coder", "lead", True),
        ("lead", "critic", False),
        ("critic", "lead", True),
    }
    assert page.locator(".spoken li strong").all_text_contents() == ["lead", "coder", "coder"]
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("Turn 2 of 3")).to_be_visible()
    assert {each[:3] for each in edges(page, ".strong")} == {("coder", "lead", True), ("lead", "critic", False)}
    expect(page.locator(".spoken li").first).to_contain_text("having read coder")
    page.get_by_role("button", name="Next turn").click()
    expect(page.get_by_text("Turn 3 of 3")).to_be_visible()
    assert {each[:3] for each in edges(page, ".strong")} == {("critic", "lead", True)}
    expect(page.get_by_role("button", name="Next turn")).to_be_disabled()
    page.reload()
    expect(page.get_by_text("Turn 3 of 3")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("Turn 2 of 3")).to_be_visible()


def test_episodes_are_told_apart_and_training_is_offered_too(page: Any, address: str) -> None:
    page.goto(f"{address}#/team?run=0")
    choice = page.get_by_role("combobox", name="Step through")
    expect(choice.locator("option")).to_have_count(16)  # all fifteen, and none
    page.get_by_role("combobox", name="Iteration").select_option("0")
    expect(choice.locator("option")).to_have_count(8)
    groups = choice.locator("optgroup").evaluate_all("all => all.map((each) => each.label)")
    assert groups == ["Training, iteration 0", "Evaluation, greedy, iteration 0", "Evaluation, sampled, iteration 0"]
    assert choice.locator("optgroup").first.locator("option").all_text_contents() == [
        "lost 0, T1: 42",
        "won +1, T1: 42 for sure.",
        "failed 0, T2: 42",
    ]
    choice.select_option("train-000000:1")
    expect(page.get_by_text("Turn 1 of 3")).to_be_visible()
    choice.focus()
    page.keyboard.press("ArrowRight")  # steps, though the choice has the focus
    expect(page.get_by_text("Turn 2 of 3")).to_be_visible()
    assert choice.input_value() == "train-000000:1"


def test_a_run_that_names_no_agents_is_told_of(page: Any, served: Any, tmp_path: Path) -> None:
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow/config.yaml").write_text("seed: 1\n", encoding="utf8")
    page.goto(f"{served([tmp_path / 'hollow'])}#/team?run=0")
    expect(page.locator("main")).to_contain_text("names no agents")
    expect(page.locator(".live-mark")).to_have_text("not started")


def test_rounds_within_a_turn_are_stepped_through_too(page: Any, address: str) -> None:
    page.goto(f"{address}#/team?run=1&episode=train-000000:0")
    expect(page.get_by_text("Round 1 of 2")).to_be_visible()
    assert edges(page, ".strong") == set()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("Round 2 of 2")).to_be_visible()
    who = handmade.DEBATERS
    assert {each[:2] for each in edges(page, ".strong")} == {(one, other) for one in who for other in who}
    assert page.locator(".spoken li strong").all_text_contents() == list(who)


def test_debaters_stand_side_by_side_and_readers_below(page: Any, address: str) -> None:
    page.goto(f"{address}#/team?run=1")
    expect(page.locator("svg .edge").first).to_be_attached()
    tops = {page.locator(f"[data-agent={name}]").bounding_box()["y"] for name in handmade.DEBATERS}
    assert len(tops) == 1
    page.goto(f"{address}#/team?run=0")
    expect(page.locator("[data-agent=critic]")).to_be_visible()
    y = {name: page.locator(f"[data-agent={name}]").bounding_box()["y"] for name in plays.AGENTS}
    assert y["lead"] < y["coder"] == y["critic"]


def test_twelve_agents_do_not_lie_on_each_other(page: Any, address: str) -> None:
    page.goto(f"{address}#/team?run=2")
    expect(page.locator("svg .edge")).to_have_count(66)  # each reads all before it
    boxes = [page.locator(f"[data-agent=agent{number}]").bounding_box() for number in range(12)]
    for place, one in enumerate(boxes):
        for other in boxes[place + 1 :]:
            apart = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            assert apart or one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
    labels = page.eval_on_selector_all(
        "svg text", "all => all.map((each) => [each.getAttribute('x'), each.getAttribute('y')].join())"
    )
    assert len(set(labels)) == 66  # no number lies on another


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["team?run=0&agent=coder", "team?run=0&episode=train-000000:0&turn=1", "team?run=1"])
def test_no_fault_that_axe_finds(open_page: Callable[..., Any], address: str, scheme: str, view: str) -> None:
    page = open_page(color_scheme=scheme)
    page.goto(f"{address}#/{view}")
    expect(page.locator("svg .edge").first).to_be_attached()
    assert faults(page) == []


def test_on_a_phone(open_page: Callable[..., Any], address: str) -> None:
    page = open_page(viewport={"width": 360, "height": 740})
    for view in ("team?run=0&agent=coder", "team?run=2", "team?run=0&episode=train-000000:0"):
        page.goto(f"{address}#/{view}")
        expect(page.locator("svg .edge").first).to_be_attached()
        assert too_wide(page) <= 0
    assert faults(page) == []


def test_nothing_jumps(page: Any, address: str) -> None:
    page.add_init_script(WATCH)
    page.goto(f"{address}#/team?run=0")
    expect(page.locator("svg .edge")).to_have_count(4)
    expect(page.get_by_role("combobox", name="Iteration").locator("option")).to_have_count(4)
    page.wait_for_timeout(300)
    assert shift(page) < 0.02


def test_the_drawing_is_told_in_words(page: Any, address: str) -> None:
    page.goto(f"{address}#/team?run=0")
    drawing = page.get_by_role("img", name=re.compile("lead to coder: 0.86"))
    expect(drawing).to_be_visible()
    table = page.get_by_role("table").nth(1)
    rows = [row.get_by_role("cell").all_text_contents() for row in table.get_by_role("row").all()[1:]]
    assert ["lead", "an earlier turn", "12", "0.86"] in rows
