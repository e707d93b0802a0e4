"""Whatever a model writes as a call, it reads an answer; what it may call is what its config says."""

import asyncio

import pytest

from marft.tools import build_tools, choose_tools
from marft.tools.base import Call, Malformed, ToolError, ToolSpec, answer
from marft.tools.config import CalculatorConfig, McpConfig, SearchConfig
from marft.types import MarftError
from marft.validation import validate

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": ["number", "null"]},
        "c": {"type": "string", "enum": ["x", "y"]},
        "d": {"type": "array"},
        "e": {"type": "boolean"},
        "f": {"type": "object"},
        "g": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "required": ["a"],
}


class Odd:
    """A tool that does as it is told."""

    def __init__(self, does=lambda arguments: "fine", parameters=SCHEMA, seconds=5.0, name="odd"):
        self.spec = ToolSpec(name, "Odd.", parameters, seconds)
        self.does = does

    async def call(self, arguments):
        result = self.does(arguments)
        return await result if asyncio.iscoroutine(result) else result


def told(tool, call, **settings):
    return asyncio.run(answer({tool.spec.name: tool}, call, **settings))


def raises(error):
    def does(arguments):
        raise error

    return Odd(does)


def test_the_result_is_told():
    assert told(Odd(lambda arguments: f"got {arguments['a']}"), Call("odd", {"a": 3})) == "got 3"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "error: odd: the argument 'a' is missing"),
        ({"a": "3"}, "error: odd: 'a' must be of type integer, not \"3\""),
        ({"a": True}, "error: odd: 'a' must be of type integer, not true"),
        ({"a": 1.5}, "error: odd: 'a' must be of type integer, not 1.5"),
        ({"a": None}, "error: odd: 'a' must be of type integer, not null"),
        ({"a": 1, "b": "x"}, "error: odd: 'b' must be of type number or null, not \"x\""),
        ({"a": 1, "c": "z"}, 'error: odd: \'c\' must be one of ["x", "y"], not "z"'),
        ({"a": 1, "d": "z"}, "must be of type array"),
        ({"a": 1, "e": 1}, "must be of type boolean"),
        ({"a": 1, "f": [1]}, "must be of type object"),
        ({"a": 1, "query": 2}, "error: odd: there is no argument 'query'; known here: a, b, c, d, e, f, g"),
    ],
)
def test_arguments_that_do_not_fit_the_schema(arguments, says):
    assert says in told(Odd(), Call("odd", arguments))


@pytest.mark.parametrize(
    "arguments",
    [{"a": 1}, {"a": 2.0}, {"a": 1, "b": None}, {"a": 1, "b": 0.5, "c": "x", "d": [], "e": False, "f": {}, "g": [1]}],
)
def test_arguments_that_fit(arguments):
    assert told(Odd(), Call("odd", arguments)) == "fine"


def test_unknown_arguments_where_the_schema_allows_them():
    assert told(Odd(parameters={"type": "object", "additionalProperties": True}), Call("odd", {"z": 1})) == "fine"
    assert "no argument 'z'" in told(Odd(parameters={"type": "object"}), Call("odd", {"z": 1}))


def test_a_call_of_no_tool_and_a_call_that_is_none():
    assert told(Odd(), Call("od", {})) == "error: there is no tool 'od'; did you mean 'odd'?"
    assert told(Odd(), Malformed("the call has no name")) == "error: the call has no name"


def test_what_a_tool_raises_is_told():
    assert told(raises(ToolError("no such page")), Call("odd", {"a": 1})) == "error: no such page"
    assert told(raises(ValueError("boom")), Call("odd", {"a": 1})) == "error: odd failed: ValueError: boom"
    assert told(raises(TimeoutError("its own")), Call("odd", {"a": 1})) == "error: odd failed: TimeoutError: its own"


def test_a_mistake_of_the_user_s_ends_the_episode():
    with pytest.raises(MarftError, match="no sandbox"):
        told(raises(MarftError("no sandbox")), Call("odd", {"a": 1}))


def test_a_tool_that_hangs_is_given_up():
    hangs = Odd(lambda arguments: asyncio.sleep(60), seconds=0.05)
    assert told(hangs, Call("odd", {"a": 1})) == "error: odd did not finish within 0.05 seconds"


def test_a_cancellation_propagates():
    async def cancelled():
        task = asyncio.ensure_future(answer({"odd": Odd(lambda arguments: asyncio.sleep(60))}, Call("odd", {"a": 1})))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_a_long_result_is_cut_and_says_so():
    long = Odd(lambda arguments: "x" * 41)
    assert told(long, Call("odd", {"a": 1}), limit=41) == "x" * 41
    assert told(long, Call("odd", {"a": 1}), limit=40) == "x" * 40 + "\n[cut: the first 40 of 41 characters]"
    assert len(told(raises(ToolError("y" * 99999)), Call("odd", {"a": 1}))) < 5000


def test_half_a_surrogate_pair_reaches_no_tokenizer():
    assert told(Odd(lambda arguments: "a\ud800b"), Call("odd", {"a": 1})) == "a?b"
    told(Odd(), Call("\udfff", {})).encode("utf8")


def test_which_tools_an_agent_has(tmp_path):
    (tmp_path / "a.txt").write_text("A text.")
    built = build_tools({"docs": SearchConfig(path=str(tmp_path)), "sums": CalculatorConfig()})
    assert list(choose_tools(["calculator", "docs", "sums"], built, "key")) == ["calculator", "docs", "sums"]
    assert choose_tools([], built, "key") == {}
    with pytest.raises(MarftError, match=r"^key: there is no tool 'doc'; did you mean 'docs'\?"):
        choose_tools(["doc"], built, "key")
    with pytest.raises(MarftError, match=r"no tool 'calculater'; did you mean 'calculator'\?"):
        choose_tools(["calculater"], built, "key")
    with pytest.raises(MarftError, match="two tools are called 'docs'"):
        choose_tools(["docs", "docs"], built, "key")
    theirs = {**built, "both": (Odd(name="one"), Odd(name="two"))}
    assert list(choose_tools(["both"], theirs, "key")) == ["one", "two"]


def test_a_fault_names_the_entry():
    with pytest.raises(MarftError, match=r"^c.yaml: tools.docs.path: /nowhere: there is no such folder or file"):
        build_tools({"docs": SearchConfig(path="/nowhere")}, "c.yaml")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "give either `command`"),
        ({"command": "x", "url": "http://x"}, "give either `command`"),
        ({"url": "http://x", "args": ["y"]}, "go with `command`"),
        ({"comand": "x"}, "unknown key 'comand'; did you mean 'command'?"),
        ({"command": "x", "seconds": 0}, "seconds"),
    ],
)
def test_a_server_s_keys(given, says):
    with pytest.raises(MarftError, match=says.replace("?", r"\?")):
        validate(McpConfig, given, "c.yaml")
