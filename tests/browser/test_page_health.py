"""Health: what went wrong is named with its numbers and what to do; that nothing did is said plainly."""

import json

import handmade
import pytest
from playwright.sync_api import expect


def ready(page, address):
    page.goto(address)
    page.wait_for_selector("main h1")
    page.wait_for_selector(".uplot canvas")
    return page


def test_alarms_are_gathered_and_explained(page, single):
    ready(page, f"{single}#/health?run=0")
    verdict = page.locator(".verdict").inner_text()  # iterations 5 and 6 are one alarm, as in the table
    assert "1 alarm, 1 rollback in iterations 5 to 6; 12 iterations are done." in " ".join(verdict.split())
    assert page.locator(".verdict .tag.bad").count() == 1
    assert "1 of 49 episodes could not be played" in page.locator(".verdict").inner_text()
    alarm = page.locator(".alarm")
    assert alarm.count() == 1
    assert "too far" in alarm.inner_text()
    assert "lower update.lr" in alarm.inner_text()
    assert alarm.locator("tbody tr").count() == 1  # iterations 5 and 6 are one trouble
    assert alarm.locator("tbody tr").inner_text().split("\t") == ["kl", "solver", "5 to 6", "0.7 → 0.7"]


def test_rollbacks_and_failures_are_listed(page, single):
    ready(page, f"{single}#/health?run=0")
    back = page.locator("table", has_text="Rollbacks").locator("tbody tr")
    assert back.inner_text().split("\t") == ["6", "5", "50%"]
    failed = page.locator("table", has_text="could not be played").locator("tbody tr")
    assert failed.inner_text().split("\t") == [f"solver: {handmade.HOSTILE} {handmade.UNICODE}", "1", "3", "3"]
    assert page.evaluate("window.hacked") is None


def test_a_healthy_run_is_called_healthy(page, several):
    def calm(route):
        body = {"alarms": [], "rollbacks": [], "diverged": [], "failures": []}
        route.fulfill(status=200, content_type="application/json", body=json.dumps(body))

    page.route("**/api/health*", calm)
    ready(page, f"{several}#/health?run=0")
    assert "No alarm" in page.locator(".verdict").inner_text()
    assert page.locator(".alarm").count() == 0
    watched = page.locator("section", has_text="What the guard watches").inner_text()
    assert "collapse" in watched.lower()


def test_a_run_whose_guard_was_off_is_not_called_healthy(page, served, tmp_path):
    run = handmade.empty(tmp_path / "unguarded")
    row = handmade.next_row(0, 0.5)
    handmade.append_row(run, {key: value for key, value in row.items() if key != "health"})
    ready(page, f"{served([run])}#/health?run=0")
    assert "Not watched" in page.locator(".verdict").inner_text()


def test_an_update_that_was_not_made_is_told(page, served, tmp_path):
    run = handmade.empty(tmp_path / "diverged")
    sentence = "solver: the gradient is not finite"
    handmade.append_row(run, {**handmade.next_row(0, 0.5), "diverged": {"solver": sentence}})
    ready(page, f"{served([run])}#/health?run=0")
    assert "1 update not made" in page.locator(".verdict").inner_text()
    assert sentence in page.locator("table", has_text="Updates that were not made").inner_text()


@pytest.mark.parametrize(("iteration", "look"), [(0, "warn"), (11, "bad")])
def test_an_alarm_is_red_only_in_the_last_iteration(page, single, iteration, look):
    alarm = {"iteration": iteration, "kind": "kl", "who": "solver", "value": 0.7}
    body = {"alarms": [alarm], "rollbacks": [], "diverged": [], "failures": []}
    told = json.dumps(body)
    page.route("**/api/health*", lambda route: route.fulfill(status=200, content_type="application/json", body=told))
    ready(page, f"{single}#/health?run=0")
    assert page.locator(f".verdict .tag.{look}").inner_text() == "1 alarm"
    assert f"in iteration {iteration};" in page.locator(".verdict").inner_text()
    page.goto(f"{single}#/overview")
    fact = page.locator(".key-fact", has_text="Alarms")
    expect(fact.locator("dd")).to_have_text("1")  # two rows of metrics tell of one: as the table counts


def test_language_that_was_not_measured_is_said_with_its_setting(page, several):
    ready(page, f"{several}#/health?run=2")
    assert "no evaluation of this run has evaluation.retention" in page.locator("main").inner_text()


def test_language_is_followed_over_evaluations(page, single):
    ready(page, f"{single}#/health?run=0")
    ratio = page.locator(".chart", has=page.get_by_role("heading", name="Perplexity ratio"))
    words = ratio.locator("[role=img]").get_attribute("aria-label")
    assert "planner: first 1, last 1.4" in words  # 30 of 30, then 42 of 30
    assert page.get_by_role("heading", name="Repeated word sequences").count() == 1


def test_alarms_appear_while_the_run_trains(page, served, tmp_path):
    run = handmade.chain(tmp_path / "ailing", iterations=4)
    ready(page, f"{served([run])}#/health?run=0")
    page.get_by_label("Keys").or_(page.get_by_role("button", name="Keys")).first.click()
    handmade.append_row(run, handmade.next_row(5, 0.2))
    page.wait_for_selector(".alarm")
    assert page.get_by_role("dialog", name="Keys").is_visible()
