"""D as it was played: turn by turn, who spoke after reading whom."""

from __future__ import annotations

from collections.abc import Sequence

from marft.types import Action, Episode


def played(episode: Episode) -> list[str]:
    """One line per turn: `lead; ann ← lead; lead ← ann`, in the order in which they spoke.

    Replies that called tools are not listed by themselves: what came of them is in the agent's next reply.
    """
    turns: dict[int, list[str]] = {}
    for action in episode.actions:
        if not action.tool_results:
            turns.setdefault(action.turn, []).append(_link(action, episode.actions))
    return ["; ".join(links) for _, links in sorted(turns.items())]


def _link(action: Action, actions: Sequence[Action]) -> str:
    read = dict.fromkeys(actions[parent].agent for parent in action.parents)
    others = [name for name in read if name != action.agent or not _own_calls(action, actions)]
    return f"{action.agent} ← {', '.join(others)}" if others else action.agent


def _own_calls(action: Action, actions: Sequence[Action]) -> bool:
    """Whether what the agent read of itself were its own calls of tools."""
    return all(actions[place].tool_results for place in action.parents if actions[place].agent == action.agent)
