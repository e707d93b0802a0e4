"""An answer in a notebook."""

import html as entities

import markdown_it
import pytest

from marft.run.answer import Answer
from marft.types import Action, Episode, Task


@pytest.mark.parametrize(
    "text",
    [
        "plain words", "*a* _b_ `c` **d**", "# head\n- item\n1. one\n> quote", "<script>alert(1)</script> &amp; &lt;",
        "[link](javascript:x) ![i](http://x.y) http://x.y", "$x^2$ and \\(y\\) \\[z\\]", "a\n\n\nb\r\nc",
        "| a | b |\n|---|---|",
        "    indented\n```\nfence", "",
    ],
)  # fmt: skip
def test_markdown_shows_a_models_words_as_they_are(text):
    def said(agent, words):
        return Action(agent, 0, (), (), (), (), (), words, "stop", 0)

    episode = Episode(Task("q", "?"), "q", 0, (said("an_n", text), said("bob", "done")), True, False)
    answer = Answer.of(episode)
    assert answer.text == "done"
    source = answer._repr_markdown_()
    assert not set("$\\[`") & set(source)  # nothing for what a notebook looks for before it reads Markdown
    shown = markdown_it.MarkdownIt("gfm-like", {"linkify": False}).render(source)
    html = shown.replace("<br>", "\n")
    names = ("p", "strong")
    for name in names:
        html = html.replace(f"<{name}>", "").replace(f"</{name}>", "")
    assert "<" not in html
    said_lines = [line.strip() for line in entities.unescape(html).splitlines() if line.strip()]
    expected = [line.strip() for line in f"an_n: {text}\nbob: done".splitlines() if line.strip()]
    assert said_lines == expected
