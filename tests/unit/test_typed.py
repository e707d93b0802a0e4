"""What a user's type checker sees: their code passes `mypy --strict`, and their mistakes are found."""

import re
import textwrap

import pytest
from mypy import api

RIGHT = """
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import marft
from marft.environments.paid import Reward


@dataclass(frozen=True)
class State:
    task: marft.Task
    turn: int = 0


class Echo:
    name = "echo"

    def __init__(self, word: str = "a") -> None:
        self.word = word

    def size(self, split: str) -> int | None:
        return None

    def task(self, split: str, index: int) -> marft.Task:
        return marft.Task(f"{split}-{index}", f"Say {self.word}. {index}")

    def reset(self, task: marft.Task, agents: tuple[str, ...], seed: int) -> State:
        return State(task)

    def observe(self, state: State, agent: str) -> str:
        return ""

    def step(self, state: State, messages: Mapping[str, str]) -> marft.Outcome:
        right = float(any(self.word in text for text in messages.values()))
        return marft.Outcome(State(state.task, state.turn + 1), right, metrics={"success": right})


def pay(task: marft.Task, messages: Mapping[str, str], outcome: marft.Outcome) -> Mapping[str, float]:
    return {agent: float(len(text)) for agent, text in messages.items()}


world: marft.Environment = Echo()
reward: Reward = pay


def log(metrics: Mapping[str, float]) -> None:
    print(metrics["success"])


def watch(episode: marft.Episode) -> None:
    print(episode.reward, [action.text for action in episode.actions])


def main(folder: Path) -> float:
    config: marft.Config = marft.load_config(folder / "team.yaml", ["update.lr=0.001"])
    run: marft.Run = marft.train(
        config, {"iterations": 3}, run=folder / "run", on_iteration=log, on_episode=watch, watcher=marft.LiveFigure()
    )
    marft.train({"team": {"preset": "duo"}}, on_iteration=lambda metrics: print(metrics["reward"]))
    marft.train(run=folder / "run", resume=True)
    best: float = marft.open_run("runs/mine").metrics["success"].max()
    table = run.evaluations.loc[0]
    print(table.shape, run.config["name"], run.checkpoints[-1])
    last = run.episodes[-1]
    first_ten = run.episodes[:10]
    print(last["reward"], len(first_ten), run.episodes.where(split="sampled", iteration=3).frame().shape)
    answer: marft.Answer = run.team("best", ["device=cpu"]).ask("What is 2 + 2?", greedy=False)
    agent, text = answer.messages[0]
    print(agent.upper(), text.upper(), answer.text, answer.episode.success)
    return best
"""

MISTAKES = {
    'marft.train("team.yaml", iterations=3)': "call-arg",
    'marft.train("team.yaml", on_iteration=lambda: None)': "arg-type",
    "marft.open_run(3)": "arg-type",
    'marft.open_run("run").metric': "attr-defined",
    'marft.open_run("run").episodes.where(split="heldout")': "arg-type",
    'marft.open_run("run").episodes["last"]': "call-overload",
    'number: int = marft.open_run("run").team().ask("What?").text': "assignment",
    'marft.Outcome(None, "1")': "arg-type",
}
WRONG = "\n".join(["import marft", *MISTAKES]) + "\n"

# Of other packages only those are read whose types a user of marft's meets: the rest would take minutes
SETTINGS = """
[mypy]
strict = True
follow_imports = skip
[mypy-marft.*,pydantic.*,pandas.*]
follow_imports = normal
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What mypy says of a user's two files: [(file, code)]."""
    folder = tmp_path_factory.mktemp("consumer")
    for name, text in (("right.py", RIGHT), ("wrong.py", WRONG), ("mypy.ini", SETTINGS)):
        (folder / name).write_text(textwrap.dedent(text))
    files = [str(folder / name) for name in ("right.py", "wrong.py")]
    out, err, _ = api.run(["--config-file", str(folder / "mypy.ini"), "--cache-dir", str(folder / "cache"), *files])
    assert not err
    return out


def test_code_with_the_right_types_passes(found):
    assert "right.py" not in found, found


def test_each_mistake_is_found_for_what_it_is(found):
    for line, (mistake, code) in enumerate(MISTAKES.items(), start=2):
        assert re.search(rf"wrong\.py:{line}: error: .*\[{code}\]$", found, re.MULTILINE), f"{mistake}\n{found}"


def test_nothing_else_is_reported(found):
    assert set(re.findall(r"^(?:.*/)?(\w+)\.py:(\d+): error", found, re.MULTILINE)) == {
        ("wrong", str(line)) for line in range(2, 2 + len(MISTAKES))
    }
