"""The figure that follows a run, and the example notebook as a person would run it."""

import base64
import io
import json
import sys
from pathlib import Path
from string import ascii_lowercase
from types import SimpleNamespace

import nbformat
import numpy
import pytest
from matplotlib import image
from nbclient import NotebookClient

import marft
from marft.run.directory import RunDirectory
from marft.types import MarftError

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


EVALUATED = {
    "iterations": 4,
    "threads": 1,
    "model": {"name": "tiny"},
    "lora": {"r": 2},
    "team": {"agents": [{"name": "ann"}, {"name": "bob"}]},
    "environment": {"name": "matrix", "symbols": list(ascii_lowercase), "payoff": [[1] * 26] * 26},
    "rollout": {"tasks": 4, "samples": 4, "sampling": {"max_tokens": 1}},
    "critic": {"kind": "none"},
    "credit": {"baseline": "group"},
    "update": {"lr": 0.01},
    "evaluation": {"tasks": 2, "samples": 32, "every": 1, "retention": False, "influence": False},
    "run": {"trackers": []},
}


def row(iteration, success=0.5, **more):
    return {
        "iteration": iteration, "success": success, "reward": 2 * success, "entropy": {"ann": 1.5, "bob": 1.0},
        "update": {"ann": {"kl": 0.01, "loss": 9.0}, "bob": {"kl": 0.02}}, **more,
    }  # fmt: skip


def curves(figure):
    """What is drawn: title of a panel -> label -> (x, y)."""
    return {
        axes.get_title(): {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
        for axes in figure.axes
    }


def heldout(figure):
    """Where held-out success is drawn, and its values."""
    (bars,) = figure.axes[0].containers
    return tuple(each.tolist() for each in map(numpy.asarray, bars.lines[0].get_data()))


class Kernel:
    """A notebook's kernel as far as a figure can tell: what was shown, and what it was changed to."""

    def __init__(self, monkeypatch):
        import IPython.display

        self.shown, self.changed = [], []
        monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=self))
        monkeypatch.setattr(IPython.display, "display", self.display)

    def display(self, picture, display_id):
        assert display_id is True
        self.shown.append(picture)
        return SimpleNamespace(update=self.changed.append)


class TestTheFigure:
    def test_draws_success_reward_kl_and_entropy(self, tmp_path):
        watcher = marft.LiveFigure()
        watcher.start({"run": "runs/mine"}, 5)
        watcher.evaluation("Before training", {"success, sampled": {"mean": 0.25, "low": 0.125, "high": 0.5}}, 0)
        for each in (row(0, 0.25), row(1, 0.75, entropy={})):
            watcher.iteration(each)
        watcher.finish()
        found = curves(watcher.figure)
        assert set(found) == {"success", "reward", "KL of the update", "entropy"}
        assert found["success"]["training play"] == ([0, 1], [0.25, 0.75])
        assert found["reward"]["training play"] == ([0, 1], [0.5, 1.5])
        assert found["KL of the update"] == {"ann": ([0, 1], [0.01, 0.01]), "bob": ([0, 1], [0.02, 0.02])}
        assert found["entropy"] == {"ann": ([0], [1.5]), "bob": ([0], [1.0])}
        (heldout,) = watcher.figure.axes[0].containers
        assert heldout.lines[0].get_data()[1] == 0.25
        (bars,) = heldout.lines[2]
        assert bars.get_segments()[0][:, 1].tolist() == [0.125, 0.5]
        assert "iteration 2/5, success 0.75" in watcher.figure.get_suptitle()
        watcher.savefig(tmp_path / "run.png")
        assert image.imread(tmp_path / "run.png").std() > 0

    def test_shows_nothing_outside_of_a_notebook(self, capsys):
        watcher = marft.LiveFigure()
        watcher.start({}, 1)
        watcher.phase("playing", 1, 2)
        watcher.iteration(row(0))
        watcher.finish()
        assert capsys.readouterr().out == ""
        watcher.note("a word")
        assert capsys.readouterr().out == "a word\n"

    def test_changes_one_picture_in_a_notebook_and_not_too_often(self, monkeypatch):
        kernel, now = Kernel(monkeypatch), [0.0]
        watcher = marft.LiveFigure(seconds=1.0, clock=lambda: now[0])
        watcher.start({"run": "runs/mine"}, 3)
        for iteration, time in enumerate((0.5, 1.5, 1.6)):
            now[0] = time
            watcher.iteration(row(iteration))
        assert (len(kernel.shown), len(kernel.changed)) == (1, 1)
        watcher.finish()
        assert (len(kernel.shown), len(kernel.changed)) == (1, 2)
        assert kernel.changed[-1].alt == "runs/mine: iteration 3/3, success 0.50"
        pictures = [image.imread(io.BytesIO(each.data), format="png") for each in (*kernel.shown, *kernel.changed)]
        assert len({each.shape for each in pictures}) == 1  # nothing moves
        assert not numpy.array_equal(pictures[0], pictures[-1])

    def test_of_a_run_that_goes_on_begins_with_what_was(self, tmp_path):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row(each)) + "\n" for each in (0, 1, 2)))
        watcher = marft.LiveFigure()
        watcher.start({"run": tmp_path}, 4, first=2)
        watcher.iteration(row(2, 1.0))
        watcher.finish()
        assert curves(watcher.figure)["success"]["training play"] == ([0, 1, 2], [0.5, 0.5, 1.0])

    def test_held_out_success_stands_where_it_was_measured_and_stays_when_a_run_goes_on(self, tmp_path):
        watcher = marft.LiveFigure()
        run = marft.train(EVALUATED, run=tmp_path / "run", watcher=watcher)
        table = run.evaluations["success"].xs("sampled", level="play")
        assert list(table.index) == [0, 1, 2, 3, 4]
        assert table.nunique() > 1  # else a shift would not be seen
        assert heldout(watcher.figure) == (list(table.index), list(table))
        later = marft.LiveFigure()
        marft.train(run=run.path, resume=True, overrides={"iterations": 5}, watcher=later)
        table = run.evaluations["success"].xs("sampled", level="play")
        assert list(table.index) == [0, 1, 2, 3, 4, 5]
        assert heldout(later.figure) == (list(table.index), list(table))

    def test_what_was_measured_after_the_point_where_a_run_goes_on_is_not_drawn(self, tmp_path):
        run = RunDirectory(tmp_path)
        for done, mean in ((0, 0.1), (2, 0.2), (4, 0.4)):
            run.write_evaluation(done, {"sampled": {"success": {"mean": mean, "low": 0.0, "high": 1.0}}})
        watcher = marft.LiveFigure()
        watcher.start({"run": tmp_path}, 6, first=2)
        watcher.finish()
        assert heldout(watcher.figure) == ([0, 2], [0.1, 0.2])

    def test_a_metric_that_is_missing_or_no_number_leaves_a_gap(self):
        watcher = marft.LiveFigure()
        for each in ({**row(0), "success": None}, row(1), {"iteration": 2, "update": None}):
            watcher.iteration({**each, "reward": 1.0})
        watcher.finish()
        assert curves(watcher.figure)["success"]["training play"] == ([1], [0.5])

    def test_without_matplotlib_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(MarftError, match=r"pip install 'marft\[plot\]'"):
            marft.LiveFigure()


