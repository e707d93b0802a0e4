"""What people see of evaluations: the bar while they run, and the tables."""

import io

import pytest
from rich.console import Console

from marft.run.show import Phases, comparison_tables, report_tables

INTERVAL = {"mean": 0.5, "low": 0.25, "high": 0.75}


def printed(table, width=140):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def part(kinds=("sum",), **more):
    found = {"success": INTERVAL, "reward": INTERVAL, "tokens": 12.25, "failed": 0}
    return {**found, "kinds": dict.fromkeys(kinds, INTERVAL), **more}


def test_outside_a_terminal_phases_print_nothing_at_all():
    console = Console(file=io.StringIO(), force_terminal=False)
    phases = Phases(console)
    phases.phase("evaluating", 1, 2)
    phases.finish()
    assert console.file.getvalue() == ""


def test_in_a_terminal_there_is_a_bar_with_a_count_and_it_goes_away():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    phases = Phases(console)
    phases.phase("loading [bold]x[/bold]")
    phases.phase("evaluating", 0, 64)
    phases.phase("evaluating", 37, 64)
    shown = printed(phases._bars)
    assert "evaluating" in shown
    assert "37/64" in shown
    phases.phase("loading [bold]x[/bold]")
    shown = printed(phases._bars)
    assert "loading [bold]x[/bold]" in shown  # a name is not markup
    assert "64" not in shown  # and what cannot be counted has no count
    phases.finish()
    phases.finish()
    assert console.file.getvalue().endswith("\x1b[2K")  # the line is wiped
    assert console.file.getvalue().count("\x1b[?25h") == 1  # and the cursor given back


def test_a_report_shows_votes_kinds_and_the_score_without_verdict_in_columns_of_their_own():
    votes = {"pass_at": {"1": 0.5, "2": 0.625}, "maj_at": {"1": 0.5, "2": 0.375}}
    report = {
        "tasks": 8, "samples": 2, "greedy": part(("product", "sum")),
        "sampled": part(("product", "sum"), **votes),
        "no_verdict": part(("product", "sum"), pass_at={"1": 0.1, "2": 0.125}),
        "influence": {"ann": {"swapped": INTERVAL, "drop": 0.1, "loss": {"mean": 0.1, "low": -0.1, "high": 0.3}}},
    }  # fmt: skip
    shown = printed(report_tables(report))
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    (head,) = [line for line in shown.splitlines() if "held-out" in line]
    assert [title.strip() for title in head.split("   ") if title.strip()] == [
        "8 held-out tasks, 95% intervals", "sampled, 2 each", "greedy", "sampled, without verdict",
    ]  # fmt: skip
    assert lines["pass@2"] == ["pass@2", "0.62", "0.12"]
    assert lines["maj@2"] == ["maj@2", "0.38"]
    assert shown.count("0.50 [0.25, 0.75]") == 3 * 4 + 1  # success, two kinds and reward in three columns; swapped
    assert "+0.10 [-0.10, +0.30]" in shown
    assert lines["tokens"] == ["tokens", "an", "episode", "12.2", "12.2", "12.2"]
    assert "vote" not in shown


def test_the_vote_that_a_budget_buys_is_shown_beside_the_success():
    bought = {"k": 3, "affordable": 3.4, "success": {"mean": 0.625, "low": 0.5, "high": 0.75}}
    shown = printed(report_tables({"tasks": 8, "samples": 4, "sampled": part(vote=bought), "greedy": part()}))
    (line,) = [line for line in shown.splitlines() if line.startswith("vote of the 3")]
    assert line.split()[-3:] == ["0.62", "[0.50,", "0.75]"]


@pytest.mark.parametrize("kinds", [("sum",), ("product", "sum")])
def test_a_comparison_shows_each_run_and_its_difference_to_the_first(kinds):
    gain = {"mean": 0.25, "low": -0.125, "high": 0.5}
    gains = {"success": gain, "kinds": dict.fromkeys(kinds, gain)}
    reports = {
        "runs/a": {"sampled": part(kinds, pass_at={"4": 0.75}, maj_at={"4": 0.5}), "greedy": part(kinds)},
        "runs/b": {"sampled": part(kinds, pass_at={"4": 1.0}, maj_at={"4": 0.6}), "greedy": part(kinds)},
    }
    comparison = {
        "first": "runs/a", "tasks": 8, "samples": 4, "runs": reports,
        "difference": {"runs/b": {"sampled": gains, "greedy": gains}},
    }  # fmt: skip
    shown = printed(comparison_tables(comparison))
    rows = [line.split() for line in shown.splitlines() if line.startswith(("runs/", "  "))]
    names = [row[0] for row in rows if row]
    one = ["runs/a", *(kinds if len(kinds) > 1 else ()), "runs/b", *(kinds if len(kinds) > 1 else ())]
    assert names == one * 2
    assert shown.count("+0.25 [-0.12, +0.50]") == len(one) // 2 * 2  # of runs/b alone, sampled and greedy
    (voted,) = [row for row in rows if row[:1] == ["runs/b"] and row[-1] == "0.60"]
    assert voted[-2] == "1.00"
    assert "maj@4" in shown
    long = {**comparison, "first": "runs/a" * 9, "runs": {"runs/a" * 9: reports["runs/a"], "runs/b": reports["runs/b"]}}
    assert printed(comparison_tables(long), width=80).count("+0.25 [-0.12, +0.50]") == len(one) // 2 * 2
