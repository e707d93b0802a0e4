"""The display: what a log file gets, what a terminal gets, and the small functions in between."""

import io

import pytest
from rich.console import Console

from marft.notebook import LiveFigure
from marft.run.progress import (
    Progress,
    Silent,
    Watcher,
    check_watcher,
    duration,
    iteration_line,
    sparkline,
    time_left,
)
from marft.types import MarftError

METRICS = {
    "iteration": 2,
    "success": 0.406,
    "reward": 0.414,
    "play_tokens_per_second": 310.4,
    "update_tokens_per_second": 900.0,
    "seconds": 12.31,
}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def plain_console(width=40):
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def drawn(progress, **console_options):
    console = Console(file=io.StringIO(), width=100, **console_options)
    console.print(progress.panel())
    return console.file.getvalue()


def test_an_iteration_is_one_plain_line_in_a_log():
    progress = Progress(plain_console(width=40))  # narrower than the line: it must not be folded
    progress.start({"run": "runs/x"}, iterations=20)
    progress.phase("playing", 3, 64)
    progress.iteration(METRICS)
    progress.finish()
    assert progress._console.file.getvalue().splitlines() == [
        "run  runs/x",
        "iter 3/20  success 0.41  reward 0.41  play 310 tok/s  update 900 tok/s  12.3 s",
    ]


def test_the_line_leaves_out_what_is_not_measured_and_shows_failures():
    assert iteration_line({"iteration": 0, "success": None, "failed": 2}, 0) == "iter 1  2 failed"
    assert iteration_line({"iteration": 0, "reward": 1, "failed": 0}, 5) == "iter 1/5  reward 1.00"


def test_a_terminal_gets_a_panel_and_gets_its_cursor_back():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    progress = Progress(console)
    progress.start({}, iterations=20)
    progress.phase("playing", 37, 64)
    progress.iteration(METRICS)
    progress.finish()
    progress.finish()
    text = console.file.getvalue()
    assert "iteration 0/20" in text  # the panel, drawn at the start
    assert "iter 3/20  success 0.41" in text
    assert "\x1b[?25l" in text  # cursor hidden
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # and shown again at the end


def test_the_panel_tells_where_the_run_is():
    clock = Clock()
    progress = Progress(plain_console(), clock)
    progress.start({}, iterations=20, first=2)
    assert "iteration 2/20" in drawn(progress)
    assert "left" not in drawn(progress)
    clock.now = 10.0
    progress.iteration(METRICS)
    progress.phase("playing", 37, 64)
    clock.now = 14.0
    text = drawn(progress)
    assert "iteration 3/20" in text
    assert "2 min 46 s left" in text  # 17 iterations of 10 s, 4 s into the first
    assert "playing 37/64" in text
    assert "success 0.41  reward 0.41  play 310 tok/s  update 900 tok/s  |" in text
    progress.phase("updating planner")
    assert drawn(progress).rstrip().endswith("updating planner")


def test_an_evaluation_is_no_part_of_an_iterations_time():
    clock = Clock()
    progress = Progress(plain_console(), clock)
    progress.start({}, iterations=4)
    clock.now = 500.0
    progress.evaluation("before", {}, 0)
    clock.now = 510.0
    progress.iteration({"iteration": 0})
    assert "30 s left" in drawn(progress)
    assert "min" not in drawn(progress)  # not the 25 min 30 s of three times 510 s


def test_an_evaluation_is_printed_in_full():
    progress = Progress(plain_console())
    progress.evaluation(
        "Held-out, before",
        {
            "sampled": {"success": {"mean": 0.25, "low": 0.1, "high": 0.4}, "pass@4": 0.51239},
            "greedy": {"success": {"mean": 1, "low": 0.5, "high": 1}},
            "tasks": 32,
            "note": "[bold]not markup[/bold]",
            "missing": None,
        },
        done=0,
    )
    assert progress._console.file.getvalue().splitlines() == [
        "Held-out, before",
        "  sampled success  0.25 [0.10, 0.40]",
        "  sampled pass@4   0.5124",
        "  greedy success   1.00 [0.50, 1.00]",
        "  tasks            32",
        "  note             [bold]not markup[/bold]",
    ]


def test_a_note_is_printed_as_it_is():
    progress = Progress(plain_console())
    progress.note("3 prompts were cut: [planner]")
    assert progress._console.file.getvalue() == "3 prompts were cut: [planner]\n"


def test_silent_says_nothing(capfd):
    watcher: Watcher = Silent()
    watcher.start({"a": 1}, iterations=2)
    watcher.phase("playing", 1, 2)
    watcher.iteration(METRICS)
    watcher.evaluation("before", {"success": 1.0}, 0)
    watcher.note("text")
    watcher.finish()
    assert capfd.readouterr() == ("", "")


def test_a_watcher_that_lacks_a_method_or_takes_too_little_is_named():
    for watcher in (Silent(), Progress(plain_console()), LiveFigure()):
        check_watcher(watcher)

    class Old(Silent):
        def evaluation(self, title, report):
            """As if nobody said how far the run is."""

    class Deaf(Silent):
        note = None

    with pytest.raises(MarftError, match=r"evaluation\(title, report, done\): too many positional arguments"):
        check_watcher(Old())
    with pytest.raises(MarftError, match=r"watcher: a Deaf has no method 'note'; .*on_iteration and on_episode"):
        check_watcher(Deaf())


def test_sparkline():
    assert sparkline([], 8) == ""
    assert sparkline([0.0, 0.5, 1.0], 8) == "▁▅█"
    assert sparkline([0.0, None, 7.0, -1.0], 8) == "▁ █▁"
    assert sparkline([0.0, 1.0, 1.0, 1.0], 2) == "▅█"  # means 1/2 and 1
    assert len(sparkline([0.3] * 1001, 24)) == 24


def test_the_panel_is_ascii_where_the_terminal_is():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=100)
    progress = Progress(console)
    progress.iteration(METRICS)
    console.print(progress.panel())  # raises UnicodeEncodeError if a block character is used


@pytest.mark.parametrize(
    ("seconds", "remaining", "elapsed", "left"),
    [
        ([], 5, 1.0, None),
        ([10.0], 0, 1.0, None),
        ([10.0], 3, 4.0, 26.0),
        ([10.0], 3, 40.0, 20.0),
        ([99.0, 10.0, 12.0, 11.0, 90.0, 11.0], 1, 0.0, 11.0),  # the median of the last five
    ],
)
def test_time_left(seconds, remaining, elapsed, left):
    assert time_left(seconds, remaining, elapsed) == left


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text
