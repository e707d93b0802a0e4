"""Play: who reads what, who is paid for what, and what happens when something goes wrong."""

import asyncio
import math

import pytest

from builders import World, agent, policy_of, stage_of, tiny_base
from marft.environments.base import Outcome
from marft.game.dependency import Graph, chain, graph, parallel
from marft.game.flexmg import FlexMG
from marft.generate.scripted import Scripted
from marft.generate.torch_engine import TorchEngine
from marft.models.tiny import PRINTABLE
from marft.rollout import Plan, play, rollout
from marft.types import Failure, MarftError, Task

BASE = tiny_base(PRINTABLE)
CHAT = BASE.chat
TASK = Task("t", "TASK")


def say_own_name(asked):
    return f"from {asked.adapter}"


def stage(agents, dependency, world=None, answers=say_own_name, turns=1, **rules):
    game = FlexMG(tuple(agents), dependency, world or World(turns=turns), turns)
    return stage_of(game, CHAT, Scripted(CHAT, answers), **rules)


def agents_called(*names, **settings):
    return [agent(name, **{"max_tokens": 40, **settings}) for name in names]


def plan(sample=0, order=0, **settings):
    return Plan(TASK, sample, (0, order, sample), order, **settings)


def run(scene, **settings):
    return asyncio.run(play(scene, plan(**settings)))


def prompts(episode):
    """What each action's agent read, as text, by (agent, turn)."""
    return {(each.agent, each.turn): CHAT.show(each.prompt_ids) for each in episode.actions}


# ---- who reads what


def test_chain_each_reads_those_before_it_and_nobody_else():
    episode = run(stage(agents_called("ann", "bob", "cy"), chain(("ann", "bob", "cy"))))
    read = prompts(episode)
    for reader, heard in (("ann", set()), ("bob", {"ann"}), ("cy", {"ann", "bob"})):
        assert {name for name in ("ann", "bob", "cy") if f"{name}: from {name}" in read[reader, 0]} == heard
    assert [each.parents for each in episode.actions] == [(), (0,), (0, 1)]
    assert [each.text for each in episode.actions] == ["from ann", "from bob", "from cy"]
    assert episode.error is None


def test_parallel_agents_read_nothing_of_each_other_and_may_speak_at_once():
    together = []

    async def meet(asked):
        together.append(asked.adapter)
        while len(together) < 2:  # hangs unless both are asked before either answers
            await asyncio.sleep(0)
        return say_own_name(asked)

    episode = run(stage(agents_called("ann", "bob"), parallel(), answers=meet, deadline=5))
    assert episode.error is None
    assert not any("from" in text for text in prompts(episode).values())
    assert [each.parents for each in episode.actions] == [(), ()]


def test_a_graph_is_played_in_its_own_order():
    scene = stage(agents_called("ann", "bob", "cy"), graph([("cy", "ann"), ("cy", "bob")]))
    episode = run(scene)
    assert [each.agent for each in episode.actions] == ["cy", "ann", "bob"]
    assert [each.parents for each in episode.actions] == [(), (0,), (0,)]
    read = prompts(episode)
    assert "cy: from cy" in read["ann", 0]
    assert "cy: from cy" in read["bob", 0]
    assert "from ann" not in read["bob", 0]


def test_recall_reads_the_turn_before_and_only_that():
    def answer(asked):
        turn = asked.seed[-1]
        return f"{asked.adapter}{turn}"

    scene = stage(agents_called("ann", "bob"), graph([], recall=[("ann", "bob")]), answers=answer, turns=3)
    episode = run(scene)
    read = prompts(episode)
    assert "ann" not in read["bob", 0]
    assert "ann: ann0" in read["bob", 1]
    assert "ann1" not in read["bob", 1]  # said in this very turn
    assert "ann: ann1" in read["bob", 2]
    assert not any("bob" in read["ann", turn] for turn in range(3))
    # actions: ann0 bob0 ann1 bob1 ann2 bob2
    assert [each.parents for each in episode.actions] == [(), (), (), (0,), (), (2,)]


