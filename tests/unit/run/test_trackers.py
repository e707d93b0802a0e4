"""Trackers, each in its own offline mode and read back with its own reader; and what becomes of one that fails."""

import json
import math
import os
import signal
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from builders import config_of
from marft.config import parse_config
from marft.config.learning import RunConfig
from marft.run import launch, trackers
from marft.run.directory import RunDirectory
from marft.run.metrics import MetricsWriter, evaluation_scalars, read_metrics
from marft.run.progress import Silent
from marft.run.trackers import check_trackers
from marft.types import MarftError

# Two rows, an evaluation before, between and after them; then a resume at iteration 1 that plays differently
WRITE = """
import json, math, sys
from pathlib import Path
from marft.config.learning import RunConfig
from marft.run.directory import RunDirectory
from marft.run.metrics import MetricsWriter
from marft.run.trackers import check_trackers

def report(mean):
    return {"tasks": 2, "sampled": {"success": {"mean": mean, "low": 0.0, "high": 1.0}, "kinds": {"a & b": mean}}}

run, settings, notes = RunDirectory(Path(sys.argv[1])), RunConfig(trackers=[sys.argv[2]], project="games"), []
check_trackers(settings, "team.yaml")

def evaluate(writer, iteration, mean):
    run.write_evaluation(iteration, report(mean))
    writer.evaluation(iteration, report(mean))

with MetricsWriter(run, 0, settings, notes.append) as writer:
    evaluate(writer, 0, 0.125)
    evaluate(writer, 1, 0.25)
    writer.write(0, {"success": 0.5, "update": {"ann": {"kl": math.nan}}, "phase": "text", "nothing": None})
    writer.write(1, {"success": 0.5, "update": {"ann": {"kl": math.inf}}})
    evaluate(writer, 2, 0.375)
with MetricsWriter(run, 1, settings, notes.append) as writer:
    writer.write(1, {"success": 0.75, "update": {"ann": {"kl": -math.inf}}})
    evaluate(writer, 2, 0.5)
assert notes == [], notes
"""

SUCCESS, KL, HELD_OUT = "success", "update/ann/kl", "evaluation/sampled/success"


READ = "import json, sys\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\n"


def executed(run, name, *codes, **environment):
    """Let a process for each code work on the run (wandb's files are whole when it has ended); what the last said."""
    home = run.path.parent / "home"
    home.mkdir(exist_ok=True)
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "MLFLOW", "TRACKIO"))}
    environment = {**ours, "HOME": str(home), "HF_HUB_OFFLINE": "1", **environment}
    out = ""
    for code in codes:
        done = subprocess.run(
            [sys.executable, "-c", code, str(run.path), name], capture_output=True, text=True, timeout=120,
            cwd=home, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        out = done.stdout
    return out


def reading(read):
    return f"{READ}{read}\nprint(json.dumps(found))"


def written(run, name, read="", **environment):
    """Let one process write and another read; what was read."""
    out = executed(run, name, WRITE, *([reading(read)] if read else []), **environment)
    assert [row["success"] for row in read_metrics(run.path)] == [0.5, 0.75]
    return json.loads(out) if read else None


def test_tensorboard_hides_what_is_played_again(run):
    written(run, "tensorboard")
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()

    def scalars(key):
        return [(event.step, event.value) for event in events.Scalars(key)]

    assert scalars(SUCCESS) == [(0, 0.5), (1, 0.75)]
    assert scalars(HELD_OUT) == [(0, 0.125), (1, 0.25), (2, 0.5)]
    assert math.isnan(scalars(KL)[0][1])
    assert scalars(KL)[1] == (1, -math.inf)
    assert not {"phase", "nothing", "iteration"} & set(events.Tags()["scalars"])
    assert b"name: duo" in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0]


