"""What can be known before anything is played: does every prompt fit, and does the environment keep its rules?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from marft.config import AgentConfig, Config
from marft.environments.base import Environment
from marft.environments.check import SPLITS, check_environment
from marft.game.dependency import Static
from marft.game.flexmg import FlexMG
from marft.game.organisation import Orchestrated
from marft.generate.base import Request
from marft.generate.scripted import Answer, Scripted
from marft.grading.isolation import WHAT, isolation
from marft.models.base import BUILT_IN
from marft.models.catalogue import is_known
from marft.models.chat import Chat
from marft.plan.crews import crews_of
from marft.rollout import Plan, Stage, rollout
from marft.run.evaluate import NEUTRAL_TEXT
from marft.run.offline import offline_game, source_of
from marft.running import result_of
from marft.team import Team
from marft.tools import build_tools, choose_tools
from marft.tools.config import McpConfig
from marft.types import MarftError, Split, Task
from marft.validation import suggestion

TASKS = 4  # tasks of each split that are looked at
PATIENCE = 8.0  # seconds for trying out a world: one that runs programs is slow


@dataclass(frozen=True)
class Prompt:
    """One prompt as it would be sent, in tokens, with the longest reply it must leave room for."""

    agent: str
    task: str
    tokens: int
    reply: int


@dataclass(frozen=True)
class Room:
    """Tokens of one agent's prompts: shortest and longest when the others say nothing, and when they say the most.

    `context` is what its model can read.
    """

    agent: str
    shortest: int
    longest: int
    fullest: int
    reply: int
    context: int


def check_prompts(team: Team, source: str, splits: Sequence[Split] = SPLITS) -> None:
    """Raise `MarftError` when an agent's prompt cannot fit the context even if nobody says anything.

    Also when an episode cannot begin, because the environment or D refuses the team.
    """
    try:
        tasks = _some_tasks(team.game.environment, splits)
    except MarftError as error:  # such as a set for evaluation only, asked for training tasks
        raise MarftError(f"{source}: environment: {error}") from error.__cause__
    for prompt in rehearse(team.stage, tasks, wordy=False, source=source):
        context = team.seats[prompt.agent].context
        if team.config.rollout.context_policy == "refuse" and prompt.tokens + prompt.reply > context:
            raise MarftError(
                f"{source}: model.context: agent '{prompt.agent}' reads {prompt.tokens} tokens in task '{prompt.task}' "
                f"and with a reply of rollout.sampling.max_tokens {prompt.reply} needs more than the context of "
                f"{context}; shorten its profile or the task, or lower max_tokens"
            )


def rooms(team: Team, source: str) -> list[Room]:
    """What every agent's prompts take, over a few training and held-out tasks."""
    endless = {name: replace(seat, context=2**31) for name, seat in team.seats.items()}
    unbounded = replace(team.stage, seats=endless, context_policy="refuse")
    tasks = _some_tasks(team.game.environment, SPLITS)
    terse = rehearse(unbounded, tasks, wordy=False, source=source)
    wordy = rehearse(unbounded, tasks, wordy=True, source=source)
    found = []
    for agent in team.game.agents:
        mine = [each.tokens for each in terse if each.agent == agent.name]
        full = [each.tokens for each in wordy if each.agent == agent.name]
        if mine and full:  # D may never let an agent act
            context = team.seats[agent.name].context
            found.append(Room(agent.name, min(mine), max(mine), max(full), agent.sampling.max_tokens, context))
    return found


def rehearse(stage: Stage, tasks: Sequence[Task], wordy: bool, source: str) -> list[Prompt]:
    """The prompts of one episode per task in which every agent says nothing, or (`wordy`) all that it may.

    Later turns, feedback and what D passes on are the real ones; conditional edges all hold, and an orchestrator calls
    one member after another. Raises `MarftError` when an episode cannot begin.
    """
    game = _all_act(stage.game)
    d = game.dependency
    callers = {d.orchestrator: d.members} if isinstance(d, Orchestrated) else {}
    rehearsals = {name: _rehearsal(seat.chat, wordy, callers.get(name, ("",))) for name, seat in stage.seats.items()}
    seats = {name: replace(seat, generator=rehearsals[name]) for name, seat in stage.seats.items()}
    plans = [Plan(task, 0, (0, number), number) for number, task in enumerate(tasks)]
    episodes = result_of(rollout(replace(stage, game=game, seats=seats), plans))
    for episode in episodes:
        # What fails only after a message was said is for training to count, or for `check_environment` to name
        if episode.error and not episode.actions:
            raise MarftError(f"{source}: task '{episode.task.id}': {episode.error.who}: {episode.error.reason}")
    return [
        Prompt(each.speaker, tasks[each.order[0]].id, len(each.prompt_ids), each.sampling.max_tokens)
        for rehearsal in rehearsals.values()
        for each in rehearsal.requests
    ]


def _all_act(game: FlexMG) -> FlexMG:
    """The game with every condition on an edge fulfilled."""
    if isinstance(game.dependency, Static):
        return replace(game, dependency=Static(replace(game.dependency.graph, conditions=frozenset())))
    return game


