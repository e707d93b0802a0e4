"""textarena: who sits where, who reads what, who is paid, fixed opponents, and games that cannot be played here."""

import asyncio
import pickle
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("textarena")

from builders import agent, stage_of, tiny_base
from marft.environments.check import check_environment
from marft.environments.randomness import own_randomness
from marft.environments.textarena import TextArena, turn_order
from marft.environments.textarena_game import Line
from marft.environments.textarena_opponents import Situation, listed_moves, tit_for_tat
from marft.game.flexmg import FlexMG
from marft.generate.scripted import Scripted
from marft.models.tiny import PRINTABLE
from marft.rollout import Plan, play
from marft.types import MarftError

DUO = ("ann", "bob")
QUIET = {"game": "IteratedPrisonersDilemma-v0", "alternate_seats": False}


def start(world, index=0, agents=DUO, seed=0, split="train"):
    return world.reset(world.task(split, index), agents, seed)


def mover(state):
    return turn_order(state, 0).acting[-1]


def go_on(world, state, moves):
    """Play the moves, each by whoever is to move; the last outcome."""
    for move in moves:
        outcome = world.step(state, {mover(state): move})
        state = outcome.state
    return outcome


def everything_read(world, state, moves):
    """All that each agent is told while the moves are played, by agent."""
    read = dict.fromkeys(state.agents, "")
    for move in moves:
        name = mover(state)
        read[name] += "\n" + world.observe(state, name)
        state = world.step(state, {name: move}).state
    return read


# ---- the game as it is


def test_three_in_a_row_wins_and_the_loser_pays_for_it():
    world = TextArena(game="TicTacToe-v0")
    outcome = go_on(world, start(world), ["[0]", "[3]", "[1]", "[4]"])
    assert (outcome.terminated, outcome.truncated, outcome.rewards) == (False, False, 0.0)
    assert outcome.metrics == {"success": 0.0, "moves": 4.0, "invalid_moves": 0.0}
    outcome = go_on(world, outcome.state, ["2"])  # brackets are added where a move has none
    assert (outcome.terminated, outcome.truncated, outcome.rewards) == (True, False, {"ann": 1.0, "bob": -1.0})
    assert outcome.metrics == {"success": 1.0, "moves": 5.0, "invalid_moves": 0.0, "win_ann": 1.0, "win_bob": 0.0}


def test_a_full_board_is_a_draw():
    world = TextArena(game="TicTacToe-v0")
    # O X O / O X X / X O O: no three in a row
    outcome = go_on(world, start(world), [f"[{cell}]" for cell in (0, 1, 2, 4, 3, 5, 7, 6, 8)])
    assert outcome.rewards == {"ann": 0.0, "bob": 0.0}
    assert (outcome.metrics["success"], outcome.metrics["win_bob"]) == (0.5, 0.5)


def test_a_first_invalid_move_is_forgiven_and_a_second_loses():
    world = TextArena(game="TicTacToe-v0")
    state = start(world)
    once = go_on(world, state, ["[9]"])
    assert (mover(once.state), once.metrics["invalid_moves"]) == ("ann", 1.0)
    assert "attempted an invalid move" in world.observe(once.state, "ann")
    mended = go_on(world, once.state, ["[4]", "[4]", "[0]"])  # bob too may err once
    assert (mended.terminated, mended.metrics["invalid_moves"]) == (False, 2.0)
    twice = go_on(world, once.state, ["no idea"])
    assert (twice.terminated, twice.rewards) == (True, {"ann": -1.0})  # bob never moved, so nothing of his is paid
    assert (twice.metrics["invalid_moves"], twice.metrics["win_bob"]) == (2.0, 1.0)


def test_each_player_reads_its_rules_once_and_the_newest_board():
    world = TextArena(game="TicTacToe-v0")
    read = everything_read(world, start(world), ["[0]", "[3]", "[1]", "[4]"])
    assert read["ann"].count("You are Player 0 in Tic Tac Toe") == 1
    assert "You are Player 1" not in read["ann"]
    assert read["bob"].count("You are Player 1 in Tic Tac Toe") == 1
    assert read["ann"].count("Current Board") == read["bob"].count("Current Board") == 2  # one for each of their turns
    assert "[Player 1] [3]" in read["ann"]
    assert "[Player 0] [0]" not in read["ann"]  # its own words are in its conversation already
    after = go_on(world, start(world), ["[0]"]).state
    assert world.observe(after, "ann") == ""