def test_trackio_is_written_anew(run, tmp_path):
    read = """
import trackio
from trackio.sqlite_storage import SQLiteStorage
runs = list(trackio.Api().runs("games"))
logs = [SQLiteStorage.get_logs("games", each.name, run_id=each.id) for each in runs]
found = {"runs": [each.name for each in runs], "ids": [each.id for each in runs], "config": runs[0].config["team"],
         "logs": [{k: str(v) for k, v in row.items() if k != "timestamp"} for row in logs[0]]}
"""
    found = written(run, "trackio", read, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert found["runs"] == ["run"]
    assert found["ids"] == [json.loads((run.path / "trackers.json").read_text())["trackio"]["id"]]
    assert [each["name"] for each in found["config"]["agents"]] == ["planner", "solver"]
    logs = sorted(found["logs"], key=lambda row: int(row["step"]))
    assert [(row["step"], row[SUCCESS], row[KL]) for row in logs if SUCCESS in row] == [
        ("0", "0.5", "nan"),
        ("1", "0.75", "-inf"),
    ]
    held_out = [(row["step"], row[HELD_OUT]) for row in logs if HELD_OUT in row]
    assert held_out == [("0", "0.125"), ("1", "0.25"), ("2", "0.5")]
    assert not any({"phase", "nothing"} & row.keys() for row in logs)


def test_mlflow_goes_on_in_the_same_run(run, tmp_path):
    read = """
from mlflow import MlflowClient
client = MlflowClient()
(experiment,) = client.search_experiments(filter_string="name = 'games'")
(one,) = client.search_runs([experiment.experiment_id])
keys = ("success", "update/ann/kl", "evaluation/sampled/success", "evaluation/sampled/kinds/a _ b")
found = {"id": one.info.run_id, "name": one.info.run_name, "status": one.info.status, "params": one.data.params,
         "names": sorted(one.data.metrics),
         **{key: [(each.step, str(each.value)) for each in client.get_metric_history(one.info.run_id, key)]
            for key in keys}}
"""
    place = {"MLFLOW_TRACKING_URI": f"file://{tmp_path / 'mlflow'}", "MLFLOW_ALLOW_FILE_STORE": "true"}
    found = written(run, "mlflow", read, **place, MLFLOW_DISABLE_TELEMETRY="true")
    assert found["id"] == json.loads((run.path / "trackers.json").read_text())["mlflow"]["id"]
    assert (found["name"], found["status"]) == ("run", "FINISHED")
    assert found["params"]["update.lr"] == str(run.config().update.lr)
    assert found[SUCCESS] == [[0, "0.5"], [1, "0.5"], [1, "0.75"]]  # MLflow deletes no point
    assert found[KL] == [[0, "nan"], [1, "inf"], [1, "-inf"]]
    assert found[HELD_OUT] == [[0, "0.125"], [1, "0.25"], [2, "0.375"], [2, "0.5"]]
    assert found["evaluation/sampled/kinds/a _ b"][-1] == [2, "0.5"]
    assert not {"phase", "nothing", "iteration"} & set(found["names"])


RECORDS = """
from wandb.proto import wandb_internal_pb2 as proto

def records(path):  # LevelDB's log: blocks of 32 KiB of pieces with checksum, length and kind (1 whole, 4 last)
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield proto.Record.FromString(whole)
            whole = b""
"""


def test_wandb_goes_on_in_the_same_run(run):
    read = """
files = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
found = {"runs": [], "rows": [], "axes": []}
for file in files:
    rows = []
    for record in records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            config = {each.key: json.loads(each.value_json) for each in record.run.config.update}
            found["runs"].append([record.run.run_id, record.run.display_name, record.run.project, config["name"]])
        elif kind == "metric":
            found["axes"].append([record.metric.glob_name, record.metric.step_metric])
        elif kind == "history":
            rows.append({each.key or each.nested_key[0]: each.value_json for each in record.history.item})
    found["rows"].append(rows)
"""
    found = written(run, "wandb", RECORDS + read, WANDB_MODE="offline")
    identity = json.loads((run.path / "trackers.json").read_text())["wandb"]["id"]
    assert found["runs"] == [[identity, "run", "games", "duo"]] * 2
    assert found["axes"] == [["*", "iteration"]] * 2
    first, second = found["rows"]
    assert [(row["iteration"], row.get(SUCCESS), row.get(HELD_OUT)) for row in first] == [
        ("0", None, "0.125"), ("1", None, "0.25"), ("0", "0.5", None), ("1", "0.5", None), ("2", None, "0.375"),
    ]  # fmt: skip
    assert [(row["iteration"], row.get(SUCCESS), row.get(HELD_OUT)) for row in second] == [
        ("1", "0.75", None),
        ("2", None, "0.5"),
    ]
    assert [row[KL] for row in first if KL in row] == ["NaN", "Infinity"]
    assert not any({"phase", "nothing"} & row.keys() for row in first)


# Two starts of one run: the first ends as `sys.argv` says, by an error or in order
END = """
import contextlib, sys
from pathlib import Path
from marft.config.learning import RunConfig
from marft.run.directory import RunDirectory
from marft.run.metrics import MetricsWriter

run, settings, notes = RunDirectory(Path(sys.argv[1])), RunConfig(trackers=[sys.argv[2]], project="games"), []

def end(start, error):
    ended = contextlib.suppress(KeyboardInterrupt, ValueError)
    with ended, MetricsWriter(run, start, settings, notes.append) as writer:
        writer.write(start, {"success": 0.5})
        if error:
            raise error
    assert notes == [], notes
"""


def test_mlflow_hears_how_a_run_ended(run, tmp_path):
    tell = """
import json
from mlflow import MlflowClient
found = []
for start, error in enumerate((ValueError("a crash"), None, KeyboardInterrupt())):
    end(start, error)
    known = json.loads((run.path / "trackers.json").read_text())["mlflow"]["id"]
    found.append(MlflowClient().get_run(known).info.status)
print(json.dumps(found))
"""
    place = {"MLFLOW_TRACKING_URI": f"file://{tmp_path / 'mlflow'}", "MLFLOW_ALLOW_FILE_STORE": "true"}
    found = executed(run, "mlflow", END + tell, **place, MLFLOW_DISABLE_TELEMETRY="true")
    assert json.loads(found) == ["FAILED", "FINISHED", "FAILED"]


def test_wandb_hears_how_a_run_ended(run):
    read = """
files = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
ends = [each for file in files for each in records(file) if each.WhichOneof("record_type") == "exit"]
found = [each.exit.exit_code for each in ends]
"""
    codes = (f"{END}end(0, ValueError('a crash'))", f"{END}end(1, None)", reading(RECORDS + read))
    assert json.loads(executed(run, "wandb", *codes, WANDB_MODE="offline")) == [1, 0]


def test_a_run_that_the_user_has_open_in_wandb_stays_open(run):
    use = """
import os, wandb
mine = wandb.init(project="mine", dir=os.getcwd(), settings=wandb.Settings(quiet=True, console="off"))
mine.log({"x": 1})
end(0, None)
assert wandb.run is mine
mine.log({"x": 2})
mine.finish()
assert wandb.run is None
end(1, None)
assert wandb.run is None
"""
    read = """
def keys(place):
    found = [each.history.item for file in place.glob("wandb/offline-run-*/*.wandb") for each in records(file)
             if each.WhichOneof("record_type") == "history"]
    named = [[each.key or each.nested_key[0] for each in items] for items in found]
    return [sorted(name for name in each if not name.startswith("_")) for each in named]
found = [keys(Path.cwd()), keys(folder)]
"""
    codes = (END + use, reading(RECORDS + read))
    mine, ours = json.loads(executed(run, "wandb", *codes, WANDB_MODE="offline"))
    assert mine == [["x"], ["x"]]
    assert ours == [["iteration", "success"]] * 2


def test_a_run_that_the_user_has_open_in_trackio_stays_open(run, tmp_path):
    use = """
import trackio
from trackio.context_vars import current_run
mine = trackio.init(project="mine", name="mine", config={"mine": 1}, embed=False)
trackio.log({"x": 1})
end(0, None)
assert current_run.get() is mine
assert trackio.config["mine"] == 1
trackio.log({"x": 2})
trackio.finish()
end(1, None)
assert current_run.get() is None
"""
    read = """
import trackio
from trackio.sqlite_storage import SQLiteStorage
found = {"mine": [], "games": []}
for project, rows in found.items():
    for each in trackio.Api().runs(project):
        logs = SQLiteStorage.get_logs(project, each.name, run_id=each.id)
        rows += [[log.get("x"), log.get("success")] for log in logs]
"""
    found = json.loads(executed(run, "trackio", END + use, reading(read), TRACKIO_DIR=str(tmp_path / "trackio")))
    assert found == {"mine": [[1, None], [2, None]], "games": [[None, 0.5], [None, 0.5]]}


def test_an_interval_is_its_mean_with_bounds_beside_it():
    report = {"tasks": 2, "sampled": {"success": {"mean": 0.5, "low": 0.25, "high": 1.0}, "pass_at": {"2": 0.75}}}
    assert evaluation_scalars(report) == {
        "evaluation/tasks": 2.0, "evaluation/sampled/success": 0.5, "evaluation/sampled/success_low": 0.25,
        "evaluation/sampled/success_high": 1.0, "evaluation/sampled/pass_at/2": 0.75,
    }  # fmt: skip


class Fake:
    """A tracker whose network may go, at opening (0), at the row of that number, or at the end (-1)."""

    def __init__(self, fails_at, made):
        self.fails_at, self.known, self.logged = fails_at, {"id": "x"}, []
        made.append(self)
        self._maybe(0)

    def _maybe(self, now):
        if self.fails_at == now:
            raise ConnectionError("the network\nis gone")

    def log(self, iteration, scalars):
        self._maybe(len(self.logged) + 1)
        self.logged.append(iteration)

    def close(self, failed):
        self.failed = failed
        self._maybe(-1)


@pytest.mark.parametrize(("fails_at", "logged"), [(0, 0), (2, 1), (-1, 3)])
def test_one_that_fails_is_named_once_and_stops_nothing(run, monkeypatch, fails_at, logged):
    made = []
    monkeypatch.setattr(
        trackers, "OPENERS", {"wandb": lambda _: Fake(fails_at, made), "mlflow": lambda _: Fake(None, made)}
    )
    notes = []
    with MetricsWriter(run, 0, RunConfig(trackers=["wandb", "mlflow"]), notes.append) as writer:
        for iteration in range(3):
            writer.write(iteration, {"success": 0.5})
    failing, other = made
    assert (len(failing.logged), other.logged) == (logged, [0, 1, 2])
    assert [row["iteration"] for row in read_metrics(run.path)] == [0, 1, 2]
    assert notes == [
        "run.trackers: wandb is left out from here on (the network is gone); metrics.jsonl has every number"
    ]


def test_a_polite_stop_is_no_error(tmp_path, monkeypatch):
    made, config = [], config_of("ann", "bob", iterations=2, evaluation={"tasks": 0}, run={"trackers": ["wandb"]})
    monkeypatch.setattr(trackers, "OPENERS", {"wandb": lambda _: Fake(None, made)})
    monkeypatch.setattr(launch, "check_trackers", lambda settings, source: None)

    class Interrupting(Silent):
        """Asks the run to stop once, as Ctrl-C does, or fails."""

        def __init__(self, error):
            self.error = error

        def iteration(self, metrics):
            if self.error is not None:
                raise self.error
            os.kill(os.getpid(), signal.SIGINT)

    assert launch.start(config, (), tmp_path / "stopped", Interrupting(None)).exit_code == 130
    with pytest.raises(ValueError, match="a crash"):
        launch.start(config, (), tmp_path / "failed", Interrupting(ValueError("a crash")))
    assert [(each.logged, each.failed) for each in made] == [([0], False), ([0], True)]


def test_one_that_fails_is_told_as_a_warning_where_nobody_watches(run, monkeypatch):
    monkeypatch.setattr(trackers, "OPENERS", {"trackio": lambda _: Fake(0, [])})
    with pytest.warns(UserWarning, match="trackio is left out"):
        MetricsWriter(run, 0, RunConfig(trackers=["trackio"])).close()


def test_training_logs_rows_and_evaluations(tmp_path):
    config = config_of("ann", "bob", iterations=2, evaluation={"tasks": 1, "samples": 1, "every": 1}, run={})
    found = launch.start(config, (), tmp_path / "run", Silent()).run
    events = EventAccumulator(str(found.tensorboard))
    events.Reload()
    assert [event.step for event in events.Scalars("success")] == [0, 1]
    logged = {event.step: event.value for event in events.Scalars("evaluation/greedy/success")}
    reports = found.read_evaluations()
    assert logged == pytest.approx({number: each["greedy"]["success"]["mean"] for number, each in reports.items()})
    assert len(logged) == 3


def test_a_missing_package_is_found_before_anything_is_made(tmp_path, monkeypatch):
    (tmp_path / "absent").mkdir()  # as wandb leaves a folder `wandb` behind, which Python takes for a package
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(trackers.PACKAGES, "wandb", "absent")
    monkeypatch.setitem(trackers.PACKAGES, "mlflow", "absent_altogether")
    for name in ("wandb", "mlflow"):
        config = config_of("ann", "bob", run={"trackers": [name]})
        with pytest.raises(MarftError, match=rf"^config: run\.trackers: {name} is not .* 'marft\[{name}\]'$"):
            launch.start(config, (), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "environment", "said"),
    [
        ("wandb", {}, "wandb knows no API key; run `wandb login`"),
        ("mlflow", {"MLFLOW_TRACKING_URI": "file:///nowhere"}, "MLFLOW_ALLOW_FILE_STORE=true"),
        (
            "mlflow",
            {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
            "mlflow's server at http://127.0.0.1:9 cannot be reached",
        ),
    ],
)
def test_one_with_nowhere_to_log_to_is_found_before_training(tmp_path, name, environment, said):
    code = (
        "import sys; from marft.config.learning import RunConfig; from marft.run.trackers import check_trackers\n"
        "try: check_trackers(RunConfig(trackers=[sys.argv[1]]), 'team.yaml')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "MLFLOW"))}
    done = subprocess.run(
        [sys.executable, "-c", code, name], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True,
        env={**ours, "HOME": str(tmp_path), **environment},
    )  # fmt: skip
    assert said in done.stdout
    assert done.stdout.startswith("MarftError team.yaml: run.trackers: ")


def test_the_key(config):
    raw = config.model_dump(mode="json")
    assert raw["run"]["trackers"] == ["tensorboard"]
    assert raw["run"]["project"] == "marft"

    def parsed(**changes):
        return parse_config({**raw, "run": {"folder": "runs", **changes}}, "team.yaml").run.trackers

    assert parsed(trackers=[]) == []
    assert parsed(tensorboard=False) == []  # as runs of before say
    assert parsed(tensorboard=True) == ["tensorboard"]
    with pytest.raises(MarftError, match=r"team.yaml: run.trackers: names a tracker twice"):
        parsed(trackers=["wandb", "mlflow", "wandb"])
    with pytest.raises(MarftError, match=r"team.yaml: 'run.trackers.0': .*'tensorboard'"):
        parsed(trackers=["tensorbord"])
    check_trackers(RunConfig(trackers=["tensorboard"]), "team.yaml")
    assert RunDirectory.create(config).config() == config
