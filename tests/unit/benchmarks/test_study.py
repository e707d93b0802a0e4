"""The study's bookkeeping, arithmetic and figures, and one small run from its config to the report."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import pytest
import yaml
from benchmarks.study import __main__ as command
from benchmarks.study import findings, one, plots, report
from benchmarks.study.base import ALONE, BASE
from benchmarks.study.conditions import Condition, Contrast, Experiment, Run, flat, ordered, runs_of, written
from benchmarks.study.experiments import EXPERIMENTS, QUICK
from benchmarks.study.findings import Findings
from benchmarks.study.pool import Ended, Runner, work
from benchmarks.study.records import Records
from benchmarks.study.results import compact, tokens

from marft.config import parse_config
from marft.run.progress import Silent

# Conditions that train the same as another one: mappo as marft-a in three sizes; reverse and simultaneous as declared
ALIKE = {"learners": 3, "schedule": 2}
RELAY: Mapping[str, Any] = {
    "model.name": "tiny",
    "iterations": 3,
    "lora.r": 4,
    "threads": 1,
    "team.agents": [{"name": "ann"}, {"name": "bob"}],
    "environment.name": "relay",
    "environment.symbols": ["a", "b"],
    "environment.prompt": "c",
    "environment.hint": "{symbol}",
    "rollout.tasks": 2,
    "rollout.samples": 2,
    "rollout.sampling.max_tokens": 2,
    "evaluation.tasks": 2,
    "evaluation.samples": 2,
    "run.trackers": [],
    "run.save_every": 1,
}


def experiment(**changes: Any) -> Experiment:
    small = Experiment(
        "small",
        "What is better?",
        RELAY,
        (Condition("plain"), Condition("slow", {"update.lr": 1e-5}), Condition("fast", {"update.lr": 1e-2})),
        baseline="plain",
    )
    return replace(small, **changes)


def record(
    sampled: float, before: float = 0.1, curve: tuple[float, ...] = (0.1, 0.3), **changes: Any
) -> dict[str, Any]:
    def evaluation(success: float) -> dict[str, Any]:
        return {
            "sampled": success, "greedy": success + 0.1, "failed": 0, "majority": {"1": success, "4": success + 0.05},
            "kl": {"ann": 0.2, "bob": 0.4}, "answer_tokens": 12.0,
        }  # fmt: skip

    return {
        "agents": 2,
        "curve": list(curve),
        "evaluations": {"0": evaluation(before), "2": evaluation(sampled)},
        "tokens": {"sampled": 5000, "trained": 4000, "prompt": None},
        "iterations": len(curve),
        "seconds": {"training": 30.0, "all": 60.0},
        "threads": 1,
        "processor": "a processor",
        "versions": {"marft": "0.1.0"},
        **changes,
    }


def results(folder: Path, made: Experiment, **values: list[float]) -> Findings:
    """What was found when each condition ended with these successes, a seed each."""
    records = Records(folder)
    runs = list(runs_of(made, 5))
    for run in runs:
        mine = values.get(run.condition.replace("/", "_"), [])
        if run.seed < len(mine):
            records.add(run, record(mine[run.seed]))
    return Findings.of(made, runs, records)


class TestConditions:
    def test_dotted_keys_become_sections(self) -> None:
        assert written({"team.agents": [], "update.lr": 0.1, "update.epochs": 2, "threads": 1}) == {
            "team": {"agents": []},
            "update": {"lr": 0.1, "epochs": 2},
            "threads": 1,
        }

    def test_a_team_is_written_out_with_adapters_and_edges_by_place(self) -> None:
        team = written({"team.size": 3, "team.adapters": ["x", "y", "x"], "team.edges": [[0, 2]]})["team"]
        names = [agent["name"] for agent in team["agents"]]
        assert [agent["adapter"] for agent in team["agents"]] == ["x", "y", "x"]
        assert team["dependency"] == {"edges": [[names[0], names[2]]]}
        assert [agent["sees_task"] for agent in team["agents"]] == [True, False, False]
        assert set(team) == {"agents", "dependency", "message"}

    @pytest.mark.parametrize("name", EXPERIMENTS)
    def test_every_condition_is_a_config_and_differs_from_the_others(self, name: str) -> None:
        for overrides in (None, QUICK):
            runs = list(runs_of(EXPERIMENTS[name], 2, overrides))
            assert {run.seed for run in runs} == {0, 1}
            if overrides is None:
                made = {json.dumps(each.changes) for each in EXPERIMENTS[name].conditions}
                assert len({run.hash for run in runs}) == len(made) - ALIKE.get(name, 0)

    def test_no_condition_holds_what_a_learner_decides_in_the_base(self) -> None:
        decided = {"credit.chain", "credit.baseline", "critic.kind", "update.level", "update.schedule", "update.carry"}
        assert not decided & BASE.keys()

    def test_an_agent_alone_samples_more_the_larger_the_team(self) -> None:
        assert 8 < ALONE["duo"] <= ALONE["trio"] < ALONE["quad"]

    def test_unknown_baselines_and_contrasts_are_found_at_once(self) -> None:
        with pytest.raises(ValueError, match="no condition 'other'"):
            experiment(baseline="other")
        with pytest.raises(ValueError, match="no condition 'missing'"):
            experiment(contrasts=(Contrast("?", ("fast",), ("missing",)),))
        with pytest.raises(ValueError, match="same name"):
            experiment(conditions=(Condition("plain"), Condition("plain")))

    def test_runs_go_seed_by_seed_and_what_is_shared_stands_once(self) -> None:
        one, two = experiment(), experiment(name="other", conditions=(Condition("plain"), Condition("x", {"seed": 7})))
        found = ordered([*runs_of(one, 2), *runs_of(two, 2)])
        assert [(run.experiment, run.condition, run.seed) for run in found] == [
            ("small", name, seed) for seed in (0, 1) for name in ("plain", "slow", "fast")
        ]

    def test_flat_keys_hold_every_leaf(self) -> None:
        assert dict(flat({"a": {"b": [1, {"c": None}], "d": []}, "e": {}})) == {
            "a.b.0": 1, "a.b.1.c": None, "a.d": [], "e": {},
        }  # fmt: skip

    def test_a_seed_and_where_it_runs_do_not_change_the_hash(self) -> None:
        runs = list(runs_of(experiment(), 2))
        moved = list(runs_of(experiment(base={**RELAY, "threads": 2, "run.folder": "elsewhere"}), 1))
        assert runs[0].hash == runs[1].hash == moved[0].hash
        assert runs[0].folder != runs[1].folder
        assert runs[0].hash != runs[2].hash

    @pytest.mark.parametrize(
        ("base", "trainings"),
        [
            ({}, 1),
            ({"update.carry": "happo"}, 2),
            ({"team.agents": [{"name": "ann", "adapter": "both"}, {"name": "bob", "adapter": "both"}]}, 2),
        ],
    )
    def test_an_order_that_changes_nothing_makes_no_other_run(self, base: Mapping[str, Any], trainings: int) -> None:
        orders = (Condition("plain"), Condition("reverse", {"update.order": "reverse"}))
        runs = runs_of(experiment(base={**RELAY, **base}, conditions=orders), 1)
        assert len({run.hash for run in runs}) == trainings


class TestRecords:
    def test_a_recorded_run_is_done_for_every_experiment_that_has_it(self, tmp_path: Path) -> None:
        records = Records(tmp_path)
        (plain, *_), (other, *_) = runs_of(experiment(), 1), runs_of(experiment(name="other"), 1)
        assert records.state(plain) == "missing"
        records.add(plain, record(0.5))
        assert [Records(tmp_path).state(run) for run in (plain, other)] == ["done", "done"]
        assert [records.state(run) for run in runs_of(experiment(), 2)][1] == "missing"  # the second seed

    def test_a_changed_condition_is_stale(self, tmp_path: Path) -> None:
        records = Records(tmp_path)
        (run, *_) = runs_of(experiment(), 1)
        records.add(run, record(0.5))
        (changed, *_) = runs_of(experiment(base={**RELAY, "update.epochs": 2}), 1)
        assert (records.state(changed), records.state(run)) == ("stale", "done")
        records.add(changed, record(0.6))
        assert records.of(changed)["evaluations"]["2"]["sampled"] == 0.6

    def test_a_key_that_came_since_then_counts_only_away_from_its_default(self, tmp_path: Path) -> None:
        records = Records(tmp_path)
        (run, *_) = runs_of(experiment(), 1)
        older = replace(run, settled={key: value for key, value in run.settled.items() if key != "update.epochs"})
        records.add(older, record(0.5))
        assert older.hash != run.hash
        assert records.state(run) == "done"
        (chosen, *_) = runs_of(experiment(base={**RELAY, "update.epochs": 2}), 1)
        assert records.state(chosen) == "stale"

    def test_a_key_that_is_gone_makes_a_run_stale(self, tmp_path: Path) -> None:
        records = Records(tmp_path)
        (run, *_) = runs_of(experiment(), 1)
        records.add(replace(run, settled={**run.settled, "update.gone": 1}), record(0.5))
        assert records.state(run) == "stale"

    def test_configs_of_later_runs_are_kept_as_differences_and_come_back_whole(self, tmp_path: Path) -> None:
        records = Records(tmp_path)
        runs = list(runs_of(experiment(), 1))
        for run in runs:
            records.add(run, record(0.5))
        rows = [json.loads(line) for line in (tmp_path / "configs.jsonl").read_text().splitlines()]
        assert rows[1]["changed"] == {"update.lr": 1e-5}
        assert [Records(tmp_path).of(replace(run, experiment="?"))["condition"] for run in runs] == [
            "plain", "slow", "fast",
        ]  # fmt: skip

    def test_a_line_torn_by_a_kill_costs_that_run_alone(self, tmp_path: Path) -> None:
        records = Records(tmp_path)
        one, two, three = runs_of(experiment(), 1)
        records.add(one, record(0.5))
        records.add(two, record(0.5))
        file = tmp_path / "runs.jsonl"
        file.write_bytes(file.read_bytes()[:-20])
        records = Records(tmp_path)
        assert [records.state(run) for run in (one, two, three)] == ["done", "missing", "missing"]
        records.add(three, record(0.7))
        assert [Records(tmp_path).state(run) for run in (one, two, three)] == ["done", "missing", "done"]

    def test_forgotten_runs_are_missing_and_pruned_ones_counted_for_nothing(self, tmp_path: Path) -> None:
        records = Records(tmp_path)
        one, two, three = runs_of(experiment(), 1)
        for run in (one, two, three, one):
            records.add(run, record(0.5))
        assert records.prune([one, two]) == 2  # the older record of `one`, and `three`
        assert [records.state(run) for run in (one, two, three)] == ["done", "done", "missing"]
        assert records.forget([one]) == 1
        assert [Records(tmp_path).state(run) for run in (one, two)] == ["missing", "done"]


class FakeJob:
    """A run that ends after some looks, or as soon as it is asked to."""

    def __init__(self, runs: list[str], run: Run, looks: int, code: int) -> None:
        self.runs, self.run, self.looks, self.code = runs, run, looks, code
        self.said: list[str] = []

    def poll(self) -> int | None:
        self.looks -= 1
        if "stop" in self.said:
            return -15
        return self.code if self.looks <= 0 else None

    def stop(self) -> None:
        self.said.append("stop")

    def kill(self) -> None:
        self.said.append("kill")

    def result(self) -> dict[str, Any]:
        return record(0.5)

    def clear(self) -> None:
        self.said.append("clear")

    def complaint(self) -> str:
        return "it broke"


class Fakes:
    """Starts fake runs and keeps them."""

    def __init__(self, codes: Mapping[str, int] | None = None, looks: int = 2) -> None:
        self.jobs: dict[str, FakeJob] = {}
        self.ended: list[Ended] = []
        self.most = 0
        self._codes, self._looks = codes or {}, looks

    def __call__(self, run: Run) -> FakeJob:
        job = FakeJob([], run, self._looks, self._codes.get(run.condition, 0))
        self.jobs[run.folder] = job
        self.most = max(self.most, len(self.jobs) - len(self.ended))
        return job

    def work(self, runs: list[Run], workers: int = 2, stopping: Any = lambda: False) -> None:
        work(runs, self, workers, stopping, self.ended.append, pause=0.0)


class TestPool:
    def test_everything_runs_once_in_order_and_no_more_than_the_workers_at_a_time(self) -> None:
        fakes, runs = Fakes(), ordered(list(runs_of(experiment(), 3)))
        fakes.work(runs)
        assert list(fakes.jobs) == [run.folder for run in runs]
        assert fakes.most == 2
        assert all(each.result is not None for each in fakes.ended)
        assert all(job.said == ["clear"] for job in fakes.jobs.values())

    def test_a_failed_run_says_why_and_holds_nobody_up(self) -> None:
        fakes = Fakes({"slow": 2})
        fakes.work(list(runs_of(experiment(), 1)))
        found = {each.run.condition: (each.result is not None, each.complaint) for each in fakes.ended}
        assert found == {"plain": (True, None), "slow": (False, "it broke"), "fast": (True, None)}
        assert [job.said for job in fakes.jobs.values()] == [["clear"], [], ["clear"]]

    def test_stopping_asks_what_is_under_way_once_and_starts_nothing(self) -> None:
        fakes = Fakes(looks=10**6)
        fakes.work(list(runs_of(experiment(), 2)), stopping=lambda: len(fakes.jobs) == 2)
        assert [job.said for job in fakes.jobs.values()] == [["stop"], ["stop"]]
        assert [(each.result, each.complaint) for each in fakes.ended] == [(None, None)] * 2

    def test_an_exception_kills_what_is_under_way(self) -> None:
        fakes = Fakes(looks=10**6)

        def stopping() -> bool:
            if len(fakes.jobs) == 2:
                raise KeyboardInterrupt
            return False

        with pytest.raises(KeyboardInterrupt):
            fakes.work(list(runs_of(experiment(), 1)), stopping=stopping)
        assert [job.said for job in fakes.jobs.values()] == [["kill"], ["kill"]]


class TestFindings:
    def test_means_and_paired_differences_have_students_interval_over_seeds(self, tmp_path: Path) -> None:
        # t of 2 degrees of freedom: 4.30265; sd 0.2 and 0.152753; divided by the root of 3
        found = results(tmp_path, experiment(), plain=[0.1, 0.3, 0.5], slow=[0.2, 0.4, 0.6], fast=[0.3, 0.4, 0.9])
        mean = found.mean("slow", "final")
        assert (mean.mean, mean.high - mean.mean) == pytest.approx((0.4, 0.496828), abs=1e-5)
        difference = found.difference(found.experiment.conditions[2], "final")
        assert (difference.mean, difference.mean - difference.low) == pytest.approx((0.233333, 0.379459), abs=1e-5)
        assert found.difference(found.experiment.conditions[0], "final") is None
        assert found.mean("plain", "area").mean == pytest.approx(0.2)  # of 0.1 and 0.3
        assert found.mean("plain", "greedy").mean == pytest.approx(0.4)
        assert found.mean("plain", "before").mean == pytest.approx(0.1)

    def test_a_difference_uses_the_seeds_that_both_have(self, tmp_path: Path) -> None:
        found = results(tmp_path, experiment(), plain=[0.1, 0.3], slow=[0.4, 0.2, 0.9], fast=[])
        difference = found.difference(found.experiment.conditions[1], "final")
        assert difference.mean == pytest.approx((0.3 - 0.1) / 2)
        assert found.difference(found.experiment.conditions[2], "final") is None
        assert [each.name for each in found.measured] == ["plain", "slow"]

    def test_a_contrast_is_a_signed_sum_seed_by_seed(self, tmp_path: Path) -> None:
        contrast = Contrast("?", ("fast", "plain"), ("slow", "slow"))
        made = experiment(contrasts=(contrast,))
        found = results(tmp_path, made, plain=[0.1, 0.2, 0.9], slow=[0.2, 0.2, 0.1], fast=[0.5, 0.3])
        value = found.contrast(contrast, "final")  # 0.2 and 0.1
        assert (value.mean, value.high - value.mean) == pytest.approx((0.15, 12.7062 * 0.0707107 / 2**0.5), abs=1e-4)

    def test_verdicts(self) -> None:
        def of(*values: float) -> str:
            return findings.verdict(findings.over_seeds(dict(enumerate(values))))

        assert of(0.2, 0.21, 0.22) == "better"
        assert of(-0.2, -0.21, -0.22) == "worse"
        assert of(-0.2, 0.3, 0.1) == "no difference shown"
        assert of(0.4) == "not known"
        assert findings.verdict(None) == "not known"

    def test_a_band_is_the_interval_of_each_iteration(self) -> None:
        means, halves = findings.band([[0.1, 0.5, 0.9], [0.3, 0.5]])
        assert means == pytest.approx([0.2, 0.5])
        assert halves == pytest.approx([12.7062 * 0.141421 / 2**0.5, 0.0], abs=1e-4)
        assert findings.band([[0.1, 0.2]]) == ([0.1, 0.2], [0.0, 0.0])

    def test_smoothing_keeps_length_and_a_straight_line(self) -> None:
        line = [0.1 * place for place in range(9)]
        assert findings.smooth(line)[2:-2] == pytest.approx(line[2:-2])
        assert findings.smooth([0.0, 1.0, 0.0], width=3) == pytest.approx([0.5, 1 / 3, 0.5])


class TestReport:
    def write(self, folder: Path, made: Experiment, **values: list[float]) -> str:
        found = results(folder / "evidence", made, **values)
        written = report.write_report([made], {made.name: list(runs_of(made, 5))}, Records(folder / "evidence"))
        assert written == folder / "evidence.md"
        assert found.measured or not values
        return written.read_text(encoding="utf8")

    def test_it_holds_numbers_differences_and_a_sentence_made_from_them(self, tmp_path: Path) -> None:
        text = self.write(tmp_path, experiment(), plain=[0.1, 0.3, 0.5], slow=[0.0, 0.18, 0.4], fast=[0.3, 0.4, 0.9])
        assert "| plain (baseline) | – | 3 | 0.10 [0.10, 0.10] | 0.30 [-0.20, 0.80] | – |" in text
        assert (
            "| fast | `update.lr: 0.01` | 3 | 0.10 [0.10, 0.10] | 0.53 [-0.27, 1.33] | +0.23 [-0.15, +0.61] |" in text
        )
        assert (
            "After training, worse than plain: slow (-0.11 [-0.14, -0.08]); no difference shown: "
            "fast (+0.23 [-0.15, +0.61])." in text
        )
        assert "5 sampled, 4 trained" in text
        assert "`python -m benchmarks.study small --seeds 3`: 9 runs; 2 iterations; 1 thread(s) each; 9 minutes" in text
        assert "**Fewer than 5 seeds**" in text
        assert "Missing" not in text

    def test_enough_seeds_go_without_saying(self, tmp_path: Path) -> None:
        seeds = [0.1, 0.2, 0.3, 0.2, 0.1]
        text = self.write(tmp_path, experiment(), plain=seeds, slow=seeds, fast=[each + 0.3 for each in seeds])
        assert "Fewer than" not in text.split("## small")[1]
        assert "better than plain: fast (+0.30 [+0.30, +0.30])" in text

    def test_one_seed_is_not_taken_for_more(self, tmp_path: Path) -> None:
        text = self.write(tmp_path, experiment(), plain=[0.1], slow=[0.9], fast=[])
        assert "Missing, for as many seeds of every condition: 1 runs." in text
        assert "one seed, so nothing can be said: slow (+0.80)" in text

    def test_what_was_not_run_says_how_to_run_it(self, tmp_path: Path) -> None:
        assert "Not run yet: `python -m benchmarks.study small`" in self.write(tmp_path, experiment())

    def test_a_condition_that_is_another_ones_twin_is_not_compared(self, tmp_path: Path) -> None:
        twins = (
            Condition("plain"),
            Condition("twin", {"update.order": "reverse"}),
            Condition("fast", {"update.lr": 0.1}),
        )
        text = self.write(tmp_path, experiment(conditions=twins), plain=[0.1, 0.2], fast=[0.4, 0.5])
        assert '| twin (the same as plain) | `update.order: "reverse"` | 2 |' in text
        assert "twin is the same training as plain" in text
        assert "--seeds 2`: 4 runs; " in text
        assert "After training, better than plain: fast (+0.30 [+0.30, +0.30])." in text

    def test_contrasts_and_comments_are_in_it(self, tmp_path: Path) -> None:
        comments = tmp_path / "evidence" / "comments"
        comments.mkdir(parents=True)
        (comments / "small.md").write_text("Written by *hand*.\n")
        made = experiment(contrasts=(Contrast("fast against slow", ("fast",), ("slow",)),))
        text = self.write(tmp_path, made, plain=[0.1, 0.1], slow=[0.1, 0.12], fast=[0.5, 0.521])
        assert text.endswith("Written by *hand*.\n")
        assert "| fast against slow | +0.40 [+0.39, +0.41] above 0 |" in text

    def test_groups_have_tables_of_their_own_each_with_its_baseline(self, tmp_path: Path) -> None:
        rates = {"a": {"plain": 0.1, "fast": 0.2}, "b": {"plain": 0.3, "fast": 0.4}}
        conditions = [
            Condition(name, {"update.lr": rates[group][name]}, group) for group in "ab" for name in rates["a"]
        ]
        made = experiment(conditions=tuple(conditions))
        text = self.write(tmp_path, made, a_plain=[0.1, 0.1], a_fast=[0.2, 0.2], b_plain=[0.5, 0.5], b_fast=[0.1, 0.1])
        assert "better than plain: fast (+0.10 [+0.10, +0.10])" in text.split("### a")[1].split("### b")[0]
        assert "worse than plain: fast (-0.40 [-0.40, -0.40])" in text.split("### b")[1]

    @pytest.mark.parametrize("kind", ["curves", "retention", "budget"])
    def test_figures_are_drawn(self, tmp_path: Path, kind: Any) -> None:
        made = experiment(figure=kind)
        found = results(tmp_path, made, plain=[0.1, 0.3], slow=[0.2, 0.5], fast=[0.9])
        path = plots.draw(found, tmp_path / "figures")
        assert path is not None
        pixels = (255 * matplotlib.image.imread(path)[..., :3]).round().astype(int)
        for colour in ((0, 0x72, 0xB2), (0xD5, 0x5E, 0), (0, 0x9E, 0x73)):  # every condition's
            assert (pixels == colour).all(-1).sum() > 20
        assert path.stat().st_size < 100_000

    def test_nothing_measured_is_no_figure(self, tmp_path: Path) -> None:
        assert plots.draw(results(tmp_path, experiment(), plain=[], slow=[], fast=[]), tmp_path) is None

    def test_conditions_differ_in_colour_and_in_line(self) -> None:
        for made in EXPERIMENTS.values():
            styles = plots.styles_of(Findings(made, {})).values()
            assert len({colour for colour, _, _ in styles}) == len(styles)
            assert len({str(line) for _, line, _ in styles}) == len({mark for _, _, mark in styles}) == len(styles)


class TestResults:
    def test_tokens_come_back_from_rates_and_lengths(self) -> None:
        row = {
            "episodes": 10, "failed": 2, "seconds": 4.0, "share": {"update": 0.25}, "update_tokens_per_second": 70.0,
            "play": {"ann": {"reply_tokens": 2.5, "replies": 2.0}, "bob": {"reply_tokens": 4.0, "replies": 0.5}},
        }  # fmt: skip
        assert tokens([row, row]) == {"sampled": 2 * (8 * 2 * 2.5 + 8 * 0.5 * 4), "trained": 140, "prompt": None}
        assert tokens([{**row, "tokens": {"prompt": 300}}])["prompt"] == 300

    def test_an_evaluation_is_cut_to_what_the_study_needs(self) -> None:
        success = {"mean": 0.12345, "low": 0.0, "high": 1.0}
        cut = compact(
            {
                "sampled": {"success": success, "failed": 1, "tokens": 21.23456, "maj_at": {"1": 0.5, "4": 0.66666}},
                "greedy": {"success": success, "failed": 2},
                "influence": {"ann": {"drop": 0.25, "swapped": success}},
                "retention": {"ann": {"kl": 0.1, "perplexity": 3.0, "base_perplexity": 2.0}},
            }
        )
        assert cut == {
            "sampled": 0.123, "greedy": 0.123, "failed": 3, "majority": {"1": 0.5, "4": 0.667},
            "influence": {"ann": 0.25}, "kl": {"ann": 0.1}, "perplexity": {"ann": 1.5},
            "answer_tokens": 21.235,
        }  # fmt: skip


class Killed(Silent):
    """Ends the process, as it were, after an iteration was saved."""

    def __init__(self, after: int) -> None:
        self.after = after

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        if metrics["iteration"] == self.after:
            raise KeyboardInterrupt


class TestRuns:
    def config(self, folder: Path) -> str:
        raw = {**written(RELAY), "seed": 3}
        parse_config(raw)
        file = folder / "run.yaml"
        file.write_text(yaml.safe_dump(raw))
        return str(file)

    def test_an_interrupted_run_is_resumed_and_gives_what_an_uninterrupted_one_gives(self, tmp_path: Path) -> None:
        config = self.config(tmp_path)
        assert one.train(config, tmp_path / "whole", Silent()) == 0
        with pytest.raises(KeyboardInterrupt):
            one.train(config, tmp_path / "cut", Killed(after=1))
        assert one.read_result(tmp_path / "cut") is None
        assert one.train(config, tmp_path / "cut", Silent()) == 0
        whole, cut = (one.read_result(tmp_path / name) for name in ("whole", "cut"))
        for key in ("curve", "evaluations", "tokens", "agents", "iterations"):
            assert whole[key] == cut[key], key
        assert len(whole["curve"]) == 3
        assert set(whole["evaluations"]) == {"0", "3"}

    def test_a_run_killed_before_its_first_checkpoint_starts_again(self, tmp_path: Path) -> None:
        config = self.config(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            one.train(config, tmp_path / "run", Killed(after=0))
        assert one.train(config, tmp_path / "run", Silent()) == 0
        assert one.read_result(tmp_path / "run")["iterations"] == 3

    def test_a_finished_run_is_not_made_again(self, tmp_path: Path) -> None:
        config = self.config(tmp_path)
        one.train(config, tmp_path / "run", Silent())
        written = (tmp_path / "run" / one.RESULT).read_bytes()
        (tmp_path / "run.yaml").unlink()
        assert one.train(config, tmp_path / "run", Silent()) == 0
        assert (tmp_path / "run" / one.RESULT).read_bytes() == written


class TestCommand:
    @pytest.fixture
    def arguments(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        made = experiment(conditions=(Condition("plain"), Condition("other", {"update.lr": 1e-5})))
        monkeypatch.setattr(command, "EXPERIMENTS", {"small": made, "late": replace(made, name="late", slow=True)})
        return ["--study", str(tmp_path / "study"), "--evidence", str(tmp_path / "docs" / "evidence"), "--seeds", "1"]

    def test_from_a_process_to_the_report(
        self, tmp_path: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]
    ) -> None:
        evidence = tmp_path / "docs" / "evidence"
        other = list(runs_of(command.EXPERIMENTS["small"], 1))[1]
        Records(evidence).add(other, record(0.5))  # done already
        assert command.main([*arguments, "small"]) == 0
        shown = capfd.readouterr().out
        assert "2 runs, 1 of them done" in shown
        assert "1/1 small: plain, seed 0: success 0." in shown
        line = (evidence / "runs.jsonl").read_text().splitlines()[1]
        found = json.loads(line)
        assert (found["condition"], len(found["curve"]), found["tokens"]["sampled"] > 0) == ("plain", 3, True)
        assert str(tmp_path) not in line
        run = tmp_path / "study" / "runs" / f"{found['hash']}-0"
        assert run.is_dir()
        assert not (run / "checkpoints").exists()
        command.main([*arguments, "--list"])
        listed = capfd.readouterr().out.splitlines()
        assert listed[1].split()[:5] == ["small", "2", "2", "0", "0"]
        assert "slow" in listed[2]
        assert command.main([*arguments, "--report"]) == 0
        assert (evidence / "small.png").stat().st_size > 5000
        assert "| other | `update.lr: 1e-05` | 1 | 0.10 | 0.50 |" in (tmp_path / "docs" / "evidence.md").read_text()

    def test_a_run_that_fails_makes_the_study_fail_and_is_not_recorded(
        self, tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(command, "Runner", lambda *given: SimpleNamespace(folder=tmp_path, start=None))
        fakes = Fakes({"other": 2})
        monkeypatch.setattr(command, "work", lambda runs, runner, *rest: work(runs, fakes, *rest, pause=0.0))
        assert command.main([*arguments, "small"]) == 1
        shown = capsys.readouterr().out
        assert "small: other, seed 0: FAILED: it broke" in shown
        assert "small: plain, seed 0: success 0.50 sampled, 0.60 greedy" in shown
        rows = (tmp_path / "docs" / "evidence" / "runs.jsonl").read_text().splitlines()
        assert [json.loads(row)["condition"] for row in rows] == ["plain"]

    def test_mistakes_are_one_sentence(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main([*arguments, "smal"]) == 2
        assert capsys.readouterr().err == "error: there is no experiment 'smal'; did you mean 'small'?\n"
        assert command.main([*arguments, "--workers", "0"]) == 2
        assert "--workers 0: must be at least 1" in capsys.readouterr().err
        assert command.main([*arguments, "--forget"]) == 2
        assert "name the experiments" in capsys.readouterr().err

    def test_slow_ones_run_only_when_named(self, arguments: list[str]) -> None:
        assert [each.name for each in command.choose([])] == ["small"]
        assert [each.name for each in command.choose(["late"])] == ["late"]
        assert [each.name for each in command.choose([], everything=True)] == ["small", "late"]

    def test_a_stopped_study_leaves_a_run_that_goes_on(self, tmp_path: Path) -> None:
        (run, *_) = runs_of(experiment(base={**RELAY, "iterations": 400}), 1)
        job = Runner(tmp_path)(run)
        try:
            wait_for(tmp_path / "runs" / run.folder / "checkpoints" / "000002", job)
            job.stop()
            while job.poll() is None:
                wait()
            assert job.poll() == 143
        finally:
            job.kill()
        assert one.read_result(tmp_path / "runs" / run.folder) is None
        assert (tmp_path / "runs" / run.folder / "checkpoints").is_dir()


def wait_for(path: Path, job: Any) -> None:
    while not path.exists():
        assert job.poll() is None, job.complaint()
        wait()


def wait() -> None:
    time.sleep(0.05)