def card(text):
    return text.partition("Your card is: '")[2][:1]


def test_a_card_stays_its_players_own():
    world = TextArena(game="KuhnPoker-v0", parameters={"max_rounds": 1})
    hands = Counter()
    for index in range(0, 60, 2):
        state = start(world, index)
        read = everything_read(world, state, ["[check]", "[check]"])
        hands[card(read["ann"]), card(read["bob"])] += 1
        assert all(text.count("Your card is") == 1 for text in read.values())
    assert len(hands) == 6  # every pair of different cards out of three
    assert all(one != other for one, other in hands)


def test_kuhn_poker_is_won_by_the_higher_card():
    world = TextArena(game="KuhnPoker-v0", parameters={"max_rounds": 1})
    for index in range(10):
        state = start(world, index)
        hands = {name: card(text) for name, text in everything_read(world, state, ["[bet]", "[call]"]).items()}
        best = max(DUO, key=lambda name: "JQK".index(hands[name]))
        outcome = go_on(world, state, ["[bet]", "[call]"])
        assert outcome.rewards == {name: 1.0 if name == best else -1.0 for name in DUO}


def test_prisoners_choose_without_reading_each_others_choice():
    world = TextArena(**QUIET, parameters={"num_rounds": 2})
    talk = go_on(world, start(world), ["let us cooperate", "yes"]).state
    chosen = go_on(world, talk, ["[Defect]"]).state
    assert mover(chosen) == "bob"
    assert "let us cooperate" in world.observe(go_on(world, start(world), ["let us cooperate"]).state, "bob")
    assert "[Defect]" not in world.observe(chosen, "bob").replace("'[Cooperate]' or '[Defect]'", "")
    # ann earns 5 and 1, bob 0 and 1
    end = go_on(world, chosen, ["[Cooperate]", "a", "b", "[Defect]", "[Defect]"])
    assert end.rewards == {"ann": 1.0, "bob": -1.0}


# ---- seats


def test_seats_go_round_with_the_tasks_on_one_deal():
    world = TextArena(game="KuhnPoker-v0", parameters={"max_rounds": 1})
    for index in range(0, 20, 2):
        hands = []
        for swapped in (0, 1):
            state = start(world, index + swapped)
            hands.append(
                {name: card(text) for name, text in everything_read(world, state, ["[bet]", "[call]"]).items()}
            )
        assert hands[0] == {"ann": hands[1]["bob"], "bob": hands[1]["ann"]}
    first = [mover(start(world, index)) for index in range(4)]
    assert first[:2] == first[2:]
    assert set(first) == {"ann", "bob"}
    fixed = TextArena(game="TicTacToe-v0", alternate_seats=False)
    assert [mover(start(fixed, index)) for index in range(4)] == ["ann"] * 4


def test_three_players_each_begin_once_in_three_tasks():
    world = TextArena(game="ThreePlayerTicTacToe-v0")
    assert {mover(start(world, index, ("a", "b", "c"))) for index in range(3)} == {"a", "b", "c"}


def test_advisers_speak_first_and_the_last_agent_of_a_seat_moves():
    world = TextArena(game="TicTacToe-v0", seats={0: ["coach", "ann"], 1: "bob"}, alternate_seats=False)
    state = start(world, agents=("ann", "bob", "coach"))
    graph = turn_order(state, 0)
    assert graph.order(("ann", "bob", "coach")) == ("coach", "ann")
    assert graph.parents("ann") == ("coach",)
    assert world.observe(state, "coach") == world.observe(state, "ann") != ""
    state = world.step(state, {"coach": "[8]", "ann": "[0]"}).state
    assert "placed their symbol (O) in cell 0" in world.observe(state, "bob")
    assert "[8]" not in world.observe(state, "bob").partition("Available")[0]
    state = world.step(state, {"bob": "[3]"}).state
    assert "[Player 0] [0]" in world.observe(state, "coach")  # said by its partner, so not in its own conversation
    end = go_on(world, world.step(state, {"coach": "", "ann": "[1]"}).state, ["[4]", "[2]"])
    assert end.rewards == {"ann": 1.0, "bob": -1.0}  # once for the seat, on the agent that moved
    assert end.metrics["win_coach"] == 1.0