def _rehearsal(chat: Chat, wordy: bool, openings: Sequence[str]) -> Scripted:
    """A generator that says one of `openings` after another and nothing more, or as much as it may."""
    words, opening = chat.encode(f"{NEUTRAL_TEXT} "), cycle(openings)

    def answer(request: Request) -> Answer:
        first, most = next(opening), request.sampling.max_tokens
        lead = chat.encode(f"{first} ") if first else ()
        return (lead + words * (most // len(words) + 1))[:most] if wordy else first

    return Scripted(chat, answer)


def check_world(game: FlexMG, source: str) -> None:
    """Raise `MarftError` unless the environment keeps the rules of the protocol with this team."""
    # Where all tasks read the same, what differs is hidden on purpose, as in relay
    one_prompt = len({task.prompt for task in _some_tasks(game.environment, SPLITS)}) == 1
    try:
        check_environment(game.environment, game.names, one_prompt=one_prompt, seconds=PATIENCE)
    except MarftError as error:
        raise MarftError(f"{source}: environment '{game.environment.name}': {error}") from error.__cause__


def check_offline(config: Config, source: str) -> tuple[FlexMG, list[str]]:
    """All that can be checked without weights and without a network; returns the game and what was left out.

    Raises `MarftError` naming the key, as training with this config would.
    """
    game = offline_game(config, source, whole=True)
    left_out = ["no weights were loaded: whether they are there and prompts fit is not known"]
    fetched = source_of(config.environment)
    if fetched:
        left_out.append(f"{fetched} was not fetched: only the environment's keys were checked")
    else:
        check_world(game, source)
    left_out += _check_tools(config, game.environment, source)
    for agent in config.team.agents:
        if agent.endpoint is None:
            left_out += _check_model(config, agent, source)
    return game, list(dict.fromkeys(left_out))


def _check_tools(config: Config, environment: Environment, source: str) -> list[str]:
    """Every tool that an agent names, but for MCP servers, which would have to be started."""
    named = {tool for agent in config.team.agents for tool in agent.tools}
    servers = [name for name in named & config.tools.keys() if isinstance(config.tools[name], McpConfig)]
    built = build_tools({name: config.tools[name] for name in named & config.tools.keys() - set(servers)}, source)
    built |= {name: (tool,) for name, tool in getattr(environment, "tools", {}).items()}
    built |= dict.fromkeys(servers, ())
    for agent in config.team.agents:
        choose_tools(agent.tools, built, f"{source}: team.agents.{agent.name}.tools")
    return [f"the server of tools.{name} was not started" for name in sorted(servers)]


def _check_model(config: Config, agent: AgentConfig, source: str) -> list[str]:
    """The agent's base model, as far as its name and shape tell."""
    model, reply = config.model_of(agent), config.sampling(agent).max_tokens
    looks_local = model.name.startswith((".", "/", "~")) or model.name.count("/") != 1
    if not is_known(model.name) and looks_local and model.name not in BUILT_IN:
        raise MarftError(
            f"{source}: model.name: '{model.name}' is neither a built-in model nor a folder with a config.json"
            f"{suggestion(model.name, list(BUILT_IN))}"
        )
    if config.rollout.engine == "vllm" and (model.tuning == "full" or model.quantise != "none"):
        raise MarftError(f"{source}: rollout.engine: vllm is given whole weights and adapters only; use engine: torch")
    if model.context is not None and reply >= model.context:
        raise MarftError(
            f"{source}: model.context: a reply of rollout.sampling.max_tokens {reply} leaves no room for a prompt in "
            f"{model.context} tokens"
        )
    if not is_known(model.name):
        return [f"the shape of {model.name} is not known here, so model.context and lora.targets were not checked"]
    try:
        crews_of(config)
    except MarftError as error:
        raise MarftError(f"{source}: {error}") from None
    return []


def notes(team: Team) -> list[str]:
    """What a person should know of this team on this machine, besides what would be an error."""
    found = []
    for name, what in (
        ("dropped", "training tasks left out, which are also held out"),
        ("ungradable", "tasks left out, which cannot be graded here"),
    ):
        if count := getattr(team.game.environment, name, 0):
            found.append(f"{count} {what}")
    holders = [team.game.environment, *(tool for seat in team.seats.values() for tool in seat.tools.values())]
    for walls in dict.fromkeys(each.runner.sandbox for each in holders if hasattr(each, "runner")):
        if walls == "auto":
            found.append(f"programs run in a sandbox: {'; '.join(WHAT.values())}")
        else:
            lacking = isolation().missing
            why = f"this system lacks {'; '.join(lacking)}" if lacking else "this system could do better: `auto`"
            found.append(f"programs run with limits only, so run none you do not trust; {why}")
    for name, place in team.endpoints.items():
        found.append(f"'{name}' is played by {place}, which was not asked; its tokens are counted as the first model's")
    credit = team.config.credit
    if credit.chain == "agent" and credit.allocation in ("per_action", "team_last"):
        found.append(
            f"with credit.chain 'agent' and credit.allocation '{credit.allocation}', what the team is paid as a whole "
            "reaches only whoever acted last; 'own_team' pays everybody"
        )
    anonymous = {agent.name for agent in team.game.agents if not agent.profile} - team.endpoints.keys()
    for backend in team.backends:
        if backend.base.chat.template.has_own_profile and anonymous & set(backend.agents):
            found.append(
                f"the chat template of {backend.base.name} gives agents without a profile a system prompt of its own"
            )
        if backend.base.chat.template.rewrites_history:
            found.append(
                f"the chat template of {backend.base.name} would drop or change an agent's earlier words; agents read "
                "what they said as they said it"
            )
    return found


def _some_tasks(environment: Environment, splits: Sequence[Split]) -> list[Task]:
    tasks = []
    for split in splits:
        size = environment.size(split)
        tasks += [environment.task(split, index) for index in range(TASKS if size is None else min(size, TASKS))]
    return tasks
