"""One run on several benchmarks, and several runs side by side."""

from dataclasses import replace

import pytest
import yaml

from builders import episode, team_of, tiny_base
from marft.config import load_config
from marft.generate.scripted import Scripted
from marft.models.tiny import PRINTABLE
from marft.run import compare
from marft.run.benchmark import Benchmark, Terms
from marft.run.compare import compare_runs, comparison, evaluate_run
from marft.run.evaluate import Evaluation, summarise
from marft.run.progress import Silent
from marft.team import build_team
from marft.types import Failure, MarftError, Task

SUM = {
    "name": "reasoning", "dataset": "chain_sum", "answer": "last_number", "heldout_size": 8,
    "parameters": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
}  # fmt: skip


class Heard(Silent):
    """Remembers the phases it was told of."""

    def __init__(self):
        self.phases = []

    def phase(self, name, done=None, total=None):
        self.phases.append(name)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Writes configs of teams whose last agent always says the same, and opens them as if they were runs."""
    base = tiny_base(PRINTABLE, context=600)
    said = {}

    def write(name, says, environment=SUM, agents=("ann", "bob"), **sections):
        path = tmp_path / f"{name}.yaml"
        raw = {
            "team": {"agents": [{"name": each} for each in agents]},
            "environment": environment,
            "model": {"name": "tiny"},
            "evaluation": {"tasks": 6, "samples": 2},
            **sections,
        }
        path.write_text(yaml.safe_dump(raw))
        said[str(path)] = says
        return str(path)

    def open_team(target, name=None, overrides=()):
        team = build_team(load_config(target, overrides), target, base=base)
        generator = Scripted(base.chat, lambda asked: said[target])
        seats = {each: replace(seat, generator=generator) for each, seat in team.seats.items()}
        return replace(team, seats=seats), target

    monkeypatch.setattr(compare, "open_team", open_team)
    return write


def answers(team_says, tasks):
    """How often a team that always says the same is right, by reasoning-gym's own answers."""
    return sum(task.data["entry"]["answer"] == team_says for task in tasks) / len(tasks)


def heldout(environment, count):
    world = team_of("ann", environment=environment, base=tiny_base(PRINTABLE)).game.environment
    return [world.task("heldout", index) for index in range(min(count, world.size("heldout")))]


def test_runs_play_the_first_ones_tasks_with_its_seed_and_are_paired(runs, monkeypatch):
    tasks = heldout(SUM, 6)
    one, other = (task.data["entry"]["answer"] for task in tasks[:2])
    assert one != other
    a = runs("a", one, seed=3)
    b = runs("b", other, environment={**SUM, "dataset": "products"}, seed=4, evaluation={"tasks": 2, "samples": 5})
    played = []
    play = compare.held_out

    def held_out(team, watcher, about=""):
        found = play(team, watcher, about)
        played.append((team, found))
        return found

    monkeypatch.setattr(compare, "held_out", held_out)
    heard = Heard()
    report = compare_runs([a, b], None, (), Terms(), heard)[""]
    assert (report["first"], report["tasks"], report["samples"]) == (a, 6, 2)
    wins = {a: answers(one, tasks), b: answers(other, tasks)}
    for name, each in report["runs"].items():
        assert each["sampled"]["success"]["mean"] == each["greedy"]["success"]["mean"] == pytest.approx(wins[name])
        assert "influence" not in each
        assert "retention" not in each
    gain = report["difference"][b]["sampled"]
    assert gain["success"]["mean"] == pytest.approx(wins[b] - wins[a])
    assert gain["kinds"].keys() == {"chain_sum"}
    assert gain["kinds"]["chain_sum"] == gain["success"]
    assert [team.config.seed for team, _ in played] == [3, 3]
    assert f"evaluating, sampled (2 of 2: {b})" in heard.phases


def test_each_run_keeps_its_own_answerer(runs):
    a = runs("a", "7", environment={**SUM, "answerer": "ann"})
    b = runs("b", "7", agents=("cleo", "dan"), environment={**SUM, "answerer": "cleo"})
    c = runs("c", "7", agents=("ed",))
    report = compare_runs([a, b, c], None, (), Terms(limit=3, samples=1), Silent())[""]
    assert report["difference"].keys() == {b, c}
    assert all(each["sampled"]["failed"] == 0 for each in report["runs"].values())


def test_runs_meet_on_benchmarks_and_influence_is_measured_if_asked_for(runs):
    a, b = runs("a", "7"), runs("b", "8")
    terms = Terms((Benchmark("reasoning:chain_sum"), Benchmark("reasoning:products")), 2, 1, influence=True)
    found = compare_runs([a, b], None, (), terms, Silent())
    assert found.keys() == {"reasoning:chain_sum", "reasoning:products"}
    for report in found.values():
        assert report["tasks"] == 2
        assert report["runs"][a]["influence"].keys() == {"ann"}