def test_words_of_other_seats_are_not_heard_and_a_turn_without_the_mover_changes_nothing_in_the_game():
    world = TextArena(game="TicTacToe-v0")
    state = start(world)
    both = world.step(state, {"ann": "[0]", "bob": "[1]"}).state
    assert (mover(both), [move.text for move in both.moves]) == ("bob", ["[0]"])
    idle = world.step(state, {"bob": "[1]"})
    assert (idle.terminated, idle.state.moves, mover(idle.state)) == (False, (), "ann")


def test_only_the_wanted_part_of_a_message_reaches_the_game():
    world = TextArena(game="TicTacToe-v0", answer="last_line")
    state = go_on(world, start(world), ["The corner [8] is tempting.\n[4]"]).state
    assert "tempting" not in world.observe(state, "bob")
    assert "in cell 4" in world.observe(state, "bob")


# ---- rewards


LOST_BY_ANN = ["[0]", "[3]", "[1]", "[4]", "[8]", "[5]"]  # bob has 3, 4, 5


@pytest.mark.parametrize(
    ("reward", "paid", "sides"),
    [
        ("own", {"ann": -1.0, "bob": 1.0}, {"ann": "player 0", "bob": "player 1"}),
        ("winner", {"ann": 0.0, "bob": 1.0}, {"ann": "player 0", "bob": "player 1"}),
        ("team_mean", 0.0, {"ann": "team", "bob": "team"}),
    ],
)
def test_rewards_and_sides(reward, paid, sides):
    world = TextArena(game="TicTacToe-v0", reward=reward)
    outcome = go_on(world, start(world), LOST_BY_ANN)
    assert outcome.rewards == paid
    assert world.sides(outcome.state) == sides


def test_success_is_the_named_agents():
    world = TextArena(game="TicTacToe-v0", success_of="bob")
    assert go_on(world, start(world), LOST_BY_ANN).metrics["success"] == 1.0


@pytest.mark.parametrize(
    ("cells", "own", "mean"),
    [
        ([20, 5, 21, 6, 15, 10, 16, 11], {"ann": -1.0, "bob": -1.0}, -1.0),  # the opponent takes 0, 1, 2, 3
        ([20, 5, 21, 6, 22, 10, 23], {"ann": 1.0, "bob": -1.0}, 0.0),  # ann has 20, 21, 22, 23: (1 - 1) / 2
    ],
)
def test_a_team_against_an_opponent_is_paid_the_mean_of_its_seats(cells, own, mean):
    # four in a row on a board of 5 x 5, cells counted along the rows
    for reward, paid in (("own", own), ("team_mean", mean)):
        world = TextArena(game="ThreePlayerTicTacToe-v0", opponents={2: "first"}, reward=reward, alternate_seats=False)
        outcome = go_on(world, start(world), [f"[{cell}]" for cell in cells])
        assert (outcome.terminated, outcome.rewards) == (True, paid)


def test_a_long_game_is_cut_and_not_paid():
    world = TextArena(game="TicTacToe-v0", max_moves=3)
    outcome = go_on(world, start(world), ["[0]", "[3]", "[1]"])
    assert (outcome.terminated, outcome.truncated, outcome.rewards) == (False, True, 0.0)


def test_a_game_that_goes_on_with_nobody_left_in_it_is_cut():
    # textarena eliminates the only player for its third invalid move and would then look for the next one for ever
    world = TextArena(game="PublicGoodsGame-v0", parameters={"communication_turns": 1})
    outcome = go_on(world, start(world, agents=("ann",)), ["hello", "no number", "no number"])
    assert not outcome.truncated
    outcome = go_on(world, outcome.state, ["no number"])
    assert (outcome.terminated, outcome.truncated, outcome.metrics["invalid_moves"]) == (False, True, 3.0)


# ---- purity


