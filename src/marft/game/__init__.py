"""Flex-MG: a team of agents, who depends on whom, and the world they play in."""

from marft.game.dependency import Dependency, Graph, Static, chain, graph, parallel
from marft.game.drawing import draw
from marft.game.flexmg import Agent, FlexMG, build_game

__all__ = ["Agent", "Dependency", "FlexMG", "Graph", "Static", "build_game", "chain", "draw", "graph", "parallel"]
