"""The team, D as it was played, what was learnt from an action, and health: against answers worked out by hand."""

from pathlib import Path
from typing import Any

import pytest
from view_runs import CONFIG, action, episode, write_run

from marft.run.directory import RunDirectory
from marft.types import MarftError
from marft.view.library import RunView
from marft.view.team import organisation


def view(path: Path, **files: Any) -> RunView:
    return RunView(RunDirectory.open(write_run(path, **files)))


def edges(found: dict[str, Any]) -> list[tuple[str, str, int, float, bool]]:
    return [(each["from"], each["to"], each["count"], each["per_episode"], each["recall"]) for each in found["edges"]]


def test_agents_are_as_the_config_declares_them(tmp_path: Path) -> None:
    partner = {"name": "partner", "endpoint": {"url": "http://h/v1", "model": "big"}, "model": None}
    other = {"name": "other", "model": {"name": "qwen"}, "tools": []}
    config = {**CONFIG, "team": {**CONFIG["team"], "agents": [*CONFIG["team"]["agents"], partner, other]}}
    found = view(tmp_path / "run", config=config).team()
    assert found["dependency"] == "chain"
    assert found["agents"] == [
        {
            "name": "planner",
            "profile": "Plan.",
            "sees_task": True,
            "trainable": True,
            "adapter": "planner",
            "model": "tiny",
            "tools": ["calculator"],
        },
        {
            "name": "solver",
            "profile": "",
            "sees_task": False,
            "trainable": False,
            "adapter": "shared",
            "model": "tiny",
            "tools": [],
        },
        {
            "name": "partner",
            "profile": "",
            "sees_task": True,
            "trainable": False,
            "adapter": None,
            "model": "big at http://h/v1",
            "tools": [],
        },
        {
            "name": "other",
            "profile": "",
            "sees_task": True,
            "trainable": True,
            "adapter": "other",
            "model": "qwen",
            "tools": [],
        },
    ]


@pytest.mark.parametrize(
    ("team", "words"),
    [
        ({"dependency": "parallel"}, "parallel"),
        ({"dependency": {"debate": 2, "judge": "eve"}}, "debate of 2 rounds, judged by eve"),
        ({"dependency": {"debate": 1}}, "debate of 1 round"),
        ({"dependency": {"orchestrator": "lead", "calls": 3}}, "lead calls up to 3 members a turn"),
        ({"dependency": {"function": "my.module:d"}}, "function my.module:d"),
        (
            {
                "dependency": {
                    "edges": [["a", "b"], {"speaker": "b", "reader": "c", "when": "yes"}],
                    "recall": [["b", "a"]],
                }
            },
            "graph a → b, b → c if /yes/; a recalls b",
        ),
        ({"dependency": "chain", "workflow": "my.module:play"}, "workflow my.module:play"),
        ({}, ""),
    ],
)
def test_the_organisation_in_a_few_words(team: dict[str, Any], words: str) -> None:
    assert organisation({"team": team}) == words


def test_a_debate_that_recalls_is_counted_as_it_was_played(tmp_path: Path) -> None:
    """Two debaters, two rounds, a judge, two turns: a hears in turn 1 what the judge said in turn 0."""
    actions = []
    for turn in (0, 1):
        recall = [4] if turn else []
        first = len(actions)
        actions += [action("a", turn=turn, parents=recall), action("b", turn=turn)]
        actions += [
            action("a", turn=turn, step=1, parents=[first + 1]),
            action("b", turn=turn, step=1, parents=[first]),
            action("judge", turn=turn, parents=[first + 2, first + 3]),
        ]
    found = view(tmp_path / "run", episodes={"train-000000": [episode(actions=actions)] * 2}).team()
    assert found["episodes"] == 2
    assert edges(found) == [
        ("a", "b", 4, 2.0, False),
        ("a", "judge", 4, 2.0, False),
        ("b", "a", 4, 2.0, False),
        ("b", "judge", 4, 2.0, False),
        ("judge", "a", 2, 1.0, True),
    ]


def test_calls_of_tools_are_no_edges(tmp_path: Path) -> None:
    actions = [
        action("planner"),
        action("solver", parents=[0], tool_results=["4"]),
        action("solver", parents=[0, 1], step=1, tool_results=["5"]),
        action("solver", parents=[0, 2], step=2),
        action("solver", turn=1, parents=[3]),  # recalls itself
    ]
    found = view(tmp_path / "run", episodes={"train-000000": [episode(actions=actions)]}).team()
    assert edges(found) == [("planner", "solver", 1, 1.0, False), ("solver", "solver", 1, 1.0, True)]