def test_a_game_depends_on_its_task_and_nothing_else():
    world = TextArena(game="SimpleNegotiation-v0")
    rules = [world.observe(start(world, index, seed=seed), "ann") for index in (0, 2) for seed in (0, 7)]
    assert rules[0] == rules[1] != rules[2] == rules[3]
    assert world.observe(start(world, 0, split="heldout"), "ann") not in rules
    again = pickle.loads(pickle.dumps(world))
    assert again.observe(start(again), "ann") == rules[0]


@pytest.mark.parametrize(
    ("game", "moves"),
    [  # both draw at random as they go on: cards for the next round, who speaks next
        ("KuhnPoker-v0", ["[bet]", "[fold]", "[check]", "[check]", "[bet]", "[call]"]),
        ("SecretMafia-v0", ["[1]", "[2]", "[0]", "hello", "[3]", "I see", "[4]"] * 4),
    ],
)
def test_going_on_with_a_live_game_is_playing_its_moves_again(game, moves):
    agents = DUO if game.startswith("Kuhn") else tuple("abcdef")
    live = TextArena(game=game)
    state = start(live, agents=agents)
    for move in moves:
        before = state
        outcome = live.step(before, {mover(before): move})
        again = TextArena(game=game).step(before, {mover(before): move})  # it has never seen this game
        assert again == outcome
        assert live.step(before, {mover(before): move}) == outcome  # its live game has gone on from here
        state = outcome.state
        if outcome.terminated:
            break
    assert len(state.moves) >= 6


def test_two_ways_on_from_one_position_do_not_meet():
    world = TextArena(game="TicTacToe-v0")
    state = go_on(world, start(world), ["[4]"]).state
    one = go_on(world, state, ["[0]"]).state
    two = go_on(world, state, ["[8]"]).state
    assert "in cell 0" in world.observe(one, "ann")
    assert "in cell 0" not in world.observe(two, "ann")
    assert go_on(world, two, ["[0]"]).metrics["invalid_moves"] == 0.0


def test_more_games_than_are_kept_live(monkeypatch):
    monkeypatch.setattr("marft.environments.textarena_game.MOST_LIVE", 2)
    world = TextArena(game="TicTacToe-v0", alternate_seats=False)
    states = [start(world, index) for index in range(5)]
    for move in ("[0]", "[3]", "[1]", "[4]", "[2]"):
        outcomes = [world.step(state, {mover(state): move}) for state in states]
        states = [outcome.state for outcome in outcomes]
    assert [outcome.rewards for outcome in outcomes] == [{"ann": 1.0, "bob": -1.0}] * 5


def test_playing_neither_reads_nor_moves_the_process_s_randomness():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    world = TextArena(game="KuhnPoker-v0", opponents={1: "random"})
    state = start(world, agents=("ann",))
    go_on(world, state, ["[check]"] if "check" in world.observe(state, "ann") else ["[fold]"])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_own_randomness_is_seeded_and_put_back_after_an_error():
    random.seed(1)
    before = random.getstate()
    drawn = []

    def fail():
        with own_randomness(5):
            drawn.append(random.random())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert drawn == [random.Random(5).random()]
    assert random.getstate() == before


