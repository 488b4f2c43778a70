"""The parts of result pages."""

import pytest

from amc_agents.errors import ConfigurationError
from reproduce.pages import write_parts


def test_the_parts_of_a_page_are_replaced_and_the_rest_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Title `<!-- a -->`\n<!-- a -->\nold\nolder\n<!-- /a -->\nbetween\n<!-- b -->\n<!-- /b -->\nend\n")
    write_parts(page, {"a": "| 1 |\n", "b": "new"})
    expected = "Title `<!-- a -->`\n<!-- a -->\n| 1 |\n\n<!-- /a -->\nbetween\n<!-- b -->\nnew\n<!-- /b -->\nend\n"
    assert page.read_text() == expected


@pytest.mark.parametrize(
    "content",
    [
        "",
        "<!-- a -->\n",
        "<!-- /a -->\n<!-- a -->\n",
        "<!-- a -->\n<!-- a -->\n<!-- /a -->\n",
        "<!-- a -->\n<!-- /a -->\n" * 2,
    ],
)
def test_a_page_without_a_place_for_a_part_is_left_alone(tmp_path, content):
    page = tmp_path / "page.md"
    page.write_text(content)
    with pytest.raises(
        ConfigurationError, match="needs the lines <!-- a --> and <!-- /a -->, once each, in this order"
    ):
        write_parts(page, {"a": "new"})
    assert page.read_text() == content