def test_one_iteration_has_its_own_d(tmp_path: Path) -> None:
    alone = episode(actions=[action("planner")])
    failed = episode(error={"who": "solver", "reason": "deadline"})
    run = view(
        tmp_path / "run",
        episodes={
            "train-000000": [episode(), alone],
            "train-000001": [alone, failed],
            "evaluation-000001": [episode()],
        },
    )
    assert edges(run.team()) == [("planner", "solver", 2, 0.5, False)]
    assert edges(run.team(0)) == [("planner", "solver", 1, 0.5, False)]
    assert edges(run.team(1)) == [("planner", "solver", 1, 0.5, False)]
    assert run.team(7)["episodes"] == 0
    by_iteration = run.teams()
    assert {n: {**run.team(), **each} for n, each in by_iteration.items()} == {n: run.team(n) for n in (0, 1)}


def test_influence_is_what_the_latest_evaluation_says(tmp_path: Path) -> None:
    loss = {"mean": 0.5, "low": 0.25, "high": 0.75}
    run = view(
        tmp_path / "run",
        evaluations={
            0: {"influence": {"planner": {"drop": 0.125}}},  # of an older version
            4: {"influence": {"planner": {"drop": 0.5, "loss": loss}}},
            8: {"sampled": {}},
        },
    )
    assert run.team()["influence"] == {"planner": loss}
    assert run.team(3)["influence"] == {"planner": {"mean": 0.125, "low": None, "high": None}}
    assert view(tmp_path / "none").team()["influence"] == {}


def test_actions_are_joined_with_what_was_learnt_from_them(tmp_path: Path) -> None:
    run = view(
        tmp_path / "run",
        config={**CONFIG, "rollout": {"staleness": 1, "reuse": 1}},
        episodes={"train-000003": [episode(group="3-a", sample=1), episode(group="3-a", sample=0)]},
        learnt={
            4: [
                {"group": "3-a", "sample": 1, "action": 0, "advantage": 0.5, "ratio": [1.1, 0.9, 1.0]},
                {"group": "3-a", "sample": 0, "action": 0, "advantage": -0.5, "ratio": None},
            ],
            5: [
                {"group": "3-a", "sample": 1, "action": 0, "advantage": 9.0, "ratio": None},  # once more
                {"group": "3-a", "sample": 1, "action": 1, "advantage": [0.1, 0.2, 0.3], "ratio": None},
            ],
            6: [
                {"group": "3-a", "sample": 0, "action": 1, "advantage": 7.0, "ratio": None}
            ],  # cannot be of iteration 3
        },
    )
    keys = ("advantage", "ratio", "learnt_in")
    found = [[action.get(key) for key in keys] for action in run.episode("train-000003:0")["actions"]]
    assert found == [[0.5, [1.1, 0.9, 1.0], 4], [[0.1, 0.2, 0.3], None, 5]]
    first, second = run.episode("train-000003:1")["actions"]
    assert (first["advantage"], first["learnt_in"]) == (-0.5, 4)
    assert "advantage" not in second
    assert "learnt_in" not in second


def test_evaluations_and_older_runs_were_not_learnt_from(tmp_path: Path) -> None:
    trace = {"group": "0-t0", "sample": 0, "action": 0, "advantage": 1.0, "ratio": None}
    played = {"train-000000": [episode()], "evaluation-000000": [episode()]}
    run = view(tmp_path / "new", episodes=played, learnt={0: [trace]})
    assert "advantage" in run.episode("train-000000:0")["actions"][0]
    assert "advantage" not in run.episode("evaluation-000000:0")["actions"][0]
    assert "advantage" not in view(tmp_path / "old", episodes=played).episode("train-000000:0")["actions"][0]


def test_health_tells_what_the_rows_hold(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"iteration": 0, "failures": {"solver: deadline": 2}, "health": {"alarms": 0}},
        {"iteration": 1, "health": {"alarms": 2, "kl": {"planner": 1.5}, "collapse": {"team": 0.1}}},
        {"iteration": 2, "failures": {"solver: deadline": 1, "environment: a/b": 4}, "rollback_to": 1, "lr_scale": 0.5},
        {"iteration": 3, "diverged": {"critic": "critic: the gradient is not finite"}},
    ]
    assert view(tmp_path / "run", rows=rows).health() == {
        "alarms": [
            {"iteration": 1, "kind": "kl", "who": "planner", "value": 1.5},
            {"iteration": 1, "kind": "collapse", "who": "team", "value": 0.1},
        ],
        "rollbacks": [{"iteration": 2, "to": 1, "lr_scale": 0.5}],
        "diverged": [{"iteration": 3, "who": "critic", "sentence": "critic: the gradient is not finite"}],
        "failures": [
            {"reason": "environment: a/b", "count": 4, "first": 2, "last": 2},
            {"reason": "solver: deadline", "count": 3, "first": 0, "last": 2},
        ],
    }


def test_a_path_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MarftError, match="there is no such run"):
        RunDirectory.open(tmp_path / "nothing")
