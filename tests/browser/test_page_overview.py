"""The overview: curves, smoothing, runs over each other, explanations, and news while a run trains."""

import hashlib
import re
from itertools import pairwise

import handmade
import pytest
from playwright.sync_api import expect


def ready(page, address):
    page.goto(address)
    page.wait_for_selector("main h1")
    page.wait_for_selector(".uplot canvas")
    return page


def chart(page, title):
    return page.locator(".chart", has=page.get_by_role("heading", name=title, exact=True))


def drawn(page, title):
    """A fingerprint of what a chart's canvas shows."""
    box = chart(page, title)
    box.scroll_into_view_if_needed()
    box.locator("canvas").wait_for()
    page.wait_for_timeout(100)
    return hashlib.sha256(box.locator("canvas").evaluate("(canvas) => canvas.toDataURL()").encode()).hexdigest()


def test_the_summary_says_what_the_evaluations_found(page, single):
    ready(page, f"{single}#/overview")
    facts = page.locator(".key-facts").inner_text()
    # the hand-made evaluations: greedy 0.25 then 0.75, sampled 0.1 less, each 0.15 wide to both sides
    assert "25% → 75%" in facts
    assert "10% to 40% → 60% to 90%" in facts
    assert "15% → 65%" in facts
    assert "12 of 12" in facts
    assert "30 s" in facts  # 12 iterations of 2.5 s
    assert "49" in facts  # of 4 episodes, and one that failed


def test_a_chart_says_in_words_and_in_a_table_what_it_draws(page, single):
    ready(page, f"{single}#/overview")
    words = chart(page, "KL of an update").locator("[role=img]").get_attribute("aria-label")
    assert "planner: first 0.01, last 0.01" in words
    assert "solver: first 0.02, last 0.02, least 0.02, greatest 0.7" in words
    before = chart(page, "Success").bounding_box()["height"]
    chart(page, "Success").get_by_role("button", name="Table of Success").click()
    rows = chart(page, "Success").locator("tbody tr")
    assert rows.count() == 13  # 12 iterations of play, and the evaluation after them
    assert "75% (60% to 90%)" in rows.last.inner_text()
    assert rows.nth(5).locator("td").first.inner_text().startswith("55.8%")  # 0.25 + 0.5 * 5/12 + 0.1
    assert abs(chart(page, "Success").bounding_box()["height"] - before) < 2


def test_play_has_a_band_where_episodes_were_written(page, single):
    ready(page, f"{single}#/overview")
    metrics = page.evaluate("fetch('/api/metrics?run=0').then((answer) => answer.json())")
    assert metrics["intervals"]["success"]["low"][0] is not None
    chart(page, "Success").get_by_role("button", name="Table of Success").click()
    assert " to " in chart(page, "Success").locator("tbody tr").nth(1).locator("td").first.inner_text()


def test_smoothing_changes_the_drawing_and_stands_in_the_address(page, single):
    ready(page, f"{single}#/overview")
    plain = drawn(page, "Success")
    page.get_by_label("Smoothing").fill("0.8")
    page.wait_for_url(re.compile("smooth=0.8"))
    smooth = drawn(page, "Success")
    assert smooth != plain
    # 0.25 once, then 0.25 + 0.5/12 + 0.1, weights 0.8 * 0.2 and 0.2
    chart(page, "Success").get_by_role("button", name="Table of Success").click()
    second = chart(page, "Success").locator("tbody tr").nth(1).locator("td").first.inner_text()
    expected = 100 * (0.8 * 0.2 * 0.25 + 0.2 * (0.25 + 0.5 / 12 + 0.1)) / (0.8 * 0.2 + 0.2)
    assert second.startswith(f"{expected:.1f}%")
    ready(page, page.url)
    assert page.get_by_label("Smoothing").input_value() == "0.8"


def test_entries_of_the_legend_switch_lines_off(page, single):
    ready(page, f"{single}#/overview")
    before = drawn(page, "Entropy")
    entry = chart(page, "Entropy").get_by_role("button", name="solver")
    assert entry.get_attribute("aria-pressed") == "true"
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    without = drawn(page, "Entropy")
    assert without != before
    entry.click()
    page.mouse.move(0, 0)
    assert drawn(page, "Entropy") == before


