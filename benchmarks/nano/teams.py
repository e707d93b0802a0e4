"""Teams of one to four that the small model can play, and the config of an experiment with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marft.types import MarftError

# Per size: who plays, the role as its system prompt, and its longest reply: a right one and its end, with some to spare
MEMBERS: Mapping[int, tuple[tuple[str, str, int], ...]] = {
    1: (("solver", "alone", 26),),
    2: (("planner", "plan", 10), ("solver", "solve", 18)),
    3: (("planner", "plan", 10), ("calculator", "calculate", 16), ("answerer", "answer", 4)),
    4: (("planner", "plan", 10), ("calculator", "calculate", 16), ("checker", "check", 16), ("answerer", "answer", 4)),
}
# Without a role an agent may say what any other would
ANONYMOUS_TOKENS = 26
WORLD = "benchmarks.nano.world:WordProblems"


def team(size: int, hidden: bool = True, anonymous: bool = False) -> dict[str, Any]:
    """The `team` section for 1 to 4 agents in a chain, each with its own `sampling.max_tokens`.

    hidden: only the first agent reads the question. anonymous: no system prompts, and names that say nothing.
    """
    if size not in MEMBERS:
        raise MarftError(f"size: no team of {size}; choose from {', '.join(map(str, MEMBERS))}")
    agents = []
    for place, (name, role, longest) in enumerate(MEMBERS[size]):
        named = {"name": f"agent{place + 1}"} if anonymous else {"name": name, "profile": role}
        tokens = ANONYMOUS_TOKENS if anonymous else longest
        agents.append({**named, "sees_task": place == 0 or not hidden, "sampling": {"max_tokens": tokens}})
    return {"agents": agents, "dependency": "chain", "message": "{text}"}


def experiment(
    model: Path | str, team: Mapping[str, Any], environment: Mapping[str, Any] | None = None, **sections: Any
) -> dict[str, Any]:
    """A config, as it could stand in a YAML file; other `sections` (`seed`, `update`, …) stand as they are given."""
    return {
        "model": {"name": str(model), "dtype": "float32"},
        "team": dict(team),
        "environment": {"name": WORLD, **(environment or {})},
        "evaluation": {"tasks": 0},
        **sections,
    }
