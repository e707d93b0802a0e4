"""Play: one coroutine per episode, all of them at once over one generator."""

from __future__ import annotations

import asyncio
import inspect
import math
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from marft.environments.base import Outcome
from marft.game.dependency import Graph
from marft.game.flexmg import Agent, FlexMG
from marft.game.workflow import Spoken, Voice, Workflow
from marft.generate.base import Generator, Request
from marft.models.chat import Chat, Exchange
from marft.types import Action, Episode, Failure, MarftError, Task

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """One episode to be played. `seed` and the place of a message in the episode decide every random draw.

    `scripted` puts words into agents' mouths: agent -> its messages, turn by turn (used to measure influence).
    """

    task: Task
    sample: int
    seed: tuple[int, ...]
    order: int
    greedy: bool = False
    scripted: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """What every episode of a rollout shares: the game, the chat format, the generator, and the rules of play."""

    game: FlexMG
    chat: Chat
    generator: Generator
    context: int
    context_policy: Literal["refuse", "truncate_history"] = "refuse"
    deadline: float = 1800.0


class PlayFailed(Exception):
    """An episode cannot go on: who failed, and why."""

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(f"{who}: {reason}")
        self.failure = Failure(who, reason)


async def rollout(
    stage: Stage, plans: Iterable[Plan], finished: Callable[[Episode], None] = lambda episode: None
) -> list[Episode]:
    """Play all plans at once; episodes come back in the order of the plans. `finished` hears of each as it ends."""

    async def play_and_tell(plan: Plan) -> Episode:
        episode = await play(stage, plan)
        finished(episode)
        return episode

    return await run_together(play_and_tell(plan) for plan in plans)


async def play(stage: Stage, plan: Plan) -> Episode:
    """Play one episode; a failure or a passed deadline is recorded in it, a cancellation propagates."""
    table = Table(stage, plan)
    try:
        async with asyncio.timeout(stage.deadline):
            return await table.play()
    except TimeoutError:
        slow = table.speaking[0] if table.speaking else "environment"
        failure = Failure(slow, f"the episode passed its deadline of {stage.deadline:g} s")
    except PlayFailed as error:
        failure = error.failure
    return table.episode(terminated=False, truncated=False, error=failure)