def test_dependency_may_change_every_turn_and_let_some_rest():
    def d(state, turn):
        return Graph(frozenset([("ann", "bob")])) if turn == 0 else Graph(frozenset(), acting=("bob",))

    world = World(pay=lambda said: 1.0, turns=2)
    episode = run(stage(agents_called("ann", "bob"), d, world, turns=2))
    assert [(each.agent, each.turn) for each in episode.actions] == [("ann", 0), ("bob", 0), ("bob", 1)]
    assert [each.reward for each in episode.actions] == [0, 1, 1]


def test_the_task_is_read_once_and_only_by_those_who_may():
    team = [*agents_called("ann"), *agents_called("bob", sees_task=False)]
    episode = run(stage(team, chain(("ann", "bob")), turns=2))
    read = prompts(episode)
    assert [text.count("TASK") for text in (read["ann", 0], read["ann", 1])] == [1, 1]  # from the history
    assert "TASK" not in read["bob", 0] + read["bob", 1]


def test_profiles_and_observations_reach_their_own_agent_only():
    world = World(observe=lambda said, name: f"secret of {name} {len(said)}", turns=2)
    team = [agent("ann", profile="PA", max_tokens=40), agent("bob", profile="PB", max_tokens=40)]
    read = prompts(run(stage(team, parallel(), world, turns=2)))
    for name, other in (("ann", "bob"), ("bob", "ann")):
        assert f"secret of {name} 0" in read[name, 0]
        assert f"secret of {name} 1" in read[name, 1]
        assert f"secret of {other}" not in read[name, 1]
        assert (f"P{name[0].upper()}" in read[name, 0], f"P{other[0].upper()}" in read[name, 0]) == (True, False)


def test_own_earlier_replies_stay_as_the_ids_that_were_sampled():
    odd = CHAT.tokenizer.convert_tokens_to_ids(["<unk>", "h", "<pad>", "i"])  # no text gives these ids back
    answers = [[*odd, *CHAT.stop_ids], "second", odd]
    episode = run(stage(agents_called("ann"), parallel(), answers=answers, turns=3))
    first, second, third = episode.actions
    asked = (*first.prompt_ids, *first.token_ids)
    assert second.prompt_ids[: len(asked)] == asked
    asked = (*second.prompt_ids, *second.token_ids)
    assert third.prompt_ids[: len(asked)] == asked
    assert third.token_ids == tuple(odd)
    assert third.stop == "length"
    assert first.text == "hi"


def test_the_critic_reads_everything_said_before_and_nothing_after():
    world = World(observe=lambda said, name: f"sees{name}{len(said)}", over=lambda said: False)
    episode = run(stage(agents_called("ann", "bob"), parallel(), world, turns=2))
    views = [CHAT.show(each.joint_ids) for each in episode.actions]
    world_says = "\nenvironment to ann: seesann{0}\nenvironment to bob: seesbob{0}"
    start = "TASK" + world_says.format(0)
    said = "\nann: from ann\nbob: from bob"
    assert views[0] == f"{start}\nann:"
    assert views[1] == f"{start}\nann: from ann\nbob:"
    assert views[2] == f"{start}{said}{world_says.format(1)}\nann:"
    assert CHAT.show(episode.final_joint_ids["bob"]) == f"{start}{said}{world_says.format(1)}{said}\nend:"


# ---- who is paid


def test_per_agent_rewards_sit_on_their_own_actions():
    world = World(pay=lambda said: {"bob": len(said) * 10, "ann": -1}, turns=2)
    episode = run(stage(agents_called("ann", "bob"), chain(("ann", "bob")), world, turns=2))
    assert [each.reward for each in episode.actions] == [-1, 10, -1, 20]
    assert episode.reward == 28


