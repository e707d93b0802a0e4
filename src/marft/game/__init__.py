"""Flex-MG: a team of agents, who depends on whom, and the world they play in."""

from marft.game.dependency import Dependency, Graph, Static, chain, graph, parallel
from marft.game.drawing import draw
from marft.game.flexmg import Agent, FlexMG, build_game
from marft.game.organisation import Debate, Orchestrated, debate, orchestrated

__all__ = [
    "Agent",
    "Debate",
    "Dependency",
    "FlexMG",
    "Graph",
    "Orchestrated",
    "Static",
    "build_game",
    "chain",
    "debate",
    "draw",
    "graph",
    "orchestrated",
    "parallel",
]
