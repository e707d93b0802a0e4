"""The team as a drawing in the terminal."""

from __future__ import annotations

from rich.align import Align
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from marft.game.dependency import Graph, Static
from marft.game.flexmg import Agent, FlexMG


def draw(game: FlexMG) -> RenderableType:
    """The team for a terminal: one row of boxes per group that may act at once, each box naming whom it reads."""
    head = Text.assemble(("environment ", "dim"), (game.environment.name, "bold"), (f"   turns {game.turns}", "dim"))
    parts: list[RenderableType] = [Align.center(head)]
    if game.workflow is not None:
        boxes = [_box(agent, "reads: what the workflow hands it", "") for agent in game.agents]
        return Group(
            *parts, Align.center(Columns(boxes)), Align.center(Text("a workflow calls the agents", style="dim"))
        )
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


def _reading(graph: Graph, name: str, game: FlexMG) -> tuple[str, str]:
    parents = graph.parents(name, game.names)
    recalled = graph.recalled(name, game.names)
    return f"reads: {', '.join(parents) or 'no agent'}", f"recalls: {', '.join(recalled)}" if recalled else ""


def _box(agent: Agent, reads: str, recalls: str) -> Panel:
    lines = [
        ("✓" if agent.sees_task else "✗") + " sees the task",
        f"{'✎' if agent.trainable else '✗'} adapter {agent.adapter}{'' if agent.trainable else ' (not trained)'}",
        f"← {reads}",
    ]
    if recalls:
        lines.append(f"↺ {recalls}")
    return Panel(Text("\n".join(lines)), title=Text(agent.name, style="bold"), expand=False)
