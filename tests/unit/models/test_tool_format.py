"""Calls are written and read in the chat template's own form, which is learnt by letting the template write one."""

import json

import pytest

from chat_templates import ADD, ALL, GEMMA, LLAMA, MISTRAL, QWEN, QWEN_THINKING, R1, SMOLLM2, chat_of
from marft.models.chat import Exchange
from marft.models.tool_format import HERMES, ToolFormat
from marft.tools.base import Call, Malformed

LLAMA_FORMAT = ToolFormat(True, "", "", "parameters")
CALL = Call("add", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("template", "learnt"),
    [
        (QWEN, ToolFormat(True, "<tool_call>", "</tool_call>")),
        (QWEN_THINKING, ToolFormat(True, "<tool_call>", "</tool_call>")),
        (LLAMA, LLAMA_FORMAT),
        (MISTRAL, ToolFormat(True, "[TOOL_CALLS]", "", listed=True)),
        (SMOLLM2, HERMES),
        (GEMMA, HERMES),
        (R1, HERMES),
    ],
)
def test_what_is_learnt_of_a_template(template, learnt):
    assert chat_of(template).template.tool_format == learnt


@pytest.mark.parametrize("name", ["qwen", "qwen-thinking", "llama", "mistral"])
def test_a_call_that_the_template_writes_is_read_back(name):
    chat = chat_of(ALL[name])
    call = {"id": "123456789", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    asked = {"role": "user", "content": "?"}
    opened = chat.tokenizer.apply_chat_template([asked], tools=[ADD.schema()], tokenize=False)
    messages = [asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
    reply = chat.tokenizer.apply_chat_template(messages, tools=[ADD.schema()], tokenize=False)[len(opened) :]
    reply = reply.removeprefix("<|start|>assistant\n").rstrip("\n")
    assert reply.endswith("<|end|>")
    assert chat.calls(chat.encode(reply)) == (CALL,)


@pytest.mark.parametrize("name", ["smollm2", "gemma", "r1"])
def test_a_template_without_tools_gets_them_described_with_a_form_that_is_read_back(name):
    chat = chat_of(ALL[name])
    described = chat.template.tool_format.describe([ADD])
    shown = json.loads(described.partition("<tools>\n")[2].partition("\n</tools>")[0])
    assert shown == {"name": "add", "description": "Adds two numbers.", "parameters": ADD.parameters}
    form = described.partition("<tool_call>")[2].partition("</tool_call>")[0].strip()
    assert form == '{"name": "…", "arguments": {…}}'
    filled = form.replace("…", "add", 1).replace("{…}", '{"a": 1, "b": 2}')
    assert HERMES.calls(f"<tool_call>{filled}</tool_call>") == (CALL,)


@pytest.mark.parametrize(
    "template",
    [
        # Calls that are no JSON object of a name and arguments
        QWEN.replace('{"name": "{{ c.function.name }}", "arguments": {{', "{{ c.function.name }}({{")
        .replace("| tojson }}}'", "| tojson }})'"),
        # The object lies within another
        QWEN.replace('{"name": "{{', '{"function": {"name": "{{').replace("| tojson }}}'", "| tojson }}}}'"),
        # Tools are shown, but a call cannot be written
        QWEN.replace("{% for c in m.tool_calls %}", "{{ raise_exception('no') }}{% for c in m.tool_calls %}"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_learnt_falls_back(template):
    assert template != QWEN
    chat = chat_of(template)
    assert chat.template.tool_format == HERMES
    assert "You can call these tools" in chat.show(chat.prompt("", [Exchange("?")], [ADD]))


def test_arguments_as_text_are_learnt_too():
    # As in templates that write the arguments as they are: a mapping cannot be added to a text
    template = QWEN.replace("{{ c.function.arguments | tojson }}", "{{ '' + c.function.arguments }}")
    assert chat_of(template).template.tool_format == ToolFormat(True, "<tool_call>", "</tool_call>")


@pytest.mark.parametrize(
    "text", ["", "4", "The call <tool call> is none.", '{"name": "add", "arguments": {}}', "<think>"]
)
def test_a_reply_without_a_call(text):
    assert HERMES.calls(text) == ()


def test_several_calls_with_words_around_them():
    text = (
        'First <tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call> and then\n'
        '<tool_call>{"arguments": {}, "name": "now"}</tool_call>'
    )
    assert HERMES.calls(text) == (CALL, Call("now", {}))


def test_the_marks_within_an_argument_are_text():
    code = "print('</tool_call><tool_call>{')"
    text = f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': code}})}</tool_call>"
    assert HERMES.calls(text) == (Call("python", {"code": code}),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>\n{"name": "add"}\n</tool_call>', "the call of 'add' has no object \"arguments\""),
        ("<tool_call>\n{}\n</tool_call>", "the call has no name"),
        ('<tool_call>{"arguments": {"a": 1}}</tool_call>', "the call has no name"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "the call has no name"),
        ('<tool_call>{"name": "add", "arguments": "1, 2"}</tool_call>', "has no object"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "has no object"),
        ('<tool_call>["add", 1]</tool_call>', "a call must be a JSON object"),
        ("<tool_call>add(1, 2)</tool_call>", "not valid JSON"),
        ("<tool_call></tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1', "not valid JSON"),  # cut off
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}', "does not end with </tool_call>"),  # cut off later
        ("<tool_call>", "not valid JSON"),
        ("<tool_call>" + "[" * 100_000, "not valid JSON"),
        ('<tool_call>{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "not valid JSON"),
    ],
)
def test_a_malformed_call_has_a_reason(text, reason):
    [found] = HERMES.calls(text)
    assert isinstance(found, Malformed)
    assert reason in found.reason
    assert len(found.reason) < 200


def test_a_malformed_call_does_not_hide_the_next():
    text = '<tool_call>{"name": add}</tool_call><tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    first, second = HERMES.calls(text)
    assert isinstance(first, Malformed)
    assert second == CALL


@pytest.mark.parametrize(
    "text",
    [
        '<think>I could write <tool_call>{"name": "x", "arguments": {}}</tool_call>.</think>\nIt is 4.',
        # The prompt opened these
        'I could write <tool_call>{"name": "x", "arguments": {}}</tool_call>.</think>\nIt is 4.',
        '<think>I could write <tool_call>{"name": "x", "arguments": {}}</tool_call>, but',  # cut off
    ],
)
def test_thoughts_call_nothing(text):
    assert HERMES.calls(text) == ()


def test_a_call_after_thoughts():
    text = '<think>hm</think>\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    assert HERMES.calls(text) == (CALL,)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"name": "add", "parameters": {"a": 1, "b": 2}}', (CALL,)),
        (
            ' \n{"name": "add", "parameters": {"a": 1, "b": 2}}; {"name": "now", "parameters": {}}',
            (CALL, Call("now", {})),
        ),
        ('So: {"name": "add", "parameters": {}}', ()),  # talks about a call
        ('{"answer": 4}', ()),  # an answer in JSON
        ("{4}", ()),
        ("4", ()),
    ],
)
def test_calls_without_marks(text, found):
    assert LLAMA_FORMAT.calls(text) == found


@pytest.mark.parametrize(
    "text", ["{}", '{"name": "add"}', '{"parameters": {}}', '{"name": "add", "parameters": {"a": 1']
)
def test_malformed_calls_without_marks(text):
    [found] = LLAMA_FORMAT.calls(text)
    assert isinstance(found, Malformed)


def test_a_list_of_calls():
    listed = ToolFormat(True, "[TOOL_CALLS]", "", listed=True)
    text = (
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "now", "arguments": {}}, {"name": "x"}]'
    )
    first, second, third = listed.calls(text)
    assert (first, second) == (CALL, Call("now", {}))
    assert isinstance(third, Malformed)
