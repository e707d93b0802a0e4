"""Prompts are made of the ids that were sampled; the critic's views grow out of each other."""

from itertools import pairwise

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from builders import tiny_base
from marft.models.chat import Chat, Exchange
from marft.models.tiny import PRINTABLE, WORDS, build_tokenizer
from marft.types import MarftError

PIECES = ["<unk>", "<s>", "</s>", "h", "e", "l", "o", "he", "ll", "llo", "hello", "u", "a", "s", ":", "[", "]"]
TEMPLATE = "{% for m in messages %}[{{ m['role'][0] }}:{{ m['content'] }}</s>{% endfor %}[a:"


def merging_chat(template=TEMPLATE):
    """A tokenizer that would write "hello" as one token, however it was sampled."""
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=template
    )
    return Chat(tokenizer, (tokenizer.eos_token_id,))


def ids(*pieces):
    return tuple(PIECES.index(piece) for piece in pieces)


def test_the_tokenizer_would_merge_what_was_sampled_in_pieces():
    assert merging_chat().encode("hello") == ids("hello")  # or the next tests would prove nothing


@pytest.mark.parametrize("sampled", [("he", "llo"), ("h", "e", "ll", "o"), ("hello",)])
def test_an_earlier_reply_enters_as_the_ids_that_were_sampled(sampled):
    reply = ids(*sampled, "</s>")
    prompt = merging_chat().prompt("", [Exchange("u", reply), Exchange("hello")])
    before, after = ids("[", "u", ":", "u", "</s>", "[", "a", ":"), ids("[", "u", ":", "hello", "</s>", "[", "a", ":")
    assert prompt == (*before, *reply, *after)  # the end of the turn stands once


def test_a_reply_cut_at_its_longest_gets_the_end_of_turn_from_the_template():
    prompt = merging_chat().prompt("", [Exchange("u", ids("he")), Exchange("u")])
    assert prompt == (
        *ids("[", "u", ":", "u", "</s>", "[", "a", ":", "he"),
        *ids("</s>", "[", "u", ":", "u", "</s>", "[", "a", ":"),
    )


def test_a_reply_that_is_nothing_but_the_end_of_turn():
    prompt = merging_chat().prompt("", [Exchange("u", ids("</s>")), Exchange("u")])
    assert prompt == ids("[", "u", ":", "u", "</s>", "[", "a", ":", "</s>", "[", "u", ":", "u", "</s>", "[", "a", ":")


def test_several_replies_stay_in_their_own_places():
    said = [ids("h", "</s>"), ids("he", "</s>"), ids("llo")]
    prompt = merging_chat().prompt("o", [*(Exchange("u", each) for each in said), Exchange("e")])
    opening = ids("[", "s", ":", "o", "</s>")
    asked = ids("[", "u", ":", "u", "</s>", "[", "a", ":")
    turns = [token for reply in said for token in (*asked, *reply)]
    assert prompt == (*opening, *turns, *ids("</s>", "[", "u", ":", "e", "</s>", "[", "a", ":"))


def test_each_prompt_starts_with_the_previous_prompt_and_reply():
    chat = tiny_base().chat
    reply = chat.encode("ab") + chat.stop_ids
    first = chat.prompt("c", [Exchange("d")])
    second = chat.prompt("c", [Exchange("d", reply), Exchange("e")])
    assert second[: len(first) + len(reply)] == (*first, *reply)


def test_an_empty_profile_is_left_out():
    chat = tiny_base().chat
    assert chat.show(chat.prompt("", [Exchange("a")])).count("<|start|>") == 2
    assert chat.show(chat.prompt("b", [Exchange("a")])).count("<|start|>") == 3


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}</s>{% endif %}{% endfor %}",
        "{% for m in messages %}{{ m['content'].lower() }}</s>{% endfor %}",
    ],
)
def test_a_template_that_does_not_repeat_the_reply_raises(template):
    with pytest.raises(MarftError, match="chat template"):
        merging_chat(template).prompt("", [Exchange("u", ids("he")), Exchange("u")])


def test_a_later_joint_view_starts_with_the_earlier_one():
    chat = tiny_base(PRINTABLE).chat
    said = [("planner", "first 2+2"), ("environment to solver", "no"), ("solver", "")]
    speakers = ["planner", "environment to solver", "solver"]
    views = [chat.joint_view("task", said[:count], speakers[count]) for count in range(3)]
    for earlier, later in pairwise(views):
        assert later[: len(earlier)] == earlier
        assert len(later) > len(earlier)
    assert chat.show(views[1]) == "task\nplanner: first 2+2\nenvironment to solver:"


def test_the_tiny_tokenizer_round_trips_everything_printable():
    tokenizer = build_tokenizer(PRINTABLE)
    chat = Chat(tokenizer, (tokenizer.eos_token_id,))
    text = f"x{PRINTABLE}y the user's system,\n  assistants and environment: userland {' '.join(WORDS)}"
    assert chat.show(chat.encode(text)) == text
    assert len(chat.encode("user")) == 1  # a role costs one position…
    assert len(chat.encode("users")) == 5  # …and only as a whole word
    assert chat.decode((*chat.encode(" ab "), *chat.stop_ids)) == "ab"
    assert chat.encode("é") == (tokenizer.unk_token_id,)
    assert len({tokenizer.unk_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id}) == 3
