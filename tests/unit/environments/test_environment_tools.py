"""tools: answers recomputed from the questions' own words, what is held out, and a search that finds the facts."""

import pickle
import re

import pytest

from marft.environments.check import check_environment
from marft.environments.tools import ASIDE, Tools
from marft.tools.calculator import evaluate, show
from marft.types import MarftError

NAME = r"[A-Z][a-z]+ [A-Z][a-z]+"


def play(world, task, message, agents=("a",)):
    return world.step(world.reset(task, agents, seed=0), dict.fromkeys(agents, message))


def tasks(world, split, count):
    return [world.task(split, index) for index in range(count)]


def answer_from_documents(world, prompt):
    """What a diligent agent finds out with the search alone, reading the passages as a person would."""
    names = re.findall(NAME, prompt.replace("Put the", "").replace("In which", "").replace("What does", ""))
    names = [name for name in names if not name.startswith("How")]
    facts = [text for name in names for found, text in world.tools["search"].find(name) if found == name]
    assert len(facts) == len(names) > 0
    if "town" in prompt:
        return re.search(r"lives in (\w+)", facts[0]).group(1)
    if "work as" in prompt:
        return re.search(r"works as a (\w+)", facts[0]).group(1)
    thing = re.match(r"How many ([a-z ]+?) do", prompt).group(1)
    return str(sum(int(re.search(rf"(\d+) {thing}", fact).group(1)) for fact in facts))


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_arithmetic_is_what_a_calculator_says(split):
    world = Tools(families=["arithmetic"], digits=6)
    assert world.tools == {}
    for task in tasks(world, split, 40):
        expression = re.match(r"What is (\d{6} \* \d{6} [+-] \d{6})\?", task.prompt).group(1)
        right = show(evaluate(expression))
        assert play(world, task, f"Let me see, 17.\n{right}").rewards == 1.0
        assert play(world, task, str(int(right) + 1)).rewards == 0.0


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("combined", [0.0, 1.0])
def test_lookups_are_answered_by_the_search_and_nothing_else(split, combined):
    world = Tools(families=["lookup"], people=60, combined=combined)
    kinds = set()
    for task in tasks(world, split, 60):
        right = answer_from_documents(world, task.prompt)
        assert play(world, task, f"I looked it up.\n{right}").metrics == {"success": 1.0, "answered": 1.0}
        assert right not in task.prompt
        kinds.add(right.isdigit())
    assert kinds == ({True} if combined else {True, False})


def test_the_question_itself_is_a_good_query():
    world = Tools(families=["lookup"])
    for task in tasks(world, "heldout", 60):
        found = [name for name, _ in world.tools["search"].find(task.prompt)]
        asked = [name for name, _ in world.tools["search"].documents if name in task.prompt]
        assert set(asked) <= set(found)


def test_no_question_stands_in_both_splits_and_no_person_either():
    world = Tools(families=["arithmetic"], digits=1)  # so few that the splits would meet
    train, held = ({task.prompt for task in tasks(world, split, 3000)} for split in ("train", "heldout"))
    assert not train & held
    # 9 * 9 * 9 * 2 questions, a tenth of them held out: 146, give or take five standard deviations of 11
    assert abs(len(held) - 9 * 9 * 9 * 2 / ASIDE) < 55
    world = Tools(families=["lookup"], people=40)
    people = {name for name, _ in world.tools["search"].documents}
    train, held = (
        {name for task in tasks(world, split, 300) for name in people if name in task.prompt}
        for split in ("train", "heldout")
    )
    assert train | held == people
    assert not train & held
    assert (len(train), len(held)) == (32, 8)


def test_tasks_depend_on_index_and_seeds_alone():
    one = [task.prompt for task in tasks(Tools(), "train", 20)]
    assert [task.prompt for task in reversed([Tools().task("train", n) for n in reversed(range(20))])] == one
    assert [task.prompt for task in tasks(pickle.loads(pickle.dumps(Tools())), "train", 20)] == one
    assert [task.prompt for task in tasks(Tools(seed=1), "train", 20)] != one
    documents = Tools().tools["search"].documents
    assert Tools(seed=1).tools["search"].documents == documents
    assert Tools(collection_seed=1).tools["search"].documents != documents
    assert [task.kind for task in tasks(Tools(), "train", 4)] == ["arithmetic", "lookup", "arithmetic", "lookup"]


@pytest.mark.parametrize(
    ("message", "right"),
    [
        ("{}", True),
        ("He lives in\n{}.", True),
        (" {} \n\n", True),
        ("He lives in {}", False),
        ("{}\nso", False),
        ("", False),
    ],
)
def test_a_word_must_stand_alone_on_the_last_line(message, right):
    world = Tools(families=["lookup"], combined=0.0)
    task = next(task for task in tasks(world, "train", 200) if "town" in task.prompt)
    for town in (task.data["answer"], task.data["answer"].lower()):
        outcome = play(world, task, message.format(town))
        assert outcome.metrics == {"success": float(right), "answered": float(bool(message))}


def test_the_answerer_and_what_votes():
    world = Tools(families=["arithmetic"], answerer="b")
    task = world.task("train", 0)
    right = task.data["answer"]
    state = world.reset(task, ("a", "b"), seed=0)
    outcome = world.step(state, {"a": "1", "b": f"{right}"})
    assert (outcome.rewards, outcome.terminated, outcome.answer) == (1.0, True, right)
    waits = world.step(state, {"a": right})
    assert (waits.rewards, waits.terminated) == (0.0, False)
    with pytest.raises(MarftError, match="answerer: no agent 'b'"):
        world.reset(task, ("a", "c"), seed=0)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"families": []}, "families"),
        ({"families": ["sums"]}, "families"),
        ({"people": 3}, "people"),
        ({"digts": 3}, r"unknown key 'digts'; did you mean 'digits'\?"),
    ],
)
def test_mistakes(keys, says):
    with pytest.raises(MarftError, match=says):
        Tools(**keys)


def test_it_keeps_the_rules_of_environments():
    world = Tools(people=40)
    check_environment(world, messages=[world.task("train", n).data["answer"] for n in range(3)])