def test_what_is_wrong_with_the_last_run_is_said_before_the_first_is_played(runs, monkeypatch):
    monkeypatch.setattr(compare, "held_out", lambda *_: pytest.fail("nothing may be played"))
    a = runs("a", "7")
    narrow = runs("narrow", "7", model={"name": "tiny", "context": 16})
    short = tiny_base(PRINTABLE, context=16)
    opened = compare.open_team
    monkeypatch.setattr(
        compare, "open_team",
        lambda target, *given: opened(target, *given) if target == a else (
            build_team(load_config(narrow), narrow, base=short), narrow),
    )  # fmt: skip
    with pytest.raises(MarftError, match=r"narrow\.yaml: model\.context"):
        compare_runs([a, narrow], None, (), Terms(), Silent())
    with pytest.raises(MarftError, match="named twice"):
        compare_runs([a, a], None, (), Terms(), Silent())


def test_one_run_on_several_benchmarks(runs):
    team, _ = compare.open_team(runs("a", "7"))
    heard = Heard()
    terms = Terms((Benchmark("reasoning:chain_sum"), Benchmark("reasoning:products")), 3, 1, influence=False)
    found = evaluate_run(team, terms, "a.yaml", heard)
    assert found.keys() == {"reasoning:chain_sum", "reasoning:products"}
    tasks = heldout(SUM, 3)  # the team's own chain_sum, read as the team was taught to answer
    mean = found["reasoning:chain_sum"]["greedy"]["success"]["mean"]
    assert mean == pytest.approx(answers("7", tasks))
    assert "loading environment reasoning" in heard.phases
    assert "evaluating, greedy (reasoning:products)" in heard.phases


def paid_three(task, messages, outcome):
    return 3.0


def paid_by_name(task, messages, outcome):
    return {"bob": len(messages["bob"]) + 0.5}


def rewards(report):
    return {part: report[part]["reward"]["mean"] for part in ("sampled", "greedy")}


def test_a_run_is_paid_by_its_own_reward_alone_or_in_a_comparison(runs):
    a = runs("a", "7", reward=f"{__name__}:paid_three")
    b = runs("b", "777", reward=f"{__name__}:paid_by_name")
    wins = answers("7", heldout(SUM, 6))
    c = runs("c", "7", agents=("ed",))  # whom no reward of another team names
    terms = Terms(influence=False)
    found = compare_runs([a, b, c], None, (), terms, Silent())[""]["runs"]
    assert {name: rewards(each) for name, each in found.items()} == {
        name: {"sampled": pytest.approx(paid), "greedy": pytest.approx(paid)}
        for name, paid in {a: 3.0, b: 3.5, c: wins}.items()
    }
    assert all(each["sampled"]["failed"] == 0 for each in found.values())
    for name in (a, b, c):
        team, _ = compare.open_team(name)
        assert rewards(evaluate_run(team, terms, name, Silent())[""]) == rewards(found[name])


def test_elsewhere_the_worlds_own_reward_is_shown(runs):
    """A run of sums on sums (as its own benchmark) and on products, alone and beside a run of products."""
    products = {**SUM, "dataset": "products"}
    a = runs("a", "7", reward=f"{__name__}:paid_three")
    b = runs("b", "7", environment=products)
    on = Terms((Benchmark("reasoning:chain_sum"), Benchmark("reasoning:products")), 3, 1, influence=False)
    alone = evaluate_run(compare.open_team(a)[0], on, a, Silent())
    together = compare_runs([a, b], None, (), on, Silent())
    for found in (alone, {name: each["runs"][a] for name, each in together.items()}):
        assert rewards(found["reasoning:chain_sum"]) == {"sampled": 3.0, "greedy": 3.0}
        assert rewards(found["reasoning:products"])["greedy"] <= 1.0
    asked = compare_runs([b, a], None, (), Terms(limit=3, samples=1), Silent())[""]["runs"]
    assert max(*rewards(asked[a]).values(), *rewards(asked[b]).values()) <= 1.0  # b's world is not a's


def test_the_difference_is_of_task_means_by_kind_and_failures_count():
    """x: 0 and 1 of two samples become 1 and 1 (+.5); y: 1 and 1 become a failure and 1 (-.5); so 0 in all."""

    def played(wins):
        return tuple(
            episode(metrics={"success": float(win or 0)}, group=name, task=Task(name, "?", kind), sample=sample,
                    error=Failure("ann", "gone") if win is None else None)
            for (name, kind), row in zip((("x", "easy"), ("y", "hard")), wins, strict=True)
            for sample, win in enumerate(row)
        )  # fmt: skip

    def evaluation(sampled, greedy, blind=()):
        parts = {"sampled": played(sampled), "greedy": played(greedy), "no_verdict": blind and played(blind)}
        report = {"tasks": 2, "samples": 2, **{part: summarise(each, 2) for part, each in parts.items() if each}}
        return Evaluation(report, parts["greedy"], parts["sampled"], tuple(parts["no_verdict"]))

    one = evaluation([[0, 1], [1, 1]], [[0, 0], [0, 0]], [[0, 0], [0, 0]])
    two = evaluation([[1, 1], [None, 1]], [[1, 1], [0, 0]])
    found = comparison({"one": one, "two": two})["difference"]["two"]
    assert found.keys() == {"sampled", "greedy"}  # only one of them was played without a verdict
    assert found["sampled"]["success"]["mean"] == 0
    assert {kind: each["mean"] for kind, each in found["sampled"]["kinds"].items()} == {"easy": 0.5, "hard": -0.5}
    assert found["greedy"]["success"]["mean"] == 0.5
    assert found["greedy"]["success"]["low"] < 0.5 < found["greedy"]["success"]["high"]
