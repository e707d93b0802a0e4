"""Every number of a row of metrics is explained once, by `docs/metrics.md`."""

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from marft.learn import losses, play, score, staleness, update
from marft.run.metrics import flatten
from marft.view.glossary import document, glossary, matches, read_glossary

QUANTILES = ("p05", "p50", "p95", "max")
ROW: dict[str, Any] = {
    "reward": 1, "success": 1, "episodes": 1, "failed": 1, "empty": 1, "truncated_episodes": 1, "truncated_prompts": 1,
    "failures": {"solver: deadline of 3/4 s": 1},
    "play": {
        "planner": {
            "reward": 1, "replies": 1, "tool_calls": 1, "reply_tokens": 1, "truncated_replies": 1, "repeated": 1,
        }
    },
    "entropy": {"planner": 1},
    "reference_kl": 1,
    "sampler_gap": {"max": 1, "mean": 1},
    "off_policy": {"planner": {"age_mean": 1, "age_max": 1, "ess": 1, **{f"weight_{each}": 1 for each in QUANTILES}}},
    "update": {
        "planner": {
            **dict.fromkeys(("kl", "loss", "grad_norm", "reference_kl", "clip_share", "stopped_early"), 1),
            **{f"{name}_{each}": 1 for name in ("ratio", "carry") for each in QUANTILES},
            "epochs": {"0": {"kl": 1, "ess": 1}, "3": {"kl": 1, "ess": 1}},
        }
    },
    "critic": {"loss": 1, "grad_norm": 1, "explained_variance": 1},
    "critic-2": {"loss": 1, "grad_norm": 1, "explained_variance": 1},
    "critic-planner": {"loss": 1, "grad_norm": 1, "explained_variance": 1},
    "groups_of_one": 1,
    "learnt": {"episodes": 1, "iterations": 1},
    "resample": {"rounds": 1, "groups": 1, "dropped": 1},
    "curriculum": {"expected_success": 1, "known_tasks": 1},
    "health": {
        "alarms": 1, "collapse": {"team": 1}, "kl": {"planner": 1}, "ratio": {"planner": 1}, "critic": {"critic-2": 1},
        "entropy_low": {"planner": 1}, "entropy_high": {"planner": 1}, "reference_kl": {"team": 1},
        "nonfinite": {"team": 1},
    },
    "rollback_to": 1, "lr_scale": 1,
    "tokens": {"prompt": 1},
    "play_tokens_per_second": 1, "update_tokens_per_second": 1, "seconds": 1,
    "share": dict.fromkeys(("rollout", "score", "critic", "update", "evaluate", "save"), 1),
}  # fmt: skip
INTERVAL = {"mean": 1, "low": 1, "high": 1}
PART = {"success": INTERVAL, "reward": INTERVAL, "tokens": 1, "failed": 1, "kinds": {"sums": INTERVAL}}
REPORT: dict[str, Any] = {
    "tasks": 1,
    "samples": 1,
    "greedy": PART,
    "sampled": {
        **PART,
        "pass_at": {"1": 1, "8": 1},
        "maj_at": {"8": 1},
        "vote": {"k": 1, "affordable": 1, "success": INTERVAL},
    },
    "no_verdict": {**PART, "pass_at": {"8": 1}, "maj_at": {"8": 1}},
    "influence": {"planner": {"swapped": INTERVAL, "drop": 1, "loss": INTERVAL}},
    "retention": {"planner": {"kl": 1, "perplexity": 1, "base_perplexity": 1}},
}


def explanations(key: str) -> list[str]:
    return [each["name"] for each in glossary() if any(matches(pattern, key) for pattern in each["patterns"])]


@pytest.mark.parametrize("key", [key for key, _ in flatten(ROW)])
def test_every_number_of_a_row_has_one_explanation(key: str) -> None:
    assert len(explanations(key)) == 1


def test_every_number_of_a_report_has_one_explanation() -> None:
    keys = {re.sub(r"/(mean|low|high)$", "", key) for key, _ in flatten(REPORT)}
    assert len(keys) > 25
    for key in keys:
        assert len(explanations(f"evaluation: {key}")) == 1, key


def test_the_row_above_has_every_key_that_the_code_writes() -> None:
    """A key that is added to the code must be explained, and stand in the row of this test."""
    written: set[str] = set()
    sources = (play.play_stats, score.prepare, update.update_agent, update.update_critic, update._policy_step)
    for function in (*sources, staleness.off_policy, losses.ratio_statistics, losses.sampler_gap):
        for node in ast.walk(ast.parse(inspect.getsource(function))):
            keys = node.keys if isinstance(node, ast.Dict) else []
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):  # stats["entropy"] = …
                keys = [node.slice]
            written |= {each.value for each in keys if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    assert {"repeated", "clip_share", "age_mean", "entropy", "stopped_early"} <= written
    known = {part for key, _ in flatten(ROW) for part in key.split("/")} | set(ROW)
    assert written - known == set()


def test_no_pattern_stands_twice_and_each_row_says_something() -> None:
    patterns = [pattern for each in glossary() for pattern in each["patterns"]]
    assert len(patterns) == len(set(patterns)) > 100
    for each in glossary():
        assert each["patterns"], each["name"]
        assert all(each[key] for key in ("name", "group", "meaning"))
        assert not re.search(r"[`|]{2}|\]\(", json.dumps(each))


def test_a_table_becomes_entries_without_markup() -> None:
    text = """# About

## Did it *work*? (per agent)

| key | metric | meaning | healthy | sick |
|---|---|---|---|---|
| `a/AGENT/b`, `c` | **b** | the \\|x\\| of [this](there.md), *not* of `y_z` | 0 | |

| other | table |
|---|---|
| `d` | e |
"""
    assert read_glossary(text) == [
        {
            "patterns": ["a/AGENT/b", "c"],
            "name": "b",
            "group": "Did it work? (per agent)",
            "meaning": "the |x| of this, not of y_z",
            "healthy": "0",
            "sick": "",
        }
    ]


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("update/AGENT/kl", "update/planner/kl", True),
        ("update/AGENT/kl", "update/planner/loss", False),
        ("update/AGENT/kl", "update/kl", False),
        ("update/AGENT/kl", "update/planner/epochs/kl", False),
        ("failures/WHO", "failures/solver: a/b", True),
        ("failures/WHO", "failures", False),
        ("reward", "play/planner/reward", False),
        ("CRITIC/loss", "critic-2/loss", True),
    ],
)
def test_a_pattern_speaks_of_keys_of_its_shape(pattern: str, key: str, expected: bool) -> None:
    assert matches(pattern, key) is expected


def test_the_document_stands_in_the_package_or_in_the_checkout() -> None:
    assert document().is_file()
    assert document().parts[-2:] == ("docs", "metrics.md")
    assert isinstance(document(), Path)