def test_importing_and_playing_is_silent_and_the_module_itself_light():
    code = (
        "import sys, marft.environments.textarena as m\n"
        "assert 'textarena' not in sys.modules and 'torch' not in sys.modules\n"
        "import nltk; download = nltk.download\n"
        "world = m.TextArena(game='SettlersOfCatan-v0')\n"  # this one prints its board
        "state = world.reset(world.task('train', 0), ('a', 'b', 'c', 'd'), 0)\n"
        "assert nltk.download is download\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# ---- fixed opponents


def cheat(situation):
    random.random()  # an opponent's draws must not move the deal of later rounds
    return "[fold]" if "[fold]" in situation.moves else "[check]"


HERE = f"{__name__}:cheat"


def line(text, sender=-1, kind="GAME_BOARD"):
    return Line(sender, "GAME", text, kind)


@pytest.mark.parametrize(
    ("lines", "moves"),
    [
        ([line("Available Moves: '[0]', '[3]'")], ("[0]", "[3]")),
        ([line("reply with '[Cooperate]' or '[Defect]'.")], ("[Cooperate]", "[Defect]")),
        ([line("one vote in format [X]. Valid: [2], [4]", kind="GAME_MESSAGE")], ("[2]", "[4]")),
        ([line("Moves: [1]"), line("Moves: [2]"), line("nothing")], ("[2]",)),
        ([line("Moves: [1]"), line("[9]", sender=1, kind="PLAYER_ACTION")], ("[1]",)),
        ([line("say '[4]' for the centre", kind="PROMPT")], ()),
        ([line("Player 0, submitted move: '[bet]'.", kind="GAME_ACTION_DESCRIPTION")], ()),
    ],
)
def test_the_moves_a_game_lists(lines, moves):
    assert listed_moves(lines) == moves


def test_an_opponent_moves_up_to_the_teams_next_turn():
    world = TextArena(game="TicTacToe-v0", opponents={1: "first"})
    state = start(world, 0, ("ann",))  # the seat of ann begins
    assert state.moves == ()
    after = go_on(world, state, ["[4]"]).state
    assert [(move.player, move.text, move.agent) for move in after.moves] == [(0, "[4]", "ann"), (1, "[0]", "")]
    begun = start(world, 1, ("ann",))  # seats have gone round: the opponent begins
    assert [(move.player, move.text) for move in begun.moves] == [(0, "[0]")]
    won = go_on(world, begun, ["[4]", "[8]", "[6]"])  # it took 0, 1, 2
    assert (won.rewards, won.metrics["success"], won.metrics["moves"]) == ({"ann": -1.0}, 0.0, 5.0)


def test_the_last_listed_move():
    world = TextArena(game="TicTacToe-v0", opponents={1: "last"})
    assert go_on(world, start(world, 0, ("ann",)), ["[8]"]).state.moves[1].text == "[7]"


def test_a_random_opponent_is_legal_uniform_and_the_same_again_on_one_seed():
    world = TextArena(game="TicTacToe-v0", opponents={1: "random"})
    replies = [go_on(world, start(world, 0, ("ann",), seed), ["[4]"]).state.moves[1] for seed in range(400)]
    counts = Counter(move.text for move in replies)
    assert set(counts) == {f"[{cell}]" for cell in range(9) if cell != 4}
    assert all(abs(count - 50) < 33 for count in counts.values())  # five deviations: sqrt(400 * 1/8 * 7/8) = 6.6
    assert not any(move.refused for move in replies)
    again = go_on(world, start(world, 0, ("ann",), 3), ["[4]"]).state
    assert again.moves[1] == replies[3]


def test_random_opponents_play_secret_mafia_to_its_end():
    world = TextArena(game="SecretMafia-v0", opponents=dict.fromkeys(range(1, 6), "random"))
    for index in range(6):
        state = start(world, index, ("ann",), seed=index)
        for _ in range(60):
            outcome = world.step(state, {"ann": "[0] [1]"})
            state = outcome.state
            if outcome.terminated:
                break
        assert outcome.terminated
        assert set(state.rewards) <= {1.0, -1.0}
        assert outcome.metrics["success"] in (0.0, 1.0)


def test_tit_for_tat_cooperates_then_copies():
    world = TextArena(**QUIET, parameters={"num_rounds": 4}, opponents={1: "tit_for_tat"})
    state = start(world, agents=("ann",))
    for choice in ("[Cooperate]", "[Defect]", "[Cooperate]", "[Defect]"):
        state = go_on(world, state, ["hello", choice]).state
    played = [move.text for move in state.moves if not move.agent and move.text.startswith("[")]
    assert played == ["[Cooperate]", "[Cooperate]", "[Defect]", "[Cooperate]"]


def test_tit_for_tat_reads_the_seat_it_sits_on_and_not_what_players_say():
    moves = ("[Cooperate]", "[Defect]")
    said = line("Round 1 results:\nBoth players defected.", sender=0, kind="PLAYER_ACTION")
    result = line("Round 1 results:\nPlayer 0 cooperated, Player 1 defected.\n", kind="GAME_MESSAGE")
    assert tit_for_tat(Situation(0, (result, said), moves, random.Random(0))) == "[Defect]"
    assert tit_for_tat(Situation(1, (result, said), moves, random.Random(0))) == "[Cooperate]"


def test_a_users_opponent_may_draw_from_the_global_generator():
    mine = TextArena(game="KuhnPoker-v0", opponents={1: HERE}, alternate_seats=False)
    both = TextArena(game="KuhnPoker-v0", alternate_seats=False)
    state = start(mine, agents=("ann",))
    while state.rewards is None:
        moves = "[fold]" if "'[fold]'" in mine.observe(state, "ann").rpartition("available actions")[2] else "[check]"
        state = go_on(mine, state, [moves]).state
    alone = go_on(both, start(both), [move.text for move in state.moves]).state
    assert alone.heard == state.heard  # the same cards in all three rounds
    assert alone.rewards == state.rewards


# ---- mistakes


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "'game' is missing"),
        ({"game": "TicTacTo-v0"}, r"textarena has no 'TicTacTo-v0'; did you mean 'TicTacToe-v0'\?"),
        ({"game": "xyz"}, "textarena has no 'xyz'; write it as TicTacToe-v0"),
        (
            {"game": "IteratedPrisonersDilemma-v0", "parameters": {"rounds": 3}},
            r"IteratedPrisonersDilemma has no 'rounds'; did you mean 'num_rounds'\?",
        ),
        ({"game": "TicTacToe-v0", "opponents": {1: "randm"}}, r"no opponent 'randm'; did you mean 'random'\?"),
        ({"game": "TicTacToe-v0", "opponents": {1: "no_such:thing"}}, "there is no module 'no_such'"),
        ({"game": "TicTacToe-v0", "opponents": {1: "math:pi"}}, "'math:pi' is a float, not a function"),
        ({"game": "TicTacToe-v0", "opponents": {1: "tit_for_tat"}}, "tit_for_tat plays IteratedPrisonersDilemma"),
        ({"game": "TicTacToe-v0", "opponents": {-1: "random"}}, "opponents"),
        ({"game": "TicTacToe-v0", "seats": {0: "a"}, "opponents": {0: "random"}}, "seat 0 is held by the team"),
        ({"game": "TicTacToe-v0", "seats": {0: "a", 2: "b"}}, "they must be 0 to 1, each once"),
        ({"game": "TicTacToe-v0", "seats": {0: "a", 1: "a"}}, "'a' sits twice"),
        ({"game": "TicTacToe-v0", "seats": {0: "a", 1: []}}, "nobody sits on seat 1"),
    ],
)
def test_mistakes(keys, says):
    with pytest.raises(MarftError, match=says):
        TextArena(**keys)