@pytest.fixture
def jupyter(tmp_path, monkeypatch):
    """Executes a notebook in a kernel of its own, in an empty folder."""
    kernel = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    folder = tmp_path / "jupyter" / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps({**kernel, "display_name": "Python", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    there = {"metadata": {"path": str(tmp_path)}}
    return lambda notebook: NotebookClient(notebook, timeout=300, resources=there).execute()


def test_without_a_figure_a_notebook_shows_plain_lines(jupyter, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code = f"import marft\nmarft.train({ {**EVALUATED, 'iterations': 2}!r}, run='run');"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    jupyter(notebook)
    outputs = [each for each in notebook.cells[0].outputs if each.get("name") != "stderr"]
    assert {each.output_type for each in outputs} == {"stream"}  # one text, not an output a line
    text = "".join(each.text for each in outputs)
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert lines[0].split() == ["run", "run"]
    assert [line.split("  ")[0] for line in lines if "/2  success" in line] == ["iter 1/2", "iter 2/2"]
    assert lines.count("Before training") == lines.count("After training") == 1


class TestTheExample:
    def test_holds_no_output(self):
        notebook = nbformat.read(EXAMPLE, as_version=4)
        nbformat.validate(notebook)
        cells = [each for each in notebook.cells if each.cell_type == "code"]
        assert all(each.outputs == [] and each.execution_count is None for each in cells)

    def test_runs_and_the_team_learns(self, tmp_path, jupyter):
        notebook = nbformat.read(EXAMPLE, as_version=4)
        jupyter(notebook)
        outputs = {each.source: each.outputs for each in notebook.cells if each.cell_type == "code"}
        (training,) = [each for source, each in outputs.items() if "marft.train" in source]
        (picture,) = [each.data["image/png"] for each in training if "image/png" in each.get("data", {})]
        assert image.imread(io.BytesIO(base64.b64decode(picture)), format="png").std() > 0
        (alt,) = [each.metadata["image/png"]["alt"] for each in training if "image/png" in each.get("data", {})]
        assert "iteration 10/10" in alt  # the last state of the one figure
        assert any("10/10" in each.data.get("text/html", "") for each in training if "data" in each)
        (asked,) = [each for source, each in outputs.items() if ".ask(" in source]
        assert asked[-1].data["text/markdown"].startswith("**ann")
        (run,) = (tmp_path / "runs").iterdir()
        success = marft.open_run(run).metrics["success"]
        assert success.iloc[0] < 0.2
        assert success.iloc[-3:].mean() > 0.8
