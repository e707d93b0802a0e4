"""Play: one coroutine per episode, all of them at once over the engines of the team's models."""

from marft.rollout.episodes import play, rollout
from marft.rollout.stage import Plan, PlayFailed, Seat, Stage

__all__ = ["Plan", "PlayFailed", "Seat", "Stage", "play", "rollout"]
