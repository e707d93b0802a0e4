"""What Python people use: opening a run, its tables and episodes, training, and asking the team."""

import asyncio
import json
import math
import signal
import subprocess
import sys
import threading

import pandas
import pytest
import yaml

import marft
from marft.run.directory import RunDirectory, read_jsonl
from marft.run.progress import Silent

DUO = {
    "name": "duo",
    "iterations": 2,
    "threads": 1,
    "model": {"name": "tiny"},
    "lora": {"r": 2},
    "team": {"agents": [{"name": "scout"}, {"name": "speaker"}]},
    "environment": {"name": "relay", "symbols": ["a", "b"]},
    "rollout": {"tasks": 2, "samples": 2, "sampling": {"max_tokens": 3}},
    "critic": {"kind": "none"},
    "credit": {"baseline": "group"},
    "evaluation": {"tasks": 2, "samples": 2, "retention": False},
    "run": {"trackers": []},
}
QUICK = {**DUO, "iterations": 1, "evaluation": {"tasks": 0}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of two iterations, for tests that only read it."""
    return marft.train(DUO, run=tmp_path_factory.mktemp("api") / "run", watcher=Silent())


def interval(mean):
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}


@pytest.fixture
def written(tmp_path):
    """A run that nothing trained: what stands in its files is known."""
    run = RunDirectory(tmp_path / "old run")
    run.path.mkdir()
    config = {"name": "<b>old</b>", "iterations": 9, "key_of_old": 1, "team": {"agents": [{"name": "ann"}]}}
    run.config_file.write_text(yaml.safe_dump(config))
    rows = [
        {"iteration": 0, "success": 0.25, "failures": {"ann: broken": 2}, "update": {"ann": {"kl": 0.5}}},
        {"iteration": 1, "success": 0.5, "update": {"ann": {"kl": None}}, "nonfinite": {"update/ann/kl": "inf"}},
    ]
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 2, "succ')
    play = {"success": interval(0.5), "tokens": 7.0, "failed": 1, "kinds": {"easy": interval(0.75)}}
    report = {
        "tasks": 2, "samples": 3, "sampled": {**play, "pass_at": {"1": 0.5}}, "greedy": play,
        "influence": {"ann": {"swapped": interval(0.2), "drop": 0.3, "loss": interval(0.3)}},
        "retention": {"ann": {"kl": 0.01}},
    }  # fmt: skip
    run.write_evaluation(4, report)
    run.write_evaluation(
        0, {"tasks": 2, "samples": 3, "sampled": play, "influence": {"ann": {"swapped": interval(0), "drop": 0.1}}}
    )
    for name, wins in (("train-000004", [1, 0, 1]), ("evaluation-000004", [0, 1, 1, 0, 1]), ("failed", [1])):
        run.episodes.mkdir(exist_ok=True)
        (run.episodes / f"{name}.jsonl").write_text("".join(json.dumps(record(win)) + "\n" for win in wins))
    return marft.open_run(run.path)


def record(win):
    return {
        "task": {"id": "t1", "kind": "easy", "prompt": "x\u2028y"}, "group": "g", "sample": 0, "reward": 2.0 * win,
        "success": float(win), "terminated": True, "truncated": False,
        "error": None if win else {"who": "ann", "reason": "broke"}, "answer": "", "metrics": {"success": win},
        "actions": [{"agent": "ann", "text": "said", "tokens": 3}, {"agent": "bob", "text": "last", "tokens": 4}],
    }  # fmt: skip


class TestTables:
    def test_metrics_have_a_row_an_iteration_and_a_column_a_number(self, written):
        found = written.metrics
        assert isinstance(found, pandas.DataFrame)
        assert (found.index.name, list(found.index)) == ("iteration", [0, 1])  # the third row is torn
        assert set(found.columns) == {"success", "update/ann/kl"}
        assert found.loc[0, "update/ann/kl"] == 0.5
        assert math.isinf(found.loc[1, "update/ann/kl"])

    def test_evaluations_have_a_row_an_iteration_and_kind_of_play(self, written):
        found = written.evaluations
        assert list(found.index) == [(0, "sampled"), (4, "sampled"), (4, "greedy")]
        sampled, greedy = found.loc[(4, "sampled")], found.loc[(4, "greedy")]
        assert [sampled[f"success{end}"] for end in ("", "/low", "/high")] == pytest.approx([0.5, 0.4, 0.6])
        assert (sampled["kinds/easy"], sampled["pass_at/1"], sampled["failed"]) == (0.75, 0.5, 1)
        assert (sampled["influence/ann"], sampled["influence/ann/high"]) == pytest.approx((0.3, 0.4))
        assert (sampled["swapped/ann"], sampled["retention/ann/kl"]) == (0.2, 0.01)
        assert math.isnan(greedy["influence/ann"])
        assert (sampled["samples"], greedy["samples"], greedy["tasks"]) == (3, 1, 2)
        assert found.loc[(0, "sampled"), "influence/ann"] == 0.1  # as older versions wrote it

    def test_of_a_run_that_has_nothing_yet(self, tmp_path):
        (tmp_path / "config.yaml").write_text("name: new\n")
        run = marft.open_run(tmp_path)
        assert (len(run.metrics), len(run.evaluations), len(run.episodes), run.checkpoints) == (0, 0, 0, [])
        assert list(run.episodes.frame()["reward"]) == []
        assert "iterations 0/" in repr(run)

    def test_of_a_run_as_it_was_trained(self, trained):
        assert list(trained.metrics.index) == [0, 1]
        wins = trained.episodes.where("train", 1).frame()["success"]
        assert trained.metrics.loc[1, "success"] == pytest.approx(wins.mean())
        played = trained.episodes.where("sampled", 2).frame()
        assert trained.evaluations.loc[(2, "sampled"), "success"] == pytest.approx(played["success"].mean())
        assert list(trained.evaluations.index.get_level_values("play").unique()) == ["sampled", "greedy"]
        assert trained.checkpoints[-1] == 2


class TestEpisodes:
    def test_stand_in_the_order_in_which_they_were_played(self, written):
        found = [(each["iteration"], each["split"]) for each in written.episodes]
        assert found == [(4, "greedy")] * 2 + [(4, "sampled")] * 3 + [(4, "train")] * 3  # `failed` is of no iteration

    def test_are_a_sequence(self, written):
        episodes = written.episodes
        assert len(episodes) == 8
        assert episodes[0]["id"] == "evaluation-000004:0"
        assert episodes[-1]["id"] == episodes[7]["id"] == "train-000004:2"
        assert [each["id"] for each in episodes[4:6]] == ["evaluation-000004:4", "train-000004:0"]
        assert episodes[7]["task"]["prompt"] == "x\u2028y"
        for beyond in (8, -9):
            with pytest.raises(IndexError):
                episodes[beyond]

    def test_can_be_chosen(self, written):
        def wins(**chosen):
            return [each["success"] for each in written.episodes.where(**chosen)]

        assert wins(split="greedy") == [0, 1]
        assert wins(split="sampled", iteration=4) == [1, 0, 1]
        assert wins(split="train") == [1, 0, 1]
        assert wins(iteration=3) == []
        assert len(written.episodes.where("greedy").where("sampled")) == 0
        assert written.episodes.where("sampled")[1]["id"] == "evaluation-000004:3"
        with pytest.raises(marft.MarftError, match=r"split 'sample'.*did you mean 'sampled'"):
            written.episodes.where("sample")

    def test_as_a_table(self, written):
        table = written.episodes.frame()
        assert len(table) == 8
        row = table.set_index("id").loc["train-000004:1"]
        assert (row["success"], row["reward"], row["failed"]) == (0.0, 0.0, "ann: broke")
        assert (row["task"], row["replies"], row["tokens"], row["last"]) == ("t1", 2, 7, "last")
        assert row["metrics/success"] == 0

    def test_one_is_read_without_the_others(self, written):
        file = written.path / "episodes" / "train-000004.jsonl"
        good = json.dumps(record(1))
        file.write_text(f"{good}\nno json\n{good}\n")
        assert written.episodes[-1]["success"] == 1
        with pytest.raises(marft.MarftError, match="line 2 is not valid JSON"):
            written.episodes[-2]

    def test_of_an_evaluation_whose_report_is_not_written_yet_are_there_too(self, written):
        (written.path / "evaluations" / "000004.json").unlink()
        assert [each["split"] for each in written.episodes] == ["greedy"] + ["sampled"] * 4 + ["train"] * 3  # one task
        assert len(written.episodes.where("sampled")) == 4


class TestARun:
    def test_that_is_not_there_names_the_nearest(self, trained):
        with pytest.raises(marft.MarftError, match="no such run; did you mean"):
            marft.open_run(trained.path.parent / "ru")

    def test_reads_an_old_config_as_it_is(self, written):
        assert written.config["key_of_old"] == 1

    def test_shows_itself(self, written):
        assert repr(written) == (
            f"Run({str(written.path)!r}: name <b>old</b>, agents ann, iterations 2/9, success 0.50, checkpoints none)"
        )
        html = written._repr_html_()
        assert "<b>" not in html
        assert "&lt;b&gt;old" in html

    @pytest.mark.parametrize(
        "team", [None, [], "duo", {}, {"agents": None}, {"agents": 3}, {"agents": ["ann", {"profile": "x"}, None]}]
    )
    def test_shows_itself_also_where_the_config_names_no_agents(self, tmp_path, team):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump({"team": team}))
        run = marft.open_run(tmp_path)
        assert "agents unknown, iterations 0/?" in repr(run)
        assert "<td>unknown</td>" in run._repr_html_()

    def test_what_is_damaged_is_one_sentence(self, written):
        report = written.path / "evaluations" / "000004.json"
        for text in ("[]", "{", "\xff"):
            report.write_bytes(text.encode("latin1"))
            with pytest.raises(marft.MarftError, match="evaluations"):
                _ = written.evaluations
        for row in ("[]", "{}", '{"iteration": null}'):
            (written.path / "metrics.jsonl").write_text(f'{{"iteration": 0}}\n{row}\n')
            for look in (repr, lambda run: run.metrics):
                with pytest.raises(marft.MarftError, match=r"metrics\.jsonl: row 2 .*damaged"):
                    look(written)

    def test_is_looked_at_without_torch(self, trained):
        code = (
            "import sys, marft\n"
            "heavy = {'torch', 'transformers', 'peft', 'pandas', 'matplotlib', 'starlette', 'numpy', 'IPython'}\n"
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
            "assert set(marft.__all__) <= set(dir(marft))\n"
            f"run = marft.open_run({str(trained.path)!r})\n"
            "print(run, run._repr_html_(), run.config, len(run.episodes), run.episodes[0], run.checkpoints)\n"
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
            "run.metrics, run.evaluations, run.episodes.frame()\n"
            "assert 'torch' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_public_says_what_it_is():
    assert all(getattr(marft, name).__doc__ for name in marft.__all__)
    public = [marft.open_run, marft.train, marft.load_config]
    assert all("Raises" in each.__doc__ for each in public)


class TestTraining:
    @pytest.mark.parametrize("kind", ["path", "mapping", "config"])
    def test_takes_a_config_in_any_form(self, kind, tmp_path):
        (tmp_path / "quick.yaml").write_text(yaml.safe_dump(QUICK))
        given = {
            "path": tmp_path / "quick.yaml",
            "mapping": QUICK,
            "config": marft.load_config(tmp_path / "quick.yaml"),
        }[kind]
        overrides = ["update.lr=1e-3", "name=other"] if kind == "path" else {"update.lr": 0.001, "name": "other"}
        run = marft.train(given, overrides, run=tmp_path / "run", watcher=Silent())
        assert run == marft.open_run(tmp_path / "run")
        assert (run.config["update"]["lr"], run.config["name"], len(run.metrics)) == (0.001, "other", 1)
        assert QUICK["name"] == "duo"  # what was given is left as it was

    def test_finds_what_is_wrong_before_a_folder_is_made(self, tmp_path):
        def said(*given, **settings):
            with pytest.raises(marft.MarftError) as error:
                marft.train(*given, run=tmp_path / "run", **settings)
            return str(error.value)

        assert "unknown key 'iteration'" in said({**QUICK, "iteration": 1})
        assert "did you mean 'lr'" in said(QUICK, {"update.lrr": 1})
        assert "give a list" in said(QUICK, "update.lr=1")
        assert "not a int" in said(3)
        assert "no such config file" in said(tmp_path / "gone.yaml")
        assert "config: give a config" in said()
        assert "on_iteration: must be a function" in said(QUICK, on_iteration=3)
        assert "not the class" in said(QUICK, watcher=Silent)
        assert "has no method 'start'" in said(QUICK, watcher=object())
        assert "there is no such run" in said(QUICK, resume=True)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(marft.MarftError, match="name the run"):
            marft.train(QUICK, resume=True)

    def test_goes_on_with_a_run_and_equals_one_that_was_never_stopped(self, tmp_path, trained):
        part = marft.train(DUO, {"iterations": 1}, run=tmp_path / "part", watcher=Silent())
        whole = marft.train(run=part.path, resume=True, overrides={"iterations": 2}, watcher=Silent())
        assert untimed(whole) == untimed(trained)
        with pytest.raises(marft.MarftError, match="'seed' is not what the run was started with"):
            marft.train({**DUO, "seed": 5}, run=part.path, resume=True)

    def test_in_a_running_loop_and_in_a_thread_gives_the_same(self, tmp_path, trained):
        async def cell():
            await asyncio.sleep(0)
            return marft.train(DUO, run=tmp_path / "loop", watcher=Silent())

        found = []
        there = {"run": tmp_path / "thread", "watcher": Silent()}
        thread = threading.Thread(target=lambda: found.append(marft.train(DUO, **there)))
        thread.start()
        thread.join()
        found.append(asyncio.run(cell()))
        assert [untimed(each) for each in found] == [untimed(trained)] * 2

    def test_an_interrupt_stops_after_the_iteration_also_in_a_running_loop(self, tmp_path):
        said = []

        class Impatient(Silent):
            def phase(self, name, done=None, total=None):
                if name == "playing" and done == 1:
                    signal.raise_signal(signal.SIGINT)

            def note(self, text):
                said.append(text)

        async def cell():
            return marft.train({**QUICK, "iterations": 5}, run=tmp_path / "run", watcher=Impatient())

        before = signal.getsignal(signal.SIGINT)
        run = asyncio.run(cell())
        assert signal.getsignal(signal.SIGINT) == before
        assert (len(run.metrics), run.checkpoints) == (1, [1])
        assert any(
            f"Stopped after 1 of 5 iterations; go on with marft.train(run={str(run.path)!r}" in each for each in said
        )


def untimed(run):
    """A run's rows without what a clock says."""
    timed = {"seconds", "share", "play_tokens_per_second", "update_tokens_per_second"}
    return [
        {key: value for key, value in row.items() if key not in timed} for row in read_jsonl(run.path / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def team(trained):
    return trained.team()


class TestAsking:
    def test_a_trained_team_answers(self, team):
        answer = team.ask("Say a.")
        assert [agent for agent, _ in answer.messages] == ["scout", "speaker"]
        assert answer.text == answer.messages[-1][1] == answer.episode.actions[-1].text
        assert answer.episode.task.prompt == "Say a."
        assert team.ask("Say a.") == answer  # greedy
        assert str(answer).startswith("scout: ")

    def test_sampled_answers_differ_by_their_number(self, team):
        drawn = [team.ask("Say a.", greedy=False, number=number).messages for number in range(4)]
        assert len(set(drawn)) > 1
        assert team.ask("Say a.", greedy=False, number=2).messages == drawn[2]

    def test_turns_are_played_as_asked(self, team):
        assert [each.turn for each in team.ask("Say a.", turns=2).episode.actions] == [0, 0, 1, 1]

    def test_in_a_running_loop(self, team):
        async def cell():
            return team.ask("Say a.")

        assert asyncio.run(cell()) == team.ask("Say a.")

    def test_what_cannot_be_asked_is_one_sentence(self, team):
        with pytest.raises(marft.MarftError, match=r"scout could not answer: .*exceed the context"):
            team.ask("long " * 400)
        with pytest.raises(marft.MarftError, match="a question is a text, not a int"):
            team.ask(3)

    def test_a_checkpoint_by_name_or_number(self, trained):
        assert trained.team(1).config.name == "duo"
        with pytest.raises(marft.MarftError, match="no checkpoint '7'"):
            trained.team(7)
