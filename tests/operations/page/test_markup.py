from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from amc_agents.operations.page.markup import (
    Html,
    document,
    element,
    embedded_json,
    escaped,
    inline_script,
    number_text,
    shortened,
    table,
)
from amc_agents.quoting import keep_secret, printable


class _Texts(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


@settings(max_examples=50)
@given(st.text())
def test_a_text_stays_a_text(text):
    parser = _Texts()
    parser.feed(element("p", text, title=text))
    parser.close()
    assert parser.tags == ["p"]
    assert parser.text.replace("\n", "") == printable(text).replace("\n", "")


@settings(max_examples=50)
@given(st.recursive(st.text(max_size=20) | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_embedded_json_cannot_end_its_element_and_keeps_its_values(values):
    written = embedded_json(values)
    assert not set("<>&\u2028\u2029") & set(written)

    def shown(value):
        return printable(value) if isinstance(value, str) else value and [shown(each) for each in value]

    assert json.loads(written) == shown(values)


def test_embedded_json_masks_secrets_and_shows_control_characters():
    keep_secret("sk-test-12345678")
    written = embedded_json({"a": ["sk-test-12345678", "\x1b[2J\u202e"]})
    assert json.loads(written) == {"a": ["***", "\\u001b[2J\\u202e"]}
    assert "\u202e" not in written


def test_control_characters_and_overrides_are_shown():
    assert escaped("a\x1b[2J\u202eb") == "a\\u001b[2J\\u202eb"


def test_secrets_are_masked():
    keep_secret("sk-test-12345678")
    assert "12345678" not in element("p", "key sk-test-12345678", title="sk-test-12345678")


def test_markup_is_not_escaped_twice():
    assert element("p", Html("<b>x</b>"), [" & ", element("i", 1)]) == "<p><b>x</b> &amp; <i>1</i></p>"


def test_a_table_can_be_scrolled_by_the_keyboard():
    written = table(["a", "b"], [["<x>", 1]], "lr", caption="all")
    assert 'tabindex="0"' in written
    assert "&lt;x&gt;" in written
    assert '<td class="number">1</td>' in written


def test_numbers_and_long_texts():
    assert [number_text(value) for value in (0.12345, 1.0, float("nan"), float("-inf"))] == [
        "0.123",
        "1",
        "unknown",
        "-inf",
    ]
    assert shortened("abcdef", 4) == "abcd... (2 more characters)"
    assert shortened("abcd", 4) == "abcd"


def test_a_script_cannot_be_ended_by_its_strings():
    assert "</script" not in inline_script("a = '</script>'")


def test_a_page_forbids_every_connection_and_other_scripts():
    page = document("t", "h", [])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "unsafe-eval" not in policy[1]
    assert "script-src &#x27;unsafe" not in policy[1]
