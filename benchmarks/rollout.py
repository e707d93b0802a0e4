"""How fast teams play: `python -m benchmarks.rollout [--part NAME] [--quick] [--json FILE]`.

- play: planner, then solver, on word problems, replies of mixed length; `marft`'s engine against transformers'
  `generate` called agent by agent in lock-step. Only tokens of replies count, never padding or what a finished row
  goes on drawing. Each play starts with new weights, as every iteration does: nothing is left in a cache.
- lengths: the same number of tokens in replies of mixed and of equal length.
- adapters: one batch of rows with four adapters, and with one.
- prompts: prompt tokens computed against those asked for, 8 replies per task, two turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks import workload
from benchmarks.peers import LockStep, plain_model
from benchmarks.players import PLANNER, SOLVER, Engine, Peer, Play, Spent, since
from benchmarks.roofline import Roofline, Work, roofline
from benchmarks.side_by_side import Table, interleave, machine, options, publish, verdict
from benchmarks.workload import RULES, Lengths, Size
from marft.generate.base import Reply, Usage
from marft.models.base import load_base
from marft.models.chat import Exchange
from marft.team import build_team

LOCK_STEP = "lock-step generate, an adapter each"
ADAPTERS = ("agent0", "agent1", "agent2", "agent3")


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    episodes: int
    lengths: Lengths
    rounds: int
    rules: int  # characters of rules in long role prompts
    tasks: int  # of the part `prompts`
    tokens: int  # replies' length in the parts `adapters` and `prompts`
    both_prompts: bool = True  # play with long role prompts too


FULL = Scale(32, Lengths(8, 128), 3, len(RULES), 4, 48)
QUICK = Scale(6, Lengths(2, 8), 1, 400, 1, 2, both_prompts=False)
TINY = Scale(4, Lengths(2, 6), 1, 60, 2, 4)


def play_tables(engine: Engine, scale: Scale, model: str, dtype: str, limits: Roofline) -> Iterator[Table]:
    """Useful tokens a second of the engine and of its peers, and how near each comes to the ceilings."""
    plain, tokenizer = plain_model(model, dtype)
    agents = (PLANNER, SOLVER)
    peers = {
        LOCK_STEP: LockStep(plain, tokenizer, agents),
        "the same, adapters merged, static cache": LockStep(plain, tokenizer, agents, merged=True, cache="static"),
    }
    players: dict[str, Engine | Peer] = {"marft": engine}
    players |= {name: Peer(peer, engine.chat, engine.work) for name, peer in peers.items()}
    lengths = scale.lengths.draw(scale.episodes, 2)
    for rules in (0, scale.rules) if scale.both_prompts else (0,):
        if rules:
            players = {name: players[name] for name in ("marft", LOCK_STEP)}
        short, whole = Play([[2, 2]] * scale.episodes, rules), Play(lengths, rules)
        for player in players.values():
            player.play(short)  # what is done once is done now
        runs: dict[str, Callable[[], float]] = {
            name: (lambda player=player, whole=whole: player.play(whole)) for name, player in players.items()
        }
        found = interleave(runs, scale.rounds, warmups=0)
        prompt = len(whole.planner_prompt(engine.chat, 0))
        rows = []
        for number, name in enumerate(players):
            row: dict[str, Any] = {"competitor": name, "useful tokens/s": found.median(name)}
            if number:
                against = found.ratio("marft", name)
                row |= {"marft / it": str(against)}
                row |= verdict(against.median, at_least=3.0) if number == 1 else {}
            rows.append(row)
        yield Table(
            f"Play: {scale.episodes} episodes, planner then solver, replies of {scale.lengths.low} to "
            f"{scale.lengths.high} tokens ({whole.tokens} in all), prompts from {prompt} tokens, {dtype}",
            rows,
        )
        yield ceilings({name: player.spent for name, player in players.items()}, limits)


def ceilings(spent: Mapping[str, Spent], limits: Roofline) -> Table:
    """Achieved FLOP/s and bytes/s of what had to be computed and read."""
    rows = []
    for name, each in spent.items():
        flops, moved = each.flops / each.seconds, each.bytes / each.seconds
        rows.append(
            {
                "competitor": name,
                "passes": each.passes,
                "ms a pass": 1e3 * each.seconds / each.passes if each.passes else None,
                "GFLOP/s": flops / 1e9,
                "of the ceiling": f"{flops / limits.flops:.0%}",
                "GB/s": moved / 1e9 if each.passes else None,
                "of ceiling": f"{moved / limits.bytes:.0%}" if each.passes else None,
            }
        )
    return Table("", rows, f"{limits}. Work: useful tokens and real prompt tokens only (see benchmarks/roofline.py).")


def lengths_table(engine: Engine, slots: int, scale: Scale) -> Table:
    """The engine's rate on mixed lengths against its rate on equal ones, with as many replies at a time as `slots`.

    Where there is a slot for every episode, the longest chain of two replies alone decides when play ends, and towards
    the end few rows are left in a pass. Where replies wait for slots, as in larger iterations, passes stay full.
    """
    mixed = Play(scale.lengths.draw(scale.episodes, 2))
    equal = replace(mixed, lengths=workload.level(mixed.lengths))
    engine.play(replace(mixed, lengths=[[2, 2]] * scale.episodes))
    found = interleave(
        {"mixed": lambda: engine.play(mixed), "equal": lambda: engine.play(equal)}, scale.rounds, warmups=0
    )
    against = found.ratio("mixed", "equal")
    rows = [
        {"lengths": f"mixed, {scale.lengths.low} to {scale.lengths.high}", "tokens/s": found.median("mixed"),
         "mixed / equal": str(against), **verdict(against.median, at_least=0.85)},
        {"lengths": f"equal, {equal.lengths[-1][0]} and {equal.lengths[-1][1]}", "tokens/s": found.median("equal")},
    ]  # fmt: skip
    title = (
        f"Mixed against equal lengths: {scale.episodes} episodes of two replies, {mixed.tokens} tokens, {slots} slots"
    )
    return Table(title, rows)


def adapters_table(engine: Engine, scale: Scale) -> Table:
    """One batch whose rows have four adapters against the same batch with one."""

    def run(adapters: Sequence[str]) -> float:
        async def reply(row: int) -> Reply:
            prompt = engine.chat.prompt("", [Exchange(workload.question(row))])
            return await engine.ask(prompt, adapters[row % len(adapters)], scale.tokens, (row,))

        replies = engine.run([reply(row) for row in range(scale.episodes)])
        return sum(len(each.token_ids) for each in replies) / engine.spent.seconds

    found = interleave({"four": lambda: run(ADAPTERS), "one": lambda: run(ADAPTERS[:1])}, scale.rounds)
    against = found.ratio("four", "one")
    rows = [
        {"adapters": 4, "tokens/s": found.median("four"), "four / one": str(against),
         **verdict(against.median, at_least=0.85)},
        {"adapters": 1, "tokens/s": found.median("one")},
    ]  # fmt: skip
    return Table(f"Adapters in one batch of {scale.episodes} rows, {scale.tokens} tokens each", rows)


def prompts_table(engine: Engine, scale: Scale) -> Table:
    """Prompt tokens computed against those asked for; nothing may be left once the weights have changed."""
    samples = 8

    async def episode(number: int, turns: int, agents: int) -> None:
        talks: dict[str, list[Exchange]] = {PLANNER: [], SOLVER: []}
        for turn in range(turns):
            said = ""
            for place, (adapter, role) in enumerate(((PLANNER, "planner"), (SOLVER, "solver"))[:agents]):
                heard = workload.FOLLOW_UP if turn else workload.question(number // samples)
                talks[adapter].append(Exchange(f"{heard}\n\nplanner: {said}" if said else heard))
                prompt = engine.chat.prompt(workload.profile(role, scale.rules), talks[adapter])
                reply = await engine.ask(prompt, adapter, scale.tokens, (number, turn, place))
                talks[adapter][-1] = replace(talks[adapter][-1], reply_ids=reply.token_ids)
                said = engine.chat.decode(reply.token_ids)

    def run(turns: int, agents: int = 2) -> Usage:
        before = engine.generator.usage
        engine.run([episode(number, turns, agents) for number in range(scale.tasks * samples)])
        return since(before, engine.generator.usage)

    rows = []
    for turns in (1, 2):
        used = run(turns)
        share = used.prompt_tokens_computed / used.prompt_tokens
        row: dict[str, Any] = {
            "turns": turns, "prompt tokens": used.prompt_tokens, "computed": used.prompt_tokens_computed,
            "share": share,
        }  # fmt: skip
        rows.append(row | (verdict(share, at_most=0.35) if turns == 2 else {}))
    first, again = (run(1, agents=1).prompt_tokens_computed for _ in range(2))
    note = (
        f"The planner's first turn on new weights, and on new ones again: {first} and {again} tokens computed; what "
        f"was kept of the old weights {'was dropped' if first == again else 'WAS USED'}."
    )
    return Table(f"Prompt tokens: {scale.tasks} tasks, {samples} replies each, long role prompts", rows, note)


def tables(given: Any, dtype: str, limits: Roofline) -> Iterator[Table]:
    """All parts, or the one asked for."""
    scale = TINY if given.model == "tiny" else QUICK if given.quick else FULL
    size = Size(agents=len(ADAPTERS))
    config = workload.experiment(size, given.model, dtype)
    base = workload.endless(load_base(config.model, "cpu"))
    engine = Engine(build_team(config, "benchmark", base), Work.of(base.model))
    scale = replace(scale, rounds=given.rounds or scale.rounds)
    wanted = given.part
    if wanted in (None, "play"):
        yield from play_tables(engine, scale, given.model, dtype, limits)
    if wanted in (None, "lengths"):
        few = max(scale.episodes // 2, 1)
        for slots in (config.rollout.slots, few):
            rollout = config.rollout.model_copy(update={"slots": slots})
            team = build_team(config.model_copy(update={"rollout": rollout}), "benchmark", base)
            yield lengths_table(Engine(team, Work.of(base.model)), slots, scale)
    if wanted in (None, "adapters"):
        yield adapters_table(engine, scale)
    if wanted in (None, "prompts"):
        yield prompts_table(engine, scale)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = options(__doc__, "fewer and shorter replies, one round, short role prompts in the part `play`")
    parser.add_argument("--part", choices=("play", "lengths", "adapters", "prompts"), help="only this part")
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    dtype = workload.resolve_dtype(given.dtype)
    limits = roofline(workload.torch_dtype(dtype))
    publish("rollout", machine(dtype, torch.get_num_threads()), tables(given, dtype, limits), given.json)


if __name__ == "__main__":
    main()