def test_games_that_cannot_be_played_here_say_what_they_lack(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(
        MarftError, match="TwentyQuestions-v0 has a hosted model as judge or player: OpenRouter API key"
    ):
        TextArena(game="TwentyQuestions-v0")
    import nltk

    monkeypatch.setattr(nltk.data, "path", [])
    monkeypatch.setattr(nltk, "download", lambda *_, **__: pytest.fail("it went to the network"))
    with pytest.raises(MarftError, match=r"Wordle-v0 needs word lists: run `python -m nltk.downloader words"):
        TextArena(game="Wordle-v0")


def test_without_textarena_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(MarftError, match=r"textarena is not installed; install marft\[games\]"):
        TextArena(game="TicTacToe-v0")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="these games are written for Python 3.12")
def test_a_game_for_a_newer_python_says_so():
    with pytest.raises(MarftError, match=r"ReverseTicTacToe-v0 needs Python 3\.12 or later"):
        TextArena(game="ReverseTicTacToe-v0")


@pytest.mark.parametrize(
    ("keys", "agents", "says"),
    [
        ({}, ("a", "b", "c"), r"TicTacToe-v0 cannot be set up: .* \(with 3 players\)"),
        ({"opponents": {3: "first"}}, ("a",), "seat 3 is too high for a game of 2 players"),
        ({"seats": {0: "a", 1: "b"}}, ("a", "x"), "seats: no agent 'b' in the team"),
        ({"seats": {0: "a"}, "opponents": {1: "first"}}, ("a", "b"), "agent 'b' has no seat"),
        ({"success_of": "zoe"}, ("a", "b"), "success_of: no agent 'zoe'"),
    ],
)
def test_teams_that_do_not_fit(keys, agents, says):
    world = TextArena(game="TicTacToe-v0", **keys)
    with pytest.raises(MarftError, match=says):
        start(world, agents=agents)