def test_runs_lie_over_each_other_and_their_settings_are_compared(page, several):
    ready(page, f"{several}#/overview?runs=0,1")
    shown = page.get_by_role("group", name="Runs shown")
    assert shown.get_by_label("first").is_checked()
    assert not shown.get_by_label("debate").is_checked()
    legend = chart(page, "Success").locator(".chart-legend")
    assert legend.locator(".legend-name").all_inner_texts() == [
        "first",
        "second",
        "held-out, greedy",
        "held-out, sampled",
    ]
    dashes = legend.locator("line").evaluate_all("(lines) => lines.map((one) => one.getAttribute('stroke-dasharray'))")
    assert len(set(dashes)) == 2
    table = page.get_by_role("region", name="Settings whose values differ")
    row = table.locator("tr", has_text="update.lr")
    assert row.locator("td").all_inner_texts() == ["0.001", "0.01"]
    assert "agents" not in table.inner_text()  # of the debate, which is not shown
    both = drawn(page, "Success")
    shown.get_by_label("second").uncheck()
    page.wait_for_url(re.compile("runs=0$"))
    page.wait_for_selector("text=What differs between the runs", state="detached")
    assert drawn(page, "Success") != both


def test_agents_can_be_left_out(page, single):
    ready(page, f"{single}#/overview")
    page.get_by_role("group", name="Agents").get_by_label("planner").uncheck()
    page.wait_for_url(re.compile("without=planner"))
    assert chart(page, "Entropy").locator(".legend-name").all_inner_texts() == ["solver"]


def test_any_metric_can_be_found_and_drawn(page, single):
    ready(page, f"{single}#/overview")
    page.get_by_label("Find a metric by name").fill("solver ratio max")
    listed = page.get_by_role("group", name="Metrics to draw").locator("label")
    assert listed.all_inner_texts() == ["update/solver/ratio_max"]
    listed.first.click()
    chart(page, "update/solver/ratio_max").locator("canvas").wait_for()
    assert "more=update/solver/ratio_max" in page.url


def test_names_explain_themselves_on_focus_and_escape_closes(page, single):
    ready(page, f"{single}#/overview")
    title = chart(page, "Entropy").get_by_role("button", name="Entropy", exact=True)
    title.focus()
    told = page.get_by_role("tooltip")
    assert "Healthy" in told.inner_text()
    assert "next-token distribution" in told.inner_text()
    assert title.get_attribute("aria-describedby") == told.get_attribute("id")
    page.keyboard.press("Escape")
    told.wait_for(state="detached")
    title.hover()
    told.wait_for()
    told.hover()  # the pointer may move onto it
    assert told.is_visible()
    page.mouse.move(1, 1)
    told.wait_for(state="detached")


def test_a_tap_explains_too_and_stays_in_the_window(open_page, single):
    page = open_page(viewport={"width": 360, "height": 740}, has_touch=True)
    ready(page, f"{single}#/overview")
    chart(page, "Ratio new/old").get_by_role("button", name="Ratio new/old", exact=True).tap()
    box = page.get_by_role("tooltip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 740
    page.locator("main h2").first.tap()
    page.get_by_role("tooltip").wait_for(state="detached")


def test_the_dark_draws_in_other_colours_without_loading_again(page, single):
    page.emulate_media(color_scheme="light")
    ready(page, f"{single}#/overview")
    light = drawn(page, "Success")
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(200)
    assert drawn(page, "Success") != light
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"


def test_charts_far_below_are_drawn_when_they_come_near(page, single):
    ready(page, f"{single}#/overview")
    far = chart(page, "Tokens a second in learning")
    assert far.locator("canvas").count() == 0
    assert far.locator(".plot").bounding_box()["height"] == 210
    far.scroll_into_view_if_needed()
    far.locator("canvas").wait_for()


def test_all_charts_are_drawn_for_print(page, single):
    ready(page, f"{single}#/overview")
    assert page.locator(".plot canvas").count() < page.locator(".plot").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".plot canvas").count() == page.locator(".plot").count()


def test_marks_stand_close_to_their_iteration(page, single):
    ready(page, f"{single}#/overview")
    places = page.evaluate("""import("marft/plot").then(({ asideOf }) =>
        [1, 2, 4, 12].map((count) => Array.from({ length: count }, (_, order) => asideOf(order, count))))""")
    for found in places:
        steps = [after - before for before, after in pairwise(found)]
        assert all(0 < step <= 2 for step in steps)
        assert sum(found) == pytest.approx(0)
        assert found[-1] <= 3


