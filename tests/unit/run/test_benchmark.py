"""Benchmarks by name: which environment they are, what a team brings along, and what can be wrong with a name."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from builders import World, config_of, team_of
from marft.config import EnvironmentConfig, EvaluationConfig
from marft.run import benchmark
from marft.run.benchmark import (
    Benchmark,
    Terms,
    Worlds,
    benchmark_environment,
    carried,
    read_benchmarks,
    reward_in,
    team_in,
    teams_on,
)
from marft.run.progress import Silent
from marft.types import MarftError

RELAY = EnvironmentConfig(name="relay")
SUMS = EnvironmentConfig(name="reasoning", dataset="chain_sum", answer="last_number", answerer="bob", heldout_size=4)


def test_names_and_paths_belong_together():
    assert read_benchmarks([], []) == ()
    assert read_benchmarks(["gsm8k"], ["a=b.jsonl"]) == (Benchmark("gsm8k", "a=b.jsonl"),)
    assert read_benchmarks(["gsm8k"], ["gsm8k=a.jsonl"]) == (Benchmark("gsm8k", "a.jsonl"),)
    assert read_benchmarks(["gsm8k", "math500"], ["math500=a.jsonl"]) == (
        Benchmark("gsm8k"),
        Benchmark("math500", "a.jsonl"),
    )


@pytest.mark.parametrize(
    ("names", "paths", "words"),
    [
        (["gsm8k", "gsm8k"], [], ["--on gsm8k", "twice"]),
        ([], ["a.jsonl"], ["--path a.jsonl", "--on"]),
        (["gsm8k", "math500"], ["a.jsonl"], ["--path gsm8k=a.jsonl"]),
        (["gsm8k"], ["a.jsonl", "b.jsonl"], ["--path b.jsonl", "already has the file a.jsonl"]),
    ],
)
def test_names_and_paths_that_do_not_fit(names, paths, words):
    with pytest.raises(MarftError) as error:
        read_benchmarks(names, paths)
    for word in words:
        assert word in str(error.value)


def found_for(name, own, path=None):
    return carried(benchmark_environment(Benchmark(name, path), own), own)


def test_a_team_brings_its_answerer_and_to_its_own_kind_of_world_its_way_to_answer():
    own = EnvironmentConfig(name="question_answer", path="x", answerer="bob", answer="solution", reply="tag")
    assert found_for("reasoning:products", own).parameters == {"dataset": "products", "answerer": "bob"}
    found = found_for("reasoning:products", SUMS)
    assert found.parameters == {"dataset": "products", "answerer": "bob", "answer": "last_number"}
    assert found_for("reasoning:products", RELAY).parameters == {"dataset": "products"}
    voting = EnvironmentConfig(
        name="math", benchmark="gsm8k", decide="vote", instruction="Box it.", attempts=3, feedback="verdict", kind="x"
    )
    assert found_for("math500", voting, "m.jsonl").parameters == {  # its feedback stays behind, since it is an oracle
        "benchmark": "math500", "decide": "vote", "instruction": "Box it.", "attempts": 3, "heldout_path": "m.jsonl",
    }  # fmt: skip
    found = found_for("humaneval", voting, "h.jsonl.gz")  # where nobody can vote
    assert found.parameters == {"benchmark": "humaneval", "heldout_path": "h.jsonl.gz"}


def test_a_teams_own_benchmark_is_played_as_the_team_knows_it():
    assert benchmark_environment(Benchmark("reasoning:chain_sum"), SUMS) is SUMS
    own = EnvironmentConfig(
        name="math", benchmark="gsm8k", path="train.jsonl", heldout_path="a.jsonl", feedback="verdict"
    )
    assert benchmark_environment(Benchmark("gsm8k"), own) is own
    found = benchmark_environment(Benchmark("gsm8k", "b.jsonl"), own)
    assert found.parameters == {**own.parameters, "heldout_path": "b.jsonl"}


def test_what_belongs_to_one_team_is_replaced_by_what_belongs_to_the_other():
    other = EnvironmentConfig(name="reasoning", dataset="products", answer="tag", answerer="dan")
    assert carried(SUMS, other).parameters == {**SUMS.parameters, "answer": "tag", "answerer": "dan"}
    assert "answerer" not in carried(SUMS, RELAY).parameters
    assert carried(SUMS, SUMS).parameters == SUMS.parameters
    assert carried(RELAY, SUMS) == RELAY  # in which everybody's part is fixed
    voting = EnvironmentConfig(name="question_answer", path="x", decide="vote")
    assert carried(voting, SUMS).parameters == {"path": "x", "answerer": "bob"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chain_sum", ["did you mean 'reasoning:chain_sum'?"]),
        ("reasonin:chain_sum", ["did you mean 'reasoning:chain_sum'?"]),
        ("gsm", ["did you mean 'gsm8k'?"]),
        ("GSM8K", ["did you mean 'gsm8k'?"]),
        ("quux", ["gsm8k", "math500", "aime24", "humaneval", "reasoning:SET"]),
    ],
)
def test_an_unknown_name_is_met_with_a_suggestion(name, words):
    with pytest.raises(MarftError, match=f"--on {name}: no such benchmark") as error:
        benchmark_environment(Benchmark(name), RELAY)
    for word in words:
        assert word in str(error.value)


def test_made_tasks_need_no_file():
    with pytest.raises(MarftError, match=r"--path a\.jsonl: 'reasoning:products' makes its tasks"):
        benchmark_environment(Benchmark("reasoning:products", "a.jsonl"), RELAY)


def test_an_unknown_set_is_named_with_the_option():
    with pytest.raises(MarftError, match=r"--on reasoning:chain_sm: .*did you mean 'chain_sum'\?"):
        teams_on(team_of("ann"), Terms((Benchmark("reasoning:chain_sm"),)), Worlds(Silent()), "team.yaml")


def test_where_the_tasks_cannot_be_had_a_local_file_is_suggested(monkeypatch):
    def unreachable(config, source):
        raise MarftError(f"{source}: no network")

    monkeypatch.setattr(benchmark, "build_environment", unreachable)
    for path, words in ((None, "--on gsm8k: no network; --path FILE"), ("a.jsonl", "--on gsm8k: no network$")):
        with pytest.raises(MarftError, match=words):
            teams_on(team_of("ann"), Terms((Benchmark("gsm8k", path),)), Worlds(Silent()), "team.yaml")


def test_how_much_is_played():
    own = EvaluationConfig(tasks=5, samples=3, influence=False)
    world = SimpleNamespace(size=lambda split: 40)
    on = (Benchmark("x"),)
    assert Terms().settings(own, world) == own
    assert Terms(limit=7, samples=2, influence=True).settings(own, world) == EvaluationConfig(
        tasks=7, samples=2, influence=True
    )
    assert Terms(on).settings(own, world).tasks == 40  # a benchmark is played whole
    assert Terms(on, limit=7).settings(own, world).tasks == 7
    assert Terms(on).settings(own, SimpleNamespace(size=lambda split: None)).tasks == 5
    assert Terms(influence=False).settings(EvaluationConfig(), world).influence is False


@pytest.mark.parametrize(("terms", "word"), [({"limit": 0}, "--limit 0"), ({"samples": -1}, "--samples -1")])
def test_too_little_to_play(terms, word):
    with pytest.raises(MarftError, match=word):
        Terms(**terms)


def test_a_run_that_was_never_evaluated_says_what_to_add():
    with pytest.raises(MarftError, match=r"team\.yaml: evaluation\.tasks is 0, .*--limit"):
        teams_on(team_of("ann", evaluation={"tasks": 0}), Terms(), Worlds(Silent()), "team.yaml")


def test_a_world_is_loaded_once_and_said_to_be():
    heard = []
    watcher = SimpleNamespace(phase=heard.append)
    worlds = Worlds(watcher)
    one = worlds.environment(SUMS, None, "a")
    assert worlds.environment(EnvironmentConfig(**SUMS.model_dump()), None, "b") is one
    assert worlds.environment(SUMS, "math:hypot", "b") is not one  # but is not loaded anew
    assert worlds.environment(carried(SUMS, RELAY), None, "c") is not one
    assert heard == ["loading environment reasoning"] * 2


def test_a_runs_reward_pays_in_its_own_world_alone():
    own = EnvironmentConfig(name="math", benchmark="gsm8k", path="train.jsonl", decide=None, answerer="bob")
    config = config_of("ann", "bob", environment=own.model_dump(), reward="mine:pay")

    def paid_on(name, path=None):
        return reward_in(found_for(name, own, path), config)

    assert reward_in(own, config) == paid_on("gsm8k") == paid_on("gsm8k", "other.jsonl") == "mine:pay"
    assert paid_on("math500") is paid_on("reasoning:chain_sum") is None
    assert reward_in(carried(SUMS, own), config) is None
    assert reward_in(own, config.model_copy(update={"reward": None})) is None


def test_another_world_brings_its_own_tools_and_takes_the_old_ones_away():
    def world(**tools):
        found = World()
        found.tools = tools
        return found

    team = team_of("ann", world=world(search="old search", map="old map"))
    seat = replace(team.seats["ann"], tools={"calculator": "calculator", "search": "old search", "map": "old map"})
    team = replace(team, seats={"ann": seat})
    there = world(search="new search", oracle="of no agent")
    moved = team_in(team, RELAY, there, EvaluationConfig(tasks=3))
    assert moved.seats["ann"].tools == {"calculator": "calculator", "search": "new search"}
    assert moved.game.environment is there
    assert (moved.config.environment, moved.config.evaluation.tasks) == (RELAY, 3)
    assert team.seats["ann"].tools["search"] == "old search"
