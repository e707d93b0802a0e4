"""Search finds the passage that holds the words, whatever else a query holds."""

import asyncio
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from marft.tools.base import Call, ToolError, answer
from marft.tools.search import PASSAGE, Search, passages, read_documents
from marft.types import MarftError

DOCUMENTS = [
    ("whales", "Blue whales are the largest animals. They eat krill."),
    ("ants", "Ants live in colonies. Some animals eat ants."),
    ("krill", "Krill are small crustaceans that drift in the sea, and whales eat them; krill, krill."),
    ("tower", "The tower of Café Órla was built in 1911."),
]


def found(query, results=3):
    return [name for name, _ in Search(DOCUMENTS, results).find(query)]


def test_rarer_words_count_more():
    assert found("animals colonies")[0] == "ants"  # both words there, one in `whales`
    assert found("krill", 1) == ["krill"]  # thrice against once
    assert found("the tower", 1) == ["tower"]


def test_endings_accents_and_case_do_not_matter():
    assert found("WHALE", 2) == found("whales", 2)
    assert found("cafe orla") == ["tower"]


def test_only_as_many_as_asked_for_and_the_same_every_time():
    assert len(found("animals eat krill", 2)) == 2
    search = Search([(str(n), "the same words") for n in range(9)], 3)
    assert [name for name, _ in search.find("words")] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "query",
    [
        '"krill',
        "krill AND",
        "NOT krill",
        "krill*",
        "text:krill",
        "(krill",
        "krill NEAR/2",
        "krill' --",
        "krill\x00",
        "^krill",
    ],
)
def test_operators_are_words_like_any_other(query):
    assert "krill" in found(query)


def test_a_query_without_words_is_an_error_and_one_without_hits_is_none():
    with pytest.raises(ToolError, match="no words"):
        found('"*()')
    tools = {"search": Search(DOCUMENTS)}
    assert asyncio.run(answer(tools, Call("search", {"query": "zebra"}))) == "nothing found; try other words"
    text = asyncio.run(answer(tools, Call("search", {"query": "tower"})))
    assert text == "[tower] The tower of Café Órla was built in 1911."
    assert len(found(" ".join(map(str, range(5000))) + " krill")) == 0  # only the first words are looked for


def test_it_survives_another_loop_another_thread_and_a_copy():
    search = Search(DOCUMENTS)
    here = asyncio.run(search.call({"query": "tower"}))
    with ThreadPoolExecutor() as pool:
        there = [pool.submit(asyncio.run, search.call({"query": "tower"})) for _ in range(8)]
    assert {each.result() for each in there} == {here}
    assert pickle.loads(pickle.dumps(search)).find("tower") == search.find("tower")


def test_long_documents_are_cut_into_passages_without_losing_a_word():
    paragraphs = [f"word{n} " * 30 for n in range(40)]
    text = "\n\n".join(paragraphs) + "\n\n" + "endless " * 500
    pieces = list(passages(text))
    assert max(map(len, pieces)) <= PASSAGE
    assert all(any(paragraph.strip() in piece for piece in pieces) for paragraph in paragraphs)
    assert " ".join(pieces).split() == text.split()
    assert list(passages("x" * 2500)) == ["x" * 1000, "x" * 1000, "x" * 500]
    assert list(passages(" \n\n ")) == []


def test_a_folder_of_texts(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "b.md").write_text("bee")
    (tmp_path / "in" / "a.TXT").write_text("ant")
    (tmp_path / "c.py").write_text("cat")
    assert read_documents(str(tmp_path)) == [("b.md", "bee"), ("in/a.TXT", "ant")]


def test_a_jsonl_file(tmp_path):
    file = tmp_path / "d.jsonl"
    rows = [{"id": "a", "text": "one\u2028line"}, {"id": 2, "text": "two", "more": 1}]
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf8")
    assert read_documents(str(file)) == [("a", "one\u2028line"), ("2", "two")]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("d.jsonl", b'{"id": "a", "text": "x"}\n{"id": ', "d.jsonl, line 2: is not JSON"),
        ("d.jsonl", b'{"id": "a", "body": "x"}', "d.jsonl, line 1: must be of the form"),
        ("d.jsonl", b'["a", "x"]', "d.jsonl, line 1: must be of the form"),
        ("d.jsonl", b'{"id": "a", "text": "x"}\n\n{"id": "a", "text": "y"}', "two documents have the id 'a'"),
        ("d.jsonl", b"", "holds no documents"),
        ("d.jsonl", b"\xff\xfe", "cannot be read"),
        ("folder/x.py", b"x", "holds no documents"),
        ("folder/x.txt", b"\xff", "x.txt: cannot be read"),
        ("folder/x.txt", b" \n", "holds no documents"),
    ],
)
def test_mistakes(tmp_path, name, content, says):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    with pytest.raises(MarftError, match=says):
        read_documents(str(file if name == "d.jsonl" else file.parent))