def test_a_team_reward_sits_on_the_turns_last_action():
    scene = stage(agents_called("ann", "bob"), graph([("bob", "ann")]), World(pay=lambda said: 2.5, turns=2), turns=2)
    episode = run(scene)
    assert [(each.agent, each.reward) for each in episode.actions] == [
        ("bob", 0), ("ann", 2.5), ("bob", 0), ("ann", 2.5)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pay", "words"),
    [
        (lambda said: {"eve": 1.0}, "'eve'"),
        (lambda said: math.nan, "nan"),
        (lambda said: {"ann": math.inf}, "inf"),
        (lambda said: "ten", "TypeError"),
        (lambda said: {}["x"], "KeyError"),
    ],
)
def test_a_reward_that_is_none_fails_the_episode_in_the_environments_name(pay, words):
    episode = run(stage(agents_called("ann"), parallel(), World(pay=pay)))
    assert episode.error.who == "environment"
    assert words in episode.error.reason
    assert (episode.terminated, episode.truncated) == (False, False)


def test_terminated_and_truncated_are_kept_apart():
    ends = run(stage(agents_called("ann"), parallel(), World(turns=2), turns=5))
    assert (len(ends.actions), ends.terminated, ends.truncated, ends.final_joint_ids) == (2, True, False, {})
    cut = run(stage(agents_called("ann"), parallel(), World(turns=9), turns=3))
    assert (len(cut.actions), cut.terminated, cut.truncated) == (3, False, True)
    assert cut.final_joint_ids

    class Cuts(World):
        def step(self, state, messages):
            return Outcome(state, 0.0, terminated=False, truncated=True, metrics={"success": 0.5})

    own = run(stage(agents_called("ann"), parallel(), Cuts(), turns=5))
    assert (len(own.actions), own.terminated, own.truncated, own.success) == (1, False, True, 0.5)
    assert own.final_joint_ids


def test_an_environment_may_be_asynchronous():
    class Slow(World):
        async def step(self, state, messages):
            await asyncio.sleep(0)
            return Outcome(state, 3.0)

    assert run(stage(agents_called("ann"), parallel(), Slow())).reward == 3.0


# ---- what goes wrong


def test_a_failing_agent_ends_the_episode_at_once_under_its_name():
    asked = []

    def answer(request):
        asked.append(request.adapter)
        if request.adapter == "ann":
            raise ConnectionError("the engine is gone")
        return "x"

    world = World()
    episode = run(stage(agents_called("ann", "bob"), chain(("ann", "bob")), world, answers=answer))
    assert asked == ["ann"]
    assert episode.error.who == "ann"
    assert "ConnectionError: the engine is gone" in episode.error.reason
    assert episode.actions == ()


def test_one_failure_leaves_the_other_episodes_alone():
    def answer(request):
        if request.order[0] == 1:
            raise ValueError("no")
        return "x"

    scene = stage(agents_called("ann"), parallel(), answers=answer)
    heard = []
    episodes = asyncio.run(rollout(scene, [plan(order=order) for order in range(3)], heard.append))
    assert [each.error is None for each in episodes] == [True, False, True]
    assert sorted(map(id, heard)) == sorted(map(id, episodes))


def test_a_failure_of_one_of_several_at_once_stops_the_others():
    stopped = []

    async def answer(request):
        if request.adapter == "ann":
            await asyncio.sleep(0)
            raise ValueError("no")
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(request.adapter)

    episode = run(stage(agents_called("ann", "bob"), parallel(), answers=answer, deadline=3))
    assert (episode.error.who, "ValueError: no" in episode.error.reason) == ("ann", True)
    assert stopped == ["bob"]


@pytest.mark.parametrize("method", ["reset", "observe", "step"])
def test_a_failing_environment_is_named(method):
    world = World()

    def fail(*_):
        raise MarftError("the world is flat")

    setattr(world, method, fail)
    episode = run(stage(agents_called("ann"), parallel(), world))
    assert episode.error == Failure("environment", "the world is flat")


def test_an_asynchronous_environment_that_fails_is_named_too():
    class Breaks(World):
        async def step(self, state, messages):
            raise OSError("disk")

    episode = run(stage(agents_called("ann"), parallel(), Breaks()))
    assert (episode.error.who, "disk" in episode.error.reason) == ("environment", True)


def test_a_dependency_function_that_fails_fails_the_episode():
    episode = run(stage(agents_called("ann"), lambda state, turn: Graph(frozenset([("eve", "ann")]))))
    assert episode.error.who == "environment"
    assert "eve" in episode.error.reason


async def never(asked):
    if asked.adapter == "ann":
        await asyncio.sleep(60)
    return "x"