class Table:
    """One episode while it is being played."""

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self.stage = stage
        self.plan = plan
        self.actions: list[Action] = []
        self.events: list[tuple[str, str]] = []  # (speaker, text): the joint view grows out of these
        self.conversations: dict[str, list[Exchange]] = {name: [] for name in stage.game.names}
        self.calls = Counter[str]()  # how often a workflow has called each agent
        self.metrics: dict[str, float] = {}
        self.speaking: list[str] = []  # who was asked and has not answered yet; nobody: the environment has its turn

    async def play(self) -> Episode:
        """Turn by turn until the environment ends the game or the horizon cuts it off."""
        environment = self.stage.game.environment
        # One seed per task: all samples of a group start from the same state
        seed = zlib.crc32(repr(self.plan.seed[:-1]).encode())
        state = self._world(lambda: environment.reset(self.plan.task, self.stage.game.names, seed))
        if self.stage.game.workflow is not None:
            outcome = await self._play_workflow(state, self.stage.game.workflow)
            return self.episode(outcome.terminated, not outcome.terminated)
        for turn in range(self.stage.game.turns):
            graph = self._world(lambda turn=turn, state=state: self.stage.game.graph_at(state, turn))  # type: ignore[misc]
            outcome = await self._play_turn(state, turn, graph)
            state = outcome.state
            if outcome.terminated or outcome.truncated:
                return self.episode(outcome.terminated, outcome.truncated)
        return self.episode(terminated=False, truncated=True)

    def episode(self, terminated: bool, truncated: bool, error: Failure | None = None) -> Episode:
        """The record of what was played so far."""
        return Episode(
            task=self.plan.task,
            group=self.plan.task.id,
            sample=self.plan.sample,
            actions=tuple(self.actions),
            terminated=terminated,
            truncated=truncated,
            final_joint_ids=self._joint_view("end") if truncated else (),
            metrics=dict(self.metrics),
            error=error,
        )

    async def _play_turn(self, state: Any, turn: int, graph: Graph) -> Outcome:
        names = self.stage.game.names
        order = graph.order(names)
        first = len(self.actions)
        place = {name: first + position for position, name in enumerate(order)}
        observed = {name: self._world(lambda name=name: self._observe(state, name)) for name in order}  # type: ignore[misc]
        spoken: dict[str, Action] = {}
        for level in graph.levels(names):
            acts = [self._act(name, turn, graph, observed[name], place, spoken) for name in level]
            for action in await run_together(acts):
                spoken[action.agent] = action
        for name in order:
            if observed[name]:
                self.events.append((f"environment to {name}", observed[name]))
        for name in order:
            self.actions.append(replace(spoken[name], joint_ids=self._joint_view(name)))
            self.events.append((name, spoken[name].text))
        outcome = await self._step(state, {name: spoken[name].text for name in order})
        self._world(lambda: self._record(outcome, place, order))
        return outcome

    async def _play_workflow(self, state: Any, workflow: Workflow) -> Outcome:
        """Let the team's own function call the agents; then the last message of each goes to the world."""
        asked = 0  # the number of calls so far fixes the place in the queue, whoever answers first

        def voice(agent: Agent) -> Voice:
            async def speak(*parts: str | Spoken) -> Spoken:
                nonlocal asked
                asked += 1
                texts = [self._quote(each.agent, each.text) if isinstance(each, Spoken) else each for each in parts]
                parents = tuple(each.index for each in parts if isinstance(each, Spoken))
                turn = self.calls[agent.name]
                self.calls[agent.name] += 1
                action = await self.say(agent, turn, "\n\n".join(texts), parents, asked, remember=False)
                self.actions.append(replace(action, joint_ids=self._joint_view(agent.name)))
                self.events.append((agent.name, action.text))
                return Spoken(agent.name, action.text, len(self.actions) - 1)

            return speak

        voices = {agent.name: voice(agent) for agent in self.stage.game.agents}
        try:
            await workflow(self.plan.task, voices)
        except (asyncio.CancelledError, PlayFailed):
            raise
        except Exception as error:  # the team's function is the user's own
            raise PlayFailed("team", describe(error)) from error
        if not self.actions:
            raise PlayFailed("team", "the workflow let no agent speak")
        place = {action.agent: index for index, action in enumerate(self.actions)}
        order = tuple(sorted(place, key=place.__getitem__))
        outcome = await self._step(state, {name: self.actions[place[name]].text for name in order})
        self._world(lambda: self._record(outcome, place, order))
        return outcome

    async def _act(
        self, name: str, turn: int, graph: Graph, observed: str, place: Mapping[str, int], spoken: Mapping[str, Action]
    ) -> Action:
        """One agent reads what it may and answers. Its own earlier replies stay in its conversation, as sampled."""
        agent = self.stage.game.agent(name)
        names = self.stage.game.names
        recalled = [self._last_of(each, turn - 1) for each in graph.recalled(name, names)]
        seen = [index for index in recalled if index is not None]
        parents = [place[each] for each in graph.parents(name, names)]
        messages = [self.actions[index] for index in seen] + [spoken[each] for each in graph.parents(name, names)]
        heard = self._heard(agent, observed, [(each.agent, each.text) for each in messages])
        return await self.say(agent, turn, heard, tuple(seen + parents), place[name])

    async def say(
        self, agent: Agent, turn: int, heard: str, parents: tuple[int, ...], position: int, remember: bool = True
    ) -> Action:
        """The agent's reply to `heard`, as an action without reward; with `remember`, after its conversation so far.

        Raises `PlayFailed` naming the agent.
        """
        self.speaking.append(agent.name)
        history = self.conversations[agent.name] if remember else []
        try:
            prompt, dropped = self._prompt(agent, [*history, Exchange(heard)])
            lines = self.plan.scripted.get(agent.name)
            if lines is not None:
                reply_ids = (*self.stage.chat.encode(lines[turn]), self.stage.chat.stop_ids[0])
                action = Action(agent.name, turn, parents, prompt, (), reply_ids, (0.0,) * len(reply_ids), lines[turn],
                                "stop", self.stage.generator.version, truncated_tokens=dropped)  # fmt: skip
            else:
                action = await self._generate(agent, turn, prompt, parents, position, dropped)
        except (asyncio.CancelledError, PlayFailed):
            raise
        except Exception as error:  # whatever an engine may throw ends this episode, under the agent's name
            raise PlayFailed(agent.name, describe(error)) from error
        self.speaking.remove(agent.name)
        history.append(Exchange(heard, action.token_ids))
        return action

    async def _generate(
        self, agent: Agent, turn: int, prompt: tuple[int, ...], parents: tuple[int, ...], position: int, dropped: int
    ) -> Action:
        number = self.stage.game.names.index(agent.name)
        request = Request(
            prompt_ids=prompt,
            adapter=agent.adapter,
            sampling=agent.sampling,
            seed=(*self.plan.seed, number, turn),
            order=(self.plan.order, position),
            greedy=self.plan.greedy,
            speaker=agent.name,
        )
        reply = await self.stage.generator.generate(request)
        return Action(
            agent=agent.name,
            turn=turn,
            parents=parents,
            prompt_ids=prompt,
            joint_ids=(),
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            text=self.stage.chat.decode(reply.token_ids),
            stop=reply.stop,
            policy_version=reply.policy_version,
            truncated_tokens=dropped,
        )

    def _heard(self, agent: Agent, observed: str, messages: Sequence[tuple[str, str]]) -> str:
        """What the agent reads this turn: the task (once), the world's words to it, then the messages it may see."""
        opening = agent.sees_task and not self.conversations[agent.name]
        parts = [self.plan.task.prompt] if opening else []
        parts += [observed] if observed else []
        parts += [self._quote(who, text) for who, text in messages]
        return "\n\n".join(parts)

    def _quote(self, name: str, text: str) -> str:
        """Another agent's message, as its reader sees it."""
        return self.stage.game.message.replace("{name}", name).replace("{text}", text)

    def _prompt(self, agent: Agent, exchanges: Sequence[Exchange]) -> tuple[tuple[int, ...], int]:
        """The prompt ids, and how many tokens were left out to make the reply fit the context."""
        room = self.stage.context - agent.sampling.max_tokens
        whole = self.stage.chat.prompt(agent.profile, exchanges)
        if len(whole) <= room or self.stage.context_policy == "refuse":
            return whole, 0  # the generator refuses what does not fit, in words
        for start in range(1, len(exchanges)):
            shorter = self.stage.chat.prompt(agent.profile, exchanges[start:])
            if len(shorter) <= room:
                return shorter, len(whole) - len(shorter)
        least = len(self.stage.chat.prompt(agent.profile, exchanges[-1:]))
        raise MarftError(f"the profile and the latest message take {least} tokens; only {room} fit beside the reply")

    def _joint_view(self, speaker: str) -> tuple[int, ...]:
        view = self.stage.chat.joint_view(self.plan.task.prompt, self.events, speaker)
        longest = max(each.sampling.max_tokens for each in self.stage.game.agents)
        return view[-(self.stage.context - longest) :]

    def _last_of(self, name: str, turn: int) -> int | None:
        for index, action in enumerate(self.actions):
            if action.agent == name and action.turn == turn:
                return index
        return None

    def _observe(self, state: Any, name: str) -> str:
        return self.stage.game.environment.observe(state, name)

    async def _step(self, state: Any, messages: Mapping[str, str]) -> Outcome:
        step = self._world(lambda: self.stage.game.environment.step(state, messages))
        if inspect.isawaitable(step):
            try:
                return await step
            except Exception as error:
                raise PlayFailed("environment", describe(error)) from error
        return step

    def _record(self, outcome: Outcome, place: Mapping[str, int], order: tuple[str, ...]) -> None:
        """Put each reward on the one action that earned it, a team reward on the turn's last; note the metrics."""
        rewards = outcome.rewards if isinstance(outcome.rewards, Mapping) else {order[-1]: outcome.rewards}
        for name, reward in rewards.items():
            if name not in place:
                raise MarftError(f"it rewarded '{name}', who did not act this turn")
            if not math.isfinite(reward):
                raise MarftError(f"the reward of '{name}' is {reward}, not a finite number")
            index = place[name]
            self.actions[index] = replace(self.actions[index], reward=float(reward))
        self.metrics.update(outcome.metrics)

    def _world(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:  # an environment may be the user's own; its failure is this episode's alone
            raise PlayFailed("environment", describe(error)) from error


async def run_together(coroutines: Iterable[Coroutine[Any, Any, T] | Awaitable[T]]) -> list[T]:
    """Await all at once, results in order; the first failure cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def describe(error: BaseException) -> str:
    """An exception in one line: a `MarftError` speaks for itself, another is named with the place it came from."""
    text = " ".join(str(error).split())
    if isinstance(error, MarftError):
        return text
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_name}, line {trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {text}{where}"
