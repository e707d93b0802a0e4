"""From one line of a file of episodes to what the index keeps of it; and what may be asked of the index."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marft.types import MarftError
from marft.view.reading import NotHere

PREVIEW = 160  # characters of a prompt or a reply in a list
ID = re.compile(r"((?:train|evaluation)-[0-9]{6,9}):([0-9]{1,9})")
SPLITS = ("train", "greedy", "sampled")
OUTCOMES = ("won", "lost", "failed")
CHANGES = ("up", "down", "same", "new")
SORTS = ("newest", "oldest", "best", "worst", "risen", "fallen", "longest", "unlikely")
LARGEST_PAGE = 500

Edge = tuple[str, str, bool]
"""Speaker, reader, and whether the speaker had spoken in an earlier turn."""


@dataclass(frozen=True)
class Query:
    """Which episodes, in which order, and which page of them; None does not filter.

    `change`: the reward rose, fell or stayed the same since the task was last played, or it was played the first time.
    """

    split: str | None = None
    iteration: int | None = None
    agent: str | None = None
    outcome: str | None = None
    change: str | None = None
    task: str | None = None
    search: str | None = None
    sort: str = "newest"
    page: int = 0
    size: int = 50

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """A query from the words of an address; an empty word asks for nothing. Raises `MarftError` naming the word."""
        words = {key: value for key, value in given.items() if value != ""}
        for key, allowed in (("split", SPLITS), ("outcome", OUTCOMES), ("change", CHANGES), ("sort", SORTS)):
            if key in words and words[key] not in allowed:
                raise MarftError(f"{key}: there is no '{words[key]}'; choose from {', '.join(allowed)}")
        size = number(words, "size")
        if size is not None and not 1 <= size <= LARGEST_PAGE:
            raise MarftError(f"size: {size} is not between 1 and {LARGEST_PAGE}")
        return cls(
            split=words.get("split"),
            iteration=number(words, "iteration"),
            agent=words.get("agent"),
            outcome=words.get("outcome"),
            change=words.get("change"),
            task=words.get("task"),
            search=words.get("search"),
            sort=words.get("sort", "newest"),
            page=number(words, "page") or 0,
            size=50 if size is None else size,
        )


def number(words: Mapping[str, str], key: str) -> int | None:
    """A whole number, 0 or above, among the words of an address; None where there is none."""
    word = words.get(key, "")
    if word == "":
        return None
    if not re.fullmatch(r"[0-9]{1,9}", word):
        raise MarftError(f"{key}: '{word}' is not a whole number")
    return int(word)


def parse_id(identity: str) -> tuple[str, int]:
    """The name of the file of episodes, and the line in it (from 0); an id is `train-000003:17`."""
    found = ID.fullmatch(identity)
    if found is None:
        raise NotHere(f"id: '{identity}' names no episode; an id looks like train-000003:17")
    return found[1], int(found[2])


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the index keeps of a record: the columns of its table that do not depend on other episodes.

    Raises KeyError, TypeError or AttributeError for what is no record of an episode.
    """
    task, actions = record["task"], record["actions"]
    tokens = sum(action.get("tokens") or 0 for action in actions)
    measured = [action for action in actions if action.get("mean_logprob") is not None and action.get("tokens")]
    weight = sum(action["tokens"] for action in measured)
    loglikelihood = sum(action["mean_logprob"] * action["tokens"] for action in measured)
    prompt, last = str(task.get("prompt", "")), str(actions[-1].get("text", "")) if actions else ""
    return {
        "task": str(task["id"]),
        "kind": str(task.get("kind", "")),
        "prompt": prompt[:PREVIEW],
        "success": float(record.get("success") or 0.0),
        "reward": float(record.get("reward") or 0.0),
        "tokens": tokens,
        "failed": record.get("error") is not None,
        "agents": json.dumps(list(dict.fromkeys(action["agent"] for action in actions))),
        "answer": str(record.get("answer", "")),
        "last": last[:PREVIEW],
        "mean_logprob": loglikelihood / weight if weight else None,
        "said": searchable(record),
    }


def searchable(record: Mapping[str, Any]) -> str:
    """All text of an episode that a search looks through, in small letters."""
    error = record.get("error") or {}
    parts = [record["task"].get("prompt", "")]
    for action in record["actions"]:
        parts += [action.get("text", ""), *action.get("tool_results", ())]
    parts += [record.get("answer", ""), error.get("who", ""), error.get("reason", "")]
    return "\n".join(str(part) for part in parts).lower()


def edges(record: Mapping[str, Any]) -> Counter[Edge]:
    """D as one episode played it: who read whom, and how often.

    An agent that speaks again after a tool answered reads nobody anew, and its own call is no edge.
    """
    actions = record["actions"]
    found: Counter[Edge] = Counter()
    for action in actions:
        parents = [actions[parent] for parent in action.get("parents", ()) if 0 <= parent < len(actions)]
        if any(each["agent"] == action["agent"] and each.get("tool_results") for each in parents):
            continue
        for speaker in parents:
            found[speaker["agent"], action["agent"], speaker.get("turn", 0) < action.get("turn", 0)] += 1
    return found