def test_a_built_in_opponent_refuses_games_that_list_no_moves():
    world = TextArena(game="ConnectFour-v0", opponents={1: "random"})
    with pytest.raises(MarftError, match="ConnectFour-v0 lists none; write an opponent as module:function"):
        go_on(world, start(world, agents=("ann",)), ["[col 3]"])


# ---- through play


def played(world, agents, answers, turns=20, index=0):
    base = tiny_base(PRINTABLE, context=4000)
    generator = Scripted(base.chat, answers)
    game = FlexMG(tuple(agent(name, max_tokens=60) for name in agents), turn_order, world, turns)
    stage = stage_of(game, base.chat, generator, 4000)
    episode = asyncio.run(play(stage, Plan(world.task("train", index), 0, (0, index, 0), 0)))
    return episode, {
        name: "".join(base.chat.show(a.prompt_ids) for a in episode.actions if a.agent == name) for name in agents
    }


def rewards(episode):
    return [(action.agent, action.reward) for action in episode.actions]


def test_tic_tac_toe_through_play():
    episode, _ = played(TextArena(game="TicTacToe-v0"), DUO, ["[0]", "[3]", "[1]", "[4]", "[2]"])
    assert episode.error is None
    assert rewards(episode) == [("ann", 0), ("bob", 0), ("ann", 0), ("bob", -1), ("ann", 1)]
    assert episode.terminated
    assert [action.side for action in episode.actions[:2]] == ["player 0", "player 1"]


def test_kuhn_poker_through_play_keeps_cards_private():
    world = TextArena(game="KuhnPoker-v0", parameters={"max_rounds": 1})
    episode, read = played(world, DUO, ["[bet]", "[fold]"])
    assert episode.error is None
    cards = {name: card(text) for name, text in read.items()}
    assert cards["ann"] != cards["bob"]
    for name, other in (DUO, DUO[::-1]):
        assert f"card is: '{cards[name]}'" in read[name]
        assert f"card is: '{cards[other]}'" not in read[name]
    first = episode.actions[0].agent
    assert dict(rewards(episode)) == {name: 1.0 if name == first else -1.0 for name in DUO}


def test_secret_mafia_through_play():
    team = tuple("abcdef")
    world = TextArena(game="SecretMafia-v0", parameters={"discussion_rounds": 1})
    votes = iter(f"[Player {number % 6}]" for number in range(1000))
    episode, _ = played(world, team, votes, turns=200)
    assert episode.error is None
    assert episode.terminated
    last = {action.agent: index for index, action in enumerate(episode.actions)}
    for index, action in enumerate(episode.actions):
        assert abs(action.reward) == (1.0 if index == last[action.agent] else 0.0)


@pytest.mark.parametrize(
    ("keys", "agents", "messages"),
    [
        ({"game": "TicTacToe-v0"}, DUO, ["[0]", "[1]"]),
        ({"game": "TicTacToe-v0", "opponents": {0: "random"}, "answer": "tag"}, ("ann",), ["<answer>[3]</answer>"]),
        ({"game": "KuhnPoker-v0"}, DUO, ["[check]", "[bet]", "[call]"]),
        ({"game": "IteratedPrisonersDilemma-v0", "opponents": {1: "tit_for_tat"}}, ("ann",), ["[Defect]"]),
        ({"game": "SimpleNegotiation-v0"}, DUO, ["[Offer: 1 Wheat -> 1 Wood]", "[Accept]"]),
        ({"game": "SecretMafia-v0", "opponents": {0: "random", 3: "first"}}, tuple("abcd"), ["[1]", "[2]"]),
    ],
)
def test_it_keeps_the_rules_of_environments(keys, agents, messages):
    check_environment(TextArena(**keys), agents, messages=messages, one_prompt=True)


def test_its_d_says_so_in_another_world():
    with pytest.raises(MarftError, match="turn_order is the D of textarena games"):
        turn_order(object(), 0)
