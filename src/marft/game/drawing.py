"""The team as a drawing in the terminal."""

from __future__ import annotations

from rich.align import Align
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from marft.game.dependency import Graph, Static
from marft.game.flexmg import Agent, FlexMG
from marft.game.organisation import Debate, Orchestrated


def draw(game: FlexMG) -> RenderableType:
    """The team for a terminal: one row of boxes per group that may act at once, each box naming whom it reads."""
    head = Text.assemble(("environment ", "dim"), (game.environment.name, "bold"), (f"   turns {game.turns}", "dim"))
    parts: list[RenderableType] = [Align.center(head)]
    if game.workflow is not None:
        boxes = [_box(agent, "reads: what the workflow hands it", "") for agent in game.agents]
        return Group(
            *parts, Align.center(Columns(boxes)), Align.center(Text("a workflow calls the agents", style="dim"))
        )
    if isinstance(game.dependency, Debate):
        return Group(*parts, *_debate(game, game.dependency))
    if isinstance(game.dependency, Orchestrated):
        return Group(*parts, *_orchestrated(game, game.dependency))
    if not isinstance(game.dependency, Static):
        boxes = [_box(agent, "reads: changes during play", "") for agent in game.agents]
        return Group(*parts, Align.center(Columns(boxes)), Align.center(Text("D changes during play", style="dim")))
    graph = game.dependency.graph
    for number, level in enumerate(graph.levels(game.names)):
        if number:
            parts.append(Align.center(Text("↓", style="bold")))
        boxes = [_box(game.agent(name), *_reading(graph, name, game)) for name in level]
        parts.append(Align.center(Columns(boxes)))
    return Group(*parts)


def _debate(game: FlexMG, debate: Debate) -> list[RenderableType]:
    boxes = [_box(game.agent(name), "reads: the others' last words", "") for name in debate.debaters]
    parts: list[RenderableType] = [
        Align.center(Columns(boxes)),
        Align.center(Text(f"{debate.rounds} rounds, in each of which all speak at once", style="dim")),
    ]
    if debate.judge is not None:
        parts += [
            Align.center(Text("↓", style="bold")),
            Align.center(_box(game.agent(debate.judge), "reads: the last round", "")),
        ]
    return parts


def _orchestrated(game: FlexMG, team: Orchestrated) -> list[RenderableType]:
    boxes = [_box(game.agent(name), "reads: its call, and what was said since", "") for name in team.members]
    rule = f"it calls one after another, at most {team.calls} a turn, and ends with '{team.stop}'"
    return [
        Align.center(_box(game.agent(team.orchestrator), "reads: whom it called", "")),
        Align.center(Text("↓ ↑", style="bold")),
        Align.center(Columns(boxes)),
        Align.center(Text(rule, style="dim")),
    ]


def _reading(graph: Graph, name: str, game: FlexMG) -> tuple[str, str]:
    parents = graph.parents(name, game.names)
    recalled = graph.recalled(name, game.names)
    conditions = {speaker: pattern for speaker, reader, pattern in graph.conditions if reader == name}
    reads = [f"{each} (if /{conditions[each]}/)" if each in conditions else each for each in parents]
    return f"reads: {', '.join(reads) or 'no agent'}", f"recalls: {', '.join(recalled)}" if recalled else ""


def _box(agent: Agent, reads: str, recalls: str) -> Panel:
    lines = [
        ("✓" if agent.sees_task else "✗") + " sees the task",
        f"{'✎' if agent.trainable else '✗'} adapter {agent.adapter}{'' if agent.trainable else ' (not trained)'}",
        f"← {reads}",
    ]
    if agent.tools:
        lines.append(f"⚒ {', '.join(agent.tools)}")
    if recalls:
        lines.append(f"↺ {recalls}")
    return Panel(Text("\n".join(lines)), title=Text(agent.name, style="bold"), expand=False)
