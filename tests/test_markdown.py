"""Tables as a Markdown reader sees them, and a place for every page in the navigation of the site."""

import html
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from amc_agents.markdown import block, code, table, text, value_table

ROOT = Path(__file__).resolve().parents[1]


def cells(markdown):
    page = MarkdownIt("commonmark").enable("table").render(markdown)
    return [
        [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL)
    ]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("a|b", "a|b"),
        (r"a\|b", "a|b"),
        ("two\nlines", "two lines"),
        ("\x1b[2J", r"\u001b[2J"),
        ("**0.5**", "<strong>0.5</strong>"),
    ],
)
def test_a_cell_is_markdown_that_cannot_leave_its_cell(cell, shown):
    assert cells(table(["method", cell], [["x", cell], [cell, "y"]], "ll")) == [
        ["method", shown], ["x", shown], [shown, "y"],
    ]  # fmt: skip


def test_a_pipe_after_an_escaped_backslash_is_escaped_too():
    assert table(["m"], [[r"a\\|b"]], "l").splitlines()[-1] == r"| a\\\|b |"


def test_columns_are_aligned_by_letter_and_columns_of_numbers_by_themselves():
    assert table(["a", "b"], [], "lr").splitlines()[1] == "| --- | ---: |"
    assert value_table(["a", "b", "c"], [[1, "x", 0.5], ["", 2, 3]]).splitlines()[1] == "| ---: | --- | ---: |"


def test_a_value_is_shown_literally():
    hostile = "a|b \\ `c` <img> *d* _e_ [f](g) & &lt; ~~h~~ # i $j$"
    assert cells(value_table([hostile], [[hostile]])) == [[hostile], [hostile]]
    assert "<img>" not in MarkdownIt("commonmark").render(text(hostile))
    assert block("```\nx\n```").startswith("````\n")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_is_in_the_navigation_of_the_site(page):
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert page.name in listed, f"add the line `- Title: {page.name}` to `nav:` in mkdocs.yml, below its kind of page"


def test_what_steers_a_terminal_or_cannot_be_written_is_escaped():
    hostile = "a\x1b]8;;http://evil\x07b\x9b31m\u202ec\ud800\U000e0041"
    for shown in (text(hostile), code(hostile), block(hostile), value_table(["a"], [[hostile]])):
        assert "evil" in shown
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800\U000e0041]", shown)
        assert shown.encode()
