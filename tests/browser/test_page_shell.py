"""The page's frame: navigation, keys, the choice of runs, what is said when something is missing; small and dark."""

import json
import re

import handmade
import pytest
from looking import WATCH, faults, shift, too_wide, unhurt
from playwright.sync_api import expect

OWN = ("overview", "health")
VIEWS = ("overview", "team", "episodes", "health")


def ready(page, address):
    """Open an address and wait until its view has its data."""
    page.goto(address)
    page.wait_for_selector("main h1")
    page.wait_for_selector(".loading", state="detached")
    return page


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens_with_its_heading_and_runs_no_text_of_a_model(page, several, view):
    ready(page, f"{several}#/{view}?run=0")
    assert page.locator("main h1").inner_text().lower() == view
    assert page.locator(f"nav a[href^='#/{view}']").get_attribute("aria-current") == "page"
    assert unhurt(page)


def test_an_unknown_view_is_the_overview(page, single):
    ready(page, f"{single}#/nonsense?run=0")
    assert page.locator("main h1").inner_text() == "Overview"


def test_the_page_may_load_nothing_from_elsewhere(page, single):
    answer = page.goto(single)
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_number_keys_go_through_the_views_and_back_leads_back(page, several):
    ready(page, f"{several}#/overview?runs=0,1")
    for key, view in zip("2341", ("team", "episodes", "health", "overview"), strict=True):
        page.keyboard.press(key)
        page.wait_for_url(f"**/#/{view}?*")
    page.go_back()
    page.wait_for_url("**/#/health?*")
    page.wait_for_selector("main h1:has-text('Health')")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_slash_searches_the_episodes(page, single):
    ready(page, f"{single}#/health?run=0")
    page.keyboard.press("/")
    expect(page.locator("main input[type=search]")).to_be_focused()
    assert "#/episodes" in page.url
    page.keyboard.type("1?")
    assert "#/episodes" in page.url
    assert page.evaluate("document.activeElement.value") == "1?"