def test_a_passed_deadline_names_the_one_who_was_waited_for():
    scene = stage(agents_called("ann", "bob"), parallel(), answers=never, deadline=0.05)
    assert run(scene).error.who == "ann"  # bob was asked later, and has answered
    assert "0.05 s" in run(scene).error.reason
    scene = stage(agents_called("bob", "ann"), chain(("bob", "ann")), answers=never, deadline=0.05)
    assert run(scene).error.who == "ann"

    class Slow(World):
        async def step(self, state, messages):
            await asyncio.sleep(60)

    assert run(stage(agents_called("bob"), parallel(), Slow(), deadline=0.05)).error.who == "environment"


def test_a_timeout_inside_an_agent_is_its_own_failure_and_not_the_deadline():
    def answer(request):
        raise TimeoutError("server")

    episode = run(stage(agents_called("ann"), parallel(), answers=answer))
    assert (episode.error.who, "server" in episode.error.reason) == ("ann", True)


def test_cancellation_propagates_and_never_becomes_an_episode():
    scene = stage(agents_called("ann"), parallel(), answers=never)
    ended = []

    async def leave():
        task = asyncio.create_task(rollout(scene, [plan(order=order) for order in range(3)], ended.append))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert ended == []


# ---- too long


def long_game(policy, room):
    """Three turns; each prompt grows by about 20 tokens."""
    team = [agent("ann", profile="P", max_tokens=8)]
    world = World(observe=lambda said, name: f"now {len(said)}", turns=3)
    return stage(
        team, parallel(), world, lambda asked: f"reply{asked.seed[-1]}", 3, context=room, context_policy=policy
    )


def test_truncated_history_keeps_the_profile_and_the_latest_and_is_counted():
    whole = run(long_game("truncate_history", 1000))
    lengths = [len(each.prompt_ids) for each in whole.actions]
    room = lengths[1] + 8  # the third prompt does not fit
    episode = run(long_game("truncate_history", room))
    assert episode.error is None
    assert [each.truncated_tokens > 0 for each in episode.actions] == [False, False, True]
    last = episode.actions[2]
    assert len(last.prompt_ids) + last.truncated_tokens == lengths[2]
    assert len(last.prompt_ids) + 8 <= room
    text = CHAT.show(last.prompt_ids)
    assert "system\nP<|end|>" in text
    assert "now 2" in text
    assert "now 1" in text
    assert "reply1" in text
    assert "now 0" not in text
    assert "reply0" not in text
    assert [each.prompt_ids for each in episode.actions[:2]] == [each.prompt_ids for each in whole.actions[:2]]


def test_what_cannot_be_shortened_further_fails_in_words():
    episode = run(long_game("truncate_history", 20))
    assert episode.error.who == "ann"
    assert "only 12 fit" in episode.error.reason


def test_refusing_leaves_the_prompt_whole_and_the_engine_says_why():
    base = tiny_base(PRINTABLE, context=60)
    scene = long_game("refuse", 60)
    assert len(run(scene).actions[2].prompt_ids) > 52  # whole, as the scripted generator takes anything
    engine = TorchEngine(policy_of(base, "ann"))
    game = scene.game
    episode = asyncio.run(play(stage_of(game, base.chat, engine, base.context), plan()))
    assert episode.error.who == "ann"
    assert "context of 60" in episode.error.reason


def test_the_critics_view_keeps_its_end_when_it_is_too_long():
    world = World(turns=9)
    episode = run(stage(agents_called("ann"), parallel(), world, turns=6, context=90))
    whole = run(stage(agents_called("ann"), parallel(), world, turns=6, context=900))
    for cut, full in zip(episode.actions, whole.actions, strict=True):
        assert cut.joint_ids == full.joint_ids[-50:]


# ---- what decides the draws


def engine_stage(slots=4):
    base = tiny_base()
    policy = policy_of(base, "ann", "bob")
    world = World(pay=lambda said: float(len(said[-1]["ann"])), turns=2)
    game = FlexMG((agent("ann"), agent("bob")), chain(("ann", "bob")), world, 2)
    return stage_of(game, base.chat, TorchEngine(policy, slots), base.context)


