"""One episode while it is being played: who has said what, what each agent has read, and what it earned."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from marft.environments.base import Outcome
from marft.game.flexmg import Agent
from marft.generate.base import Request
from marft.models.chat import Exchange
from marft.rollout.stage import Plan, PlayFailed, Seat, Stage, describe
from marft.tools.base import answer
from marft.types import Action, Episode, Failure, MarftError

T = TypeVar("T")


@dataclass(frozen=True)
class Said:
    """What one agent did when it was asked once: replies that called tools, then the one that others read."""

    agent: str
    actions: tuple[Action, ...]

    @property
    def text(self) -> str:
        """The message."""
        return self.actions[-1].text


class Table:
    """One episode while it is being played."""

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self.stage = stage
        self.plan = plan
        self.actions: list[Action] = []
        self.events: list[tuple[str, str]] = []  # (speaker, text): the joint view grows out of these
        self.conversations: dict[str, list[Exchange]] = {name: [] for name in stage.game.names}
        self.unread: dict[str, str] = {}  # what the world shows an agent, until the agent reads it
        self.steps = Counter[tuple[str, int]]()  # replies per agent and turn
        self.asked = Counter[str]()  # how often each agent was asked to speak
        self.metrics: dict[str, float] = {}
        self.answer = ""
        self.speaking: list[str] = []  # who was asked and has not answered yet; nobody: the environment has its turn
        self.sides: dict[str, str] = {}
        self.failed: PlayFailed | None = None  # the first failure of an agent, whoever may have caught it

    def episode(self, terminated: bool, truncated: bool, error: Failure | None = None) -> Episode:
        """The record of what was played so far."""
        return Episode(
            task=self.plan.task,
            group=self.plan.group or self.plan.task.id,
            sample=self.plan.sample,
            actions=tuple(self.actions),
            terminated=terminated,
            truncated=truncated,
            final_joint_ids=self._final_views() if truncated else {},
            metrics=dict(self.metrics),
            error=error,
            answer=self.answer,
        )

    def observe(self, state: Any, names: Sequence[str]) -> None:
        """Ask the world what it shows each of `names` now; they read the latest of it when they next speak."""
        environment = self.stage.game.environment
        shown = self.world(lambda: {name: environment.observe(state, name) for name in names})
        self.unread |= {name: text for name, text in shown.items() if text}

    async def speak(self, name: str, turn: int, messages: Sequence[tuple[str, str]], position: int) -> Said:
        """Let an agent read the task (once), the world's words to it and `messages` (speaker, text), and answer.

        Its own earlier replies stay in its conversation, as sampled.
        """
        agent = self.stage.game.agent(name)
        parts = [self.plan.task.prompt] if agent.sees_task and not self.conversations[name] else []
        if name in self.unread:
            parts.append(self.unread.pop(name))
            self.events.append((f"environment to {name}", parts[-1]))
        parts += [self.quote(who, text) for who, text in messages]
        return await self.say(agent, turn, "\n\n".join(parts), position)

    async def say(self, agent: Agent, turn: int, heard: str, position: int, remember: bool = True) -> Said:
        """The agent's answer to `heard`; with `remember`, after its conversation so far. Nothing is recorded yet.

        `position` is its place in the engine's queue. Raises `PlayFailed` naming the agent.
        """
        self.speaking.append(agent.name)
        history = self.conversations[agent.name] if remember else []
        try:
            said = await self._converse(agent, turn, [*history, Exchange(heard)], position)
        except (asyncio.CancelledError, PlayFailed):
            raise
        except Exception as error:  # whatever an engine may throw ends this episode, under the agent's name
            self.failed = self.failed or PlayFailed(agent.name, describe(error))
            raise self.failed from error
        self.speaking.remove(agent.name)
        if remember:
            self.conversations[agent.name] = said[1]
        return Said(agent.name, tuple(said[0]))

    def record(self, said: Said, parents: Sequence[int]) -> int:
        """Put what was said on the episode's chain, having read `parents`; returns the place of the message."""
        for action in said.actions:
            own = (len(self.actions) - 1,) if action is not said.actions[0] else ()
            view = self._joint_view(said.agent, said.agent)
            side = self.sides.get(said.agent, "")
            self.actions.append(replace(action, parents=(*parents, *own), joint_ids=view, side=side))
            self.events.append((said.agent, action.text))
            self.events += [(f"tool to {said.agent}", result) for result in action.tool_results]
        return len(self.actions) - 1

    async def step(self, state: Any, messages: Mapping[str, str]) -> Outcome:
        """Let the world take the turn's messages; rewards go to the actions that earned them."""
        step = self.world(lambda: self.stage.game.environment.step(state, messages))
        if inspect.isawaitable(step):
            try:
                step = await step
            except Exception as error:
                raise PlayFailed("environment", describe(error)) from error
        outcome = step
        self.world(lambda: self._reward(outcome))
        self.metrics = dict(outcome.metrics)
        self.answer = outcome.answer
        return outcome

    def last_of(self, name: str, turn: int | None = None) -> int | None:
        """The place of the agent's latest message, or of its message of a turn."""
        for index in reversed(range(len(self.actions))):
            if self.actions[index].agent == name and turn in (None, self.actions[index].turn):
                return index
        return None

    def quote(self, name: str, text: str) -> str:
        """Another agent's message, as its reader sees it."""
        return self.stage.game.message.replace("{name}", name).replace("{text}", text)

    def world(self, call: Callable[[], T]) -> T:
        """Call the environment or D; what they raise ends this episode alone."""
        return self.blame("environment", call)

    def blame(self, who: str, call: Callable[[], T]) -> T:
        """`call()`, any exception of which becomes a failure of `who`."""
        try:
            return call()
        except Exception as error:  # an environment, or D, may be the user's own
            raise PlayFailed(who, describe(error)) from error

    async def _converse(
        self, agent: Agent, turn: int, exchanges: list[Exchange], position: int
    ) -> tuple[list[Action], list[Exchange]]:
        """Replies until one calls no tool, or no more calls are allowed; and the conversation with them in it."""
        seat = self.stage.seats[agent.name]
        lines = self.plan.scripted.get(agent.name)
        actions: list[Action] = []
        while True:
            step = self.steps[agent.name, turn]
            self.steps[agent.name, turn] += 1
            prompt, kept, dropped = self._prompt(agent, seat, exchanges)
            if lines is not None:
                action = self._scripted(agent, turn, lines[min(self.asked[agent.name], len(lines) - 1)], prompt)
            else:
                action = await self._generate(agent, turn, step, prompt, kept, position)
            exchanges[-1] = replace(exchanges[-1], reply_ids=action.token_ids)
            calls = seat.chat.calls(action.token_ids) if lines is None and len(actions) < agent.tool_calls else ()
            results = tuple([await answer(seat.tools, call) for call in calls])
            exchanges += [
                Exchange(result, role="tool", tool=getattr(call, "name", ""))
                for call, result in zip(calls, results, strict=True)
            ]
            actions.append(replace(action, step=step, truncated_tokens=dropped, tool_results=results))
            if not results:
                self.asked[agent.name] += 1
                return actions, exchanges

    async def _generate(
        self, agent: Agent, turn: int, step: int, prompt: tuple[int, ...], exchanges: Sequence[Exchange], position: int
    ) -> Action:
        seat = self.stage.seats[agent.name]
        place = (self.stage.game.names.index(agent.name), turn, *((step,) if step else ()))
        request = Request(
            prompt_ids=prompt,
            adapter=agent.adapter,
            sampling=agent.sampling,
            seed=(*self.plan.seed, *place),
            order=(self.plan.order, position),
            greedy=self.plan.greedy,
            speaker=agent.name,
            profile=agent.profile,
            exchanges=tuple(exchanges),
        )
        reply = await seat.generator.generate(request)
        return Action(
            agent=agent.name,
            turn=turn,
            parents=(),
            prompt_ids=prompt,
            joint_ids=(),
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            text=seat.chat.decode(reply.token_ids) if reply.text is None else reply.text,
            stop=reply.stop,
            policy_version=reply.policy_version,
        )

    def _scripted(self, agent: Agent, turn: int, line: str, prompt: tuple[int, ...]) -> Action:
        """Words put into the agent's mouth, as if it had drawn them for certain."""
        seat = self.stage.seats[agent.name]
        ids = (*seat.chat.encode(line), seat.chat.stop_ids[0])
        return Action(agent.name, turn, (), prompt, (), ids, (0.0,) * len(ids), line, "stop", seat.generator.version)

    def _prompt(
        self, agent: Agent, seat: Seat, exchanges: Sequence[Exchange]
    ) -> tuple[tuple[int, ...], Sequence[Exchange], int]:
        """The prompt ids, what they were made of, and how many tokens were left out to make the reply fit."""
        specs = [tool.spec for tool in seat.tools.values()]
        room = seat.context - agent.sampling.max_tokens
        whole = seat.chat.prompt(agent.profile, exchanges, specs)
        if len(whole) <= room or self.stage.context_policy == "refuse":
            return whole, exchanges, 0  # the generator refuses what does not fit, in words
        shorter = whole
        # A conversation can be cut where the agent was spoken to, not between a call and its result
        for start in [place for place, each in enumerate(exchanges) if each.role == "user"][1:]:
            shorter = seat.chat.prompt(agent.profile, exchanges[start:], specs)
            if len(shorter) <= room:
                return shorter, exchanges[start:], len(whole) - len(shorter)
        raise MarftError(
            f"the profile and the latest message take {len(shorter)} tokens; only {room} fit beside the reply"
        )

    def _joint_view(self, reader: str, speaker: str) -> tuple[int, ...]:
        """What the critic reads before `speaker` acts, in the tokens of `reader`'s model: the newest that fits."""
        seat = self.stage.seats[reader]
        view = seat.chat.joint_view(self.plan.task.prompt, self.events, speaker)
        return view[max(0, len(view) - seat.view) :]

    def _final_views(self) -> dict[str, tuple[int, ...]]:
        """Of each agent that acted: the joint view after the last action, in the tokens of its model."""
        return {name: self._joint_view(name, "end") for name in dict.fromkeys(each.agent for each in self.actions)}

    def _reward(self, outcome: Outcome) -> None:
        """Put a team reward on the episode's last action so far, an agent's reward on the agent's own last action."""
        mapping = isinstance(outcome.rewards, Mapping)
        rewards = outcome.rewards if isinstance(outcome.rewards, Mapping) else {"the team": outcome.rewards}
        for name, reward in rewards.items():
            index = self.last_of(name) if mapping else len(self.actions) - 1
            if index is None:
                raise MarftError(f"it rewarded '{name}', who has not acted")
            if not math.isfinite(reward):
                raise MarftError(f"the reward of '{name}' is {reward}, not a finite number")
            action = self.actions[index]
            shared = 0.0 if mapping else float(reward)
            self.actions[index] = replace(action, reward=action.reward + float(reward), shared=action.shared + shared)