FOLDED = {
    "another shape": (
        [("d", '"parallel"', None), ("d.edges", None, "{}"), ("d.recall", None, "2")],
        [["d", '"parallel"', ["edges: {}", "recall: 2"]]],
    ),
    "absent": ([("a.b.x", "1", None), ("a.b.y.z", "2", None)], [["a.b.…", ["x: 1", "y.z: 2"], None]]),
    "disjoint": ([("d.x", "1", None), ("d.y", None, "2")], [["d.…", ["x: 1"], ["y: 2"]]]),
    "two members": (
        [("m.ann.x", "1", None), ("m.ann.y", "1", None), ("m.bob.x", None, "1"), ("m.bob.y", None, "1")],
        [["m.ann.…", ["x: 1", "y: 1"], None], ["m.bob.…", None, ["x: 1", "y: 1"]]],
    ),
    "set in both": ([("u.lr", "1", "2"), ("u.k", "1", None)], [["u.lr", "1", "2"], ["u.k", "1", None]]),
    "the same here": ([("s", "1", "1"), ("n", None, None), ("t", "0", "1")], [["t", "0", "1"]]),
}


@pytest.mark.parametrize("case", FOLDED)
def test_settings_below_one_key_are_one_row(page, single, case):
    given, wanted = FOLDED[case]
    ready(page, f"{single}#/overview")
    rows = [{"key": key, "values": values} for key, *values in given]
    found = page.evaluate("(rows) => import('marft/series').then(({ folded }) => folded(rows))", rows)
    assert [[row["key"], *row["values"]] for row in found] == wanted


def test_a_wide_table_scrolls_within_its_card(open_page, several):
    page = open_page(viewport={"width": 360, "height": 740})
    ready(page, f"{several}#/overview?runs=0,1")
    chart(page, "Success").get_by_role("button", name="Table of Success").click()
    box = chart(page, "Success").locator(".plot-table")
    assert box.evaluate("(box) => box.scrollWidth > box.clientWidth")
    assert box.bounding_box()["width"] <= chart(page, "Success").bounding_box()["width"]


def test_a_wider_window_widens_the_charts(page, single):
    ready(page, f"{single}#/overview")
    page.set_viewport_size({"width": 500, "height": 900})
    expect(page.locator(".uplot").first).to_have_css("width", re.compile(r"^4[3-9]\d(\.\d+)?px$"))


def test_the_failed_episode_is_told_as_text(page, single):
    ready(page, f"{single}#/overview")
    table = page.get_by_role("region", name="By reason; first and last iteration")
    assert handmade.HOSTILE in table.inner_text()
    assert handmade.UNICODE in table.inner_text()
    assert page.evaluate("window.hacked") is None


def test_a_new_iteration_appears_without_moving_anything(page, served, tmp_path):
    run = handmade.chain(tmp_path / "growing", iterations=8)
    ready(page, f"{served([run])}#/overview")
    page.get_by_label("Find a metric by name").focus()
    page.keyboard.type("kl")
    chart(page, "Success").get_by_role("button", name="Table of Success").click()
    page.evaluate("scrollTo(0, 700)")
    page.get_by_label("Find a metric by name").focus()
    top = page.evaluate("scrollY")
    handmade.append_row(run, handmade.next_row(8, 0.987))
    chart(page, "Success").locator("td", has_text="98.7%").wait_for()
    assert "9 of 8" in page.locator(".key-facts").inner_text()
    assert page.evaluate("scrollY") == top
    assert page.evaluate("document.activeElement.value") == "kl"


def test_long_runs_stay_quick(page, served, tmp_path):
    run = handmade.empty(tmp_path / "long")
    for iteration in range(1000):
        handmade.append_row(run, {**handmade.next_row(iteration % 12, 0.5), "iteration": iteration})
    address = served([run])
    page.goto(f"{address}#/overview")
    page.wait_for_selector(".uplot canvas")
    spent = page.evaluate(
        """async () => {
          const took = [];
          for (const weight of [0.3, 0.5, 0.7]) {
            const start = performance.now();
            location.hash = `#/overview?smooth=${weight}`;
            await new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 0));
            took.push(performance.now() - start);
          }
          return Math.min(...took);
        }"""
    )
    assert spent < 1500


@pytest.mark.parametrize("chosen", ["0", "0,1"])
def test_gaps_are_shown_as_gaps(page, several, chosen):
    ready(page, f"{several}#/overview?runs={chosen}")
    chart(page, "Success").get_by_role("button", name="Table of Success").click()
    # no play after the last iteration: a dash, not a zero
    assert chart(page, "Success").locator("tbody tr").last.locator("td").first.inner_text() == "–"