def plans():
    return [Plan(Task(f"t{n}", "ab"[n % 2]), s, (7, n, s), 3 * n + s) for n in range(3) for s in range(3)]


def test_the_same_seeds_give_the_same_episodes_bit_for_bit():
    one = asyncio.run(rollout(engine_stage(), plans()))
    two = asyncio.run(rollout(engine_stage(), plans()))
    assert one == two
    assert len({each.actions[0].token_ids for each in one}) > 5
    other = [Plan(each.task, each.sample, (8, *each.seed[1:]), each.order) for each in plans()]
    assert asyncio.run(rollout(engine_stage(), other)) != one


def test_company_and_order_change_no_tokens():
    together = asyncio.run(rollout(engine_stage(), plans()))
    backward = asyncio.run(rollout(engine_stage(slots=2), plans()[::-1]))[::-1]
    alone = [asyncio.run(play(engine_stage(), each)) for each in plans()]
    for one, two, three in zip(together, backward, alone, strict=True):
        spoken = [[each.token_ids for each in episode.actions] for episode in (one, two, three)]
        assert spoken[0] == spoken[1] == spoken[2]


def test_agents_and_turns_draw_independently():
    base = tiny_base()
    policy = policy_of(base, "both")
    team = tuple(agent(name, adapter="both", max_tokens=30) for name in ("ann", "bob"))
    game = FlexMG(team, parallel(), World(turns=2), 2)
    episode = asyncio.run(play(stage_of(game, base.chat, TorchEngine(policy), 256), plan()))
    one, two = episode.actions[:2]
    assert one.prompt_ids == two.prompt_ids
    assert one.token_ids != two.token_ids


def test_samples_of_a_group_start_from_one_state_and_tasks_from_different_ones():
    world = World(observe=lambda said, name: str(world.seeds[-1]))
    scene = stage(agents_called("ann"), parallel(), world)
    many = [Plan(Task(f"t{n}", "x"), s, (0, 5, n, s), 2 * n + s) for n in range(2) for s in range(2)]
    episodes = asyncio.run(rollout(scene, many))
    first = [CHAT.show(each.actions[0].prompt_ids) for each in episodes]
    assert first[0] == first[1] != first[2] == first[3]
    assert [each.group for each in episodes] == ["t0", "t0", "t1", "t1"]
    assert [each.sample for each in episodes] == [0, 1, 0, 1]


def test_greedy_plans_ask_for_greedy_replies():
    scene = stage(agents_called("ann"), parallel())
    run(scene, greedy=True)
    run(scene)
    assert [each.greedy for each in scene.seats["ann"].generator.requests] == [True, False]


def test_requests_carry_adapter_sampling_and_a_place_of_their_own():
    team = [agent("ann", adapter="shared", max_tokens=5), agent("bob", max_tokens=9)]
    scene = stage(team, chain(("ann", "bob")), turns=2, answers=lambda asked: "x")
    run(scene, order=4, sample=1)
    asked = scene.seats["ann"].generator.requests
    assert [each.adapter for each in asked] == ["shared", "bob", "shared", "bob"]
    assert [each.sampling.max_tokens for each in asked] == [5, 9, 5, 9]
    assert [each.order for each in asked] == sorted({each.order for each in asked})  # all different, as executed
    assert len({each.seed for each in asked}) == 4


# ---- words put into mouths


def test_scripted_words_replace_an_agent_and_nobody_else():
    scene = stage(agents_called("ann", "bob"), chain(("ann", "bob")), turns=2)
    episode = run(scene, scripted={"ann": ["lie", "lies"]})
    assert [each.text for each in episode.actions] == ["lie", "from bob", "lies", "from bob"]
    assert [each.adapter for each in scene.seats["ann"].generator.requests] == ["bob", "bob"]
    read = prompts(episode)
    assert "ann: lie" in read["bob", 0]
    assert "ann: lies" in read["bob", 1]
    assert "lie<|end|>" in read["ann", 1]
    assert episode.actions[0].token_ids == (*CHAT.encode("lie"), *CHAT.stop_ids)
    assert episode.error is None
