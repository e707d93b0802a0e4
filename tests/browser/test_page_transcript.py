"""The page of one episode: its head, its transcript, colours of tokens, hostile text, the way to its neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import plays
import pytest
from looking import faults, too_wide, unhurt
from playwright.sync_api import expect

LEARNT = "train-000001:0"  # the episode that `plays.LEARNT` speaks of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("episodes")


@pytest.fixture(scope="module")
def address(served: Callable[[Sequence[Path]], str], folder: Path) -> str:
    """The page over the orchestrated run (0), the same as older runs were written (1), and 120 episodes (2)."""
    old = plays.orchestrated(folder / "old", old=True)
    return served([plays.orchestrated(folder / "new"), old, plays.many(folder / "some", count=120, files=2)])


def listed(page: Any, count: int) -> list[str]:
    """The ids in the list, which holds so many."""
    links = page.locator("a.episode-link")
    expect(links).to_have_count(count)
    return [link.get_attribute("data-id") for link in links.all()]


def colour(page: Any, name: str) -> None:
    page.get_by_role("radio", name=name).check()


def test_the_page_of_an_episode_says_how_it_went(page: Any, address: str) -> None:
    page.goto(f"{address}#/episode?run=0&id=train-000000:1")
    expect(page.get_by_role("heading", name="Task T1")).to_be_visible()
    said = page.locator("main").inner_text()
    for words in ("won", "training, iteration 0, sample 1", "How much is 6 * 7, task T1?", "terminated", "care", "0.5"):
        assert words in said
    cards = page.locator(".action")
    expect(cards).to_have_count(6)
    assert page.locator(".action h3").all_text_contents() == ["lead", "coder", "coder", "lead", "critic", "lead"]
    expect(cards.nth(1)).to_contain_text("read: lead")
    expect(cards.nth(1).locator(".tool-result")).to_contain_text("the tool says 42")
    expect(cards.nth(2)).to_contain_text("turn 1, step 2")
    expect(cards.nth(3)).to_contain_text("read: coder")
    expect(cards.nth(5)).to_contain_text("reward +1")
    expect(cards.nth(4)).not_to_contain_text("reward")
    prompt = cards.nth(0).locator(".prompt")
    expect(prompt).to_be_hidden()
    cards.nth(0).locator("summary").click()
    expect(prompt).to_have_text("<|system|>You are lead.<|reply|>")


def test_a_failure_in_words_and_a_reply_that_was_cut(page: Any, address: str, folder: Path, served: Any) -> None:
    page.goto(f"{address}#/episode?run=0&id=train-000000:2")
    expect(page.locator(".failure")).to_contain_text(f"coder failed, no answer in 5 s {plays.HOSTILE}")
    cut = folder / "cut"
    plays.begin(cut, [plays.agent("lead")], "chain", iterations=1)
    actions: plays.Actions = []
    plays.speak(actions, "lead", 0, [], ["a", "b"], -0.1, stop="length", truncated_tokens=7)
    plays.training(cut, 0, [plays.episode("T", 0.0, actions, terminated=False, truncated=True)])
    page.goto(f"{served([cut])}#/episode?run=0&id=train-000000:0")
    expect(page.locator(".action")).to_contain_text("cut off at 2 tokens")
    expect(page.locator(".action details")).to_contain_text("7 tokens were left out")
    expect(page.locator("main")).to_contain_text("truncated (out of turns)")


def test_text_of_models_is_text(page: Any, address: str) -> None:
    page.goto(f"{address}#/episodes?run=0&search=zebra")
    expect(page.locator("a.episode-link")).to_contain_text(plays.HOSTILE)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".reply").last).to_have_text(f"Zebra {plays.HOSTILE}")
    colour(page, "Log-probability")
    expect(page.locator(".reply").last).to_have_text(f"Zebra {plays.HOSTILE}<|end|>")
    assert page.locator("main script, main img").count() == 0
    assert unhurt(page)


TOKENS = """all => all.map((each) => ({
  ...each.dataset, text: each.textContent, kind: each.className, depth: each.style.getPropertyValue("--depth"),
}))"""


def tokens(page: Any, action: int) -> list[dict[str, str]]:
    """What stands on each coloured token of a reply."""
    found = page.locator(".reply").nth(action).locator("[data-token]")
    expect(found.first).to_be_visible()
    return list(found.evaluate_all(TOKENS))


def test_tokens_coloured_by_log_probability(page: Any, address: str) -> None:
    page.goto(f"{address}#/episode?run=0&id=train-000002:1")
    expect(page.locator("[data-token]")).to_have_count(0)
    colour(page, "Log-probability")
    found = tokens(page, 0)
    assert [each["text"] for each in found] == ["ask", " critic", "<|end|>"]
    assert {each["logprob"] for each in found} == {"-2"}
    assert {each["depth"] for each in found} == {f"{round(100 * (1 - math.exp(-2)))}%"}
    page.reload()
    assert len(tokens(page, 0)) == 3
    assert "colour=logprob" in page.url


def test_tokens_coloured_by_advantage_and_ratio(page: Any, address: str) -> None:
    page.goto(f"{address}#/episode?run=0&id={LEARNT}&colour=advantage")
    first = tokens(page, 0)
    assert [each["advantage"] for each in first] == ["-2", "0.5", "1"]
    assert ["low" in each["kind"] for each in first] == [True, False, False]
    assert [each["depth"] for each in first] == ["100%", "25%", "50%"]  # of 2, the round number that holds them
    assert {each["advantage"] for each in tokens(page, 1)} == {"0.75"}  # one decision: all its tokens
    cards = page.locator(".action")
    expect(cards.nth(0)).to_contain_text("advantage −0.167 (mean of 3)")
    expect(cards.nth(2)).to_contain_text("nothing was learnt from this reply")
    colour(page, "Ratio")
    first = tokens(page, 0)
    assert [each["ratio"] for each in first] == ["0.5", "1", "2"]
    assert [each["depth"] for each in first] == ["100%", "0%", "100%"]  # half and twice are as far from 1
    expect(cards.nth(1)).to_contain_text("The ratio was not measured on this reply")
    assert page.locator(".token-legend li").all_text_contents() == ["0.5", "0.707", "1", "1.41", "2"]


def test_the_numbers_of_a_token_stand_in_one_place(page: Any, address: str) -> None:
    page.goto(f"{address}#/episode?run=0&id={LEARNT}&colour=advantage")
    readout, reply = page.locator(".readout"), page.locator(".reply").first
    expect(readout).to_contain_text("Point at a")
    before = page.locator(".token-bar").bounding_box(), reply.bounding_box()
    reply.locator("[data-token='2']").hover()
    for words in ("lead, token 3 of 3", "log-probability −0.1000", "p 0.905", "advantage +1.000", "ratio 2.000"):
        expect(readout).to_contain_text(words)
    assert (page.locator(".token-bar").bounding_box(), reply.bounding_box()) == before
    page.get_by_role("radio", name="Advantage").focus()
    for _ in range(2):  # over the folded prompt to the reply
        page.keyboard.press("Tab")
    expect(reply).to_be_focused()
    expect(readout).to_contain_text("token 1 of 3")
    for key, place in (
        ("ArrowRight", 2),
        ("ArrowRight", 3),
        ("ArrowRight", 3),
        ("ArrowLeft", 2),
        ("Home", 1),
        ("End", 3),
    ):
        page.keyboard.press(key)
        expect(readout).to_contain_text(f"token {place} of 3")
    assert (page.locator(".token-bar").bounding_box(), reply.bounding_box()) == before


def test_line_breaks_are_shown_and_not_copied(page: Any, address: str) -> None:
    page.goto(f"{address}#/episode?run=0&id=train-000000:0&colour=logprob")
    reply = page.locator(".reply").nth(1)
    expect(reply).to_have_text("6*7\n<|end|>", use_inner_text=False)
    shown = reply.locator(".newline").evaluate("(each) => getComputedStyle(each, '::before').content")
    assert shown == '"↵"'
    copied = reply.evaluate("(each) => { getSelection().selectAllChildren(each); return getSelection().toString(); }")
    assert copied == "6*7\n<|end|>"


def test_an_older_run_is_plain_text_and_says_why(page: Any, address: str) -> None:
    page.goto(f"{address}#/episode?run=1&id=train-000000:0&colour=logprob")
    expect(page.locator(".reply")).to_have_count(6)
    expect(page.locator(".colour-missing")).to_have_text(
        "This run was made before tokens were kept with the episodes, so the reply is plain text."
    )
    expect(page.locator("[data-token]")).to_have_count(0)
    expect(page.locator(".reply").last).to_have_text("42")


def test_next_and_previous_follow_the_filter_and_its_order(page: Any, address: str) -> None:
    page.goto(f"{address}#/episodes?run=0&agent=critic&sort=best")  # rewards 1, 1, 0, 0, newest first
    order = ["train-000002:1", "train-000000:1", "train-000002:0", "train-000000:0"]
    assert listed(page, 4) == order
    page.locator("a.episode-link").nth(1).click()
    expect(page.get_by_text("2 of 4")).to_be_visible()
    page.get_by_role("button", name="Next", exact=True).click()
    expect(page.get_by_text("3 of 4")).to_be_visible()
    assert "id=train-000002:0" in page.url
    page.keyboard.press("n")
    expect(page.get_by_text("4 of 4")).to_be_visible()
    assert "id=train-000000:0" in page.url
    expect(page.get_by_role("button", name="Next", exact=True)).to_be_disabled()
    page.reload()
    expect(page.get_by_text("4 of 4")).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_text("3 of 4")).to_be_visible()
    page.get_by_role("link", name="Back to the list").click()
    assert listed(page, 4) == order


def test_next_crosses_the_pages_of_the_list(page: Any, address: str) -> None:
    page.goto(f"{address}#/episode?run=2&id=train-000000:49&sort=oldest&at=49")
    expect(page.get_by_text("50 of 120")).to_be_visible()
    page.get_by_role("button", name="Next", exact=True).click()
    expect(page.get_by_text("51 of 120")).to_be_visible()
    assert "id=train-000000:50" in page.url
    page.get_by_role("button", name="Previous", exact=True).click()
    expect(page.get_by_text("50 of 120")).to_be_visible()


def test_links_to_all_plays_of_the_task_and_to_the_turns(page: Any, address: str) -> None:
    page.goto(f"{address}#/episode?run=0&id=train-000001:0")
    page.get_by_role("link", name="All plays of this task").click()
    assert listed(page, 4) == ["train-000000:0", "train-000000:1", "train-000001:0", "train-000002:0"]
    page.get_by_role("button", name="show all tasks").click()
    listed(page, 15)
    page.goto(f"{address}#/episode?run=0&id=train-000001:0")
    page.get_by_role("link", name="turn by turn").click()
    expect(page.get_by_text("Turn 1 of 2")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["none", "logprob", "advantage", "ratio"])
def test_no_fault_that_axe_finds(open_page: Callable[..., Any], address: str, scheme: str, name: str) -> None:
    page = open_page(color_scheme=scheme)
    page.goto(f"{address}#/episode?run=0&id={LEARNT}&colour={name}")
    expect(page.locator(".reply").first).to_be_visible()
    assert faults(page) == []


def test_on_a_phone(open_page: Callable[..., Any], address: str) -> None:
    page = open_page(viewport={"width": 360, "height": 740})
    page.goto(f"{address}#/episode?run=0&id={LEARNT}&colour=ratio")
    expect(page.locator(".reply").first).to_be_visible()
    assert too_wide(page) <= 0
    assert faults(page) == []


CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((each) => each / 255)
      .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll(".token")].map((each) => {
    const style = getComputedStyle(each);
    const [a, b] = [luminance(style.color), luminance(style.backgroundColor)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_every_colour_is_readable(open_page: Callable[..., Any], address: str, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    for name in ("logprob", "advantage", "ratio"):
        page.goto(f"{address}#/episode?run=0&id={LEARNT}&colour={name}")
        expect(page.locator(".token-legend li")).to_have_count(5)  # the legend has the strongest colours of all
        expect(page.get_by_role("radio", name={"logprob": "Log-probability"}.get(name, name.title()))).to_be_checked()
        assert min(page.evaluate(CONTRAST)) >= 4.5