def test_the_help_lists_the_keys_and_can_switch_them_off(page, single):
    ready(page, f"{single}#/overview")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    assert "search the episodes" in dialog.inner_text()
    keys = dialog.locator("kbd").all_inner_texts()
    assert keys == [*"1234/?", "Tab", "Esc", *"j↓k↑", "Enter", *"np←→", "Home", "End", *"←→"]
    assert "numbered from 0" in dialog.inner_text()
    dialog.get_by_label("Single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.keyboard.press("4")
    assert "#/overview" in page.url
    page.get_by_role("button", name="Keys").click()
    dialog.get_by_label("Single-key shortcuts").check()
    dialog.get_by_role("button", name="Close").click()
    assert page.evaluate("document.activeElement.textContent") == "Keys"
    page.keyboard.press("4")
    page.wait_for_url("**/#/health?*")


def test_the_tab_key_reaches_everything_in_order_with_a_mark_to_see(page, several):
    ready(page, f"{several}#/health?run=0")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.locator(".skip").bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert "#/health" in page.url
    seen = []
    for _ in range(8):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.tagName"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", seen
    tops = page.evaluate(
        "[...document.querySelectorAll('main a, main button, main select, main input, main [tabindex=\"0\"]')]"
        ".map((one) => one.tabIndex)"
    )
    assert "SELECT" in seen
    assert set(tops) == {0}


def test_one_run_is_chosen_where_a_view_shows_one(page, several):
    ready(page, f"{several}#/health?run=0")
    page.get_by_role("combobox", name="Run").select_option(label="debate")
    page.wait_for_url("**/#/health?run=2")
    page.wait_for_selector("text=2 iterations")


def test_another_run_keeps_what_makes_sense_in_it(page, several):
    ready(page, f"{several}#/episodes?run=0&split=train&agent=solver&sort=oldest&iteration=1&page=0")
    choose = page.get_by_role("combobox", name="Run")
    choose.select_option(label="second")
    page.wait_for_url("**/#/episodes?run=1&split=train&agent=solver&sort=oldest&iteration=1")
    choose.select_option(label="debate")  # where nobody is called solver
    page.wait_for_url("**/#/episodes?run=2&split=train&sort=oldest&iteration=1")
    ready(page, f"{several}#/episode?run=0&id=train-000001:3&sort=oldest&at=6&colour=logprob")
    choose.select_option(label="second")
    page.wait_for_url("**/#/episode?run=1&id=train-000001:3&sort=oldest&colour=logprob")
    choose.select_option(label="debate")  # which played two episodes an iteration
    page.wait_for_url("**/#/episodes?run=2&sort=oldest&colour=logprob")
    ready(page, f"{several}#/compare?run=0&task=train-1")
    choose.select_option(label="second")
    page.wait_for_url("**/#/compare?run=1&task=train-1")
    choose.select_option(label="empty")
    page.wait_for_url("**/#/compare?run=3")
    ready(page, f"{several}#/team?run=0&iteration=1&episode=train-000001:3&turn=0")
    choose.select_option(label="debate")
    page.wait_for_url("**/#/team?run=2&iteration=1")


def test_a_page_whose_server_has_gone_says_so_until_it_is_back(page, complaints, single):
    page.clock.install()
    training = {"live": True, "done": 3, "iterations": 12}

    def live(route):
        told = route.fetch().json()
        route.fulfill(json={**told, "runs": [{**run, **training} for run in told["runs"]]})

    page.route("**/api/runs*", live)
    ready(page, f"{single}#/overview")
    mark, notice = page.locator(".live-mark"), page.locator(".gone")
    expect(mark).to_have_class("live-mark live")
    page.route("**/api/runs*", lambda route: route.abort())
    for _ in range(3):
        expect(notice).to_have_count(0)
        with page.expect_event("requestfailed"):
            page.clock.run_for(2100)
    expect(notice).to_have_text(re.compile(r"does not answer any more; what you see is of \d\d:\d\d\."))
    expect(mark).to_have_class("live-mark stopped")
    page.unroute("**/api/runs*")
    page.route("**/api/runs*", live)
    page.clock.run_for(2100)
    expect(notice).to_have_count(0)
    expect(mark).to_have_class("live-mark live")
    complaints.clear()  # the browser tells of each request that failed


def test_a_run_that_has_written_nothing_says_so(page, several):
    for view in OWN:
        ready(page, f"{several}#/{view}?run=3&runs=3")
        assert "the first iteration has not ended" in page.locator("main").inner_text()


def test_a_run_that_cannot_be_read_does_not_hide_the_others(page, complaints, served, tmp_path):
    good, bad = handmade.chain(tmp_path / "good"), handmade.chain(tmp_path / "bad")
    address = served([good, bad])
    (bad / "metrics.jsonl").write_text("not json\n{}\n", encoding="utf8")
    page.goto(f"{address}#/overview")
    page.wait_for_selector(".failure")
    assert "metrics.jsonl" in page.locator(".failure").inner_text()
    assert page.locator(".chart").count() > 5
    assert all("400" in one for one in complaints)  # the browser tells of each refused answer
    complaints.clear()


def test_a_view_that_throws_leaves_a_sentence(page, single):
    page.route("**/api/metrics*", lambda route: route.fulfill(status=200, body=json.dumps({"iterations": 5})))
    page.goto(f"{single}#/health?run=0")
    page.wait_for_selector("text=This view cannot be shown")
    page.unroute("**/api/metrics*")
    page.keyboard.press("2")
    page.wait_for_selector("main h1:has-text('Team')")


@pytest.mark.parametrize("view", OWN)
def test_a_phone_needs_no_sideways_scrolling(open_page, several, view):
    page = open_page(viewport={"width": 360, "height": 740})
    for run in ("0", "0,1,2,3"):
        ready(page, f"{several}#/{view}?runs={run}&run=0")
        assert too_wide(page) <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", [*OWN, "help"])
def test_axe_finds_nothing(open_page, several, view, scheme):
    page = open_page(color_scheme=scheme)
    ready(page, f"{several}#/{'overview' if view == 'help' else view}?runs=0,1&run=0&without=planner")
    if view == "help":
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
    assert faults(page) == []


@pytest.mark.parametrize("view", OWN)
def test_nothing_jumps_while_it_loads(page, several, view):
    page.add_init_script(WATCH)
    ready(page, f"{several}#/{view}?runs=0,1&run=0")
    page.wait_for_selector(".uplot canvas")
    page.wait_for_timeout(300)
    assert shift(page) < 0.05
