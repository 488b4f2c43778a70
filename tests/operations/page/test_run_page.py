from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from amc_agents.errors import CheckpointError
from amc_agents.operations.page.family_tree import Tree
from amc_agents.operations.page.run_page import run_page
from amc_agents.operations.page.run_view import RunView, read_run
from amc_agents.run import Run
from tests.operations.page.conftest import HOSTILE, played

ALLOWED = set(
    "http-equiv content name charset lang class id scope tabindex role width height viewbox text-anchor open type "
    "style d x y x1 x2 y1 y2 cx cy r".split()
)


class _Attributes(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.names.update(name for name, _ in attrs)


def texts(page: str) -> dict:
    written = re.search(r'<script type="application/json" class="texts">(.*?)</script>', page, re.DOTALL)
    assert written
    return json.loads(written[1])


def view(run: Run) -> RunView:
    return RunView.of(json.loads(json.dumps(run.as_plain())))


def test_the_page_of_a_run_states_its_result_and_its_parts(make_run):
    page = make_run().to_html()
    assert "The answer returned 1, picked from 4 trajectories with the rewards seen." in page
    for heading in (
        "Genealogy",
        "The answer, step by step",
        "Particles",
        "What it cost",
        "Failures and notes",
        "Settings",
    ):
        assert f">{heading}</h2>" in page
    assert "1 of 4 particles ended with an error" in page
    assert len(page) < 60_000


def test_the_text_of_every_step_of_every_line_is_on_the_page(make_run):
    branches = texts(make_run().to_html())["branches"]
    actions = [[step["action"] for step in branch["steps"]] for branch in branches]
    assert actions == [["a1", "a2"], ["b1", "b2"], ["c1", "c2"], ["d3"], ["e3", "e4"], ["f3"]]
    assert [branch["parent"] for branch in branches] == [None, None, None, 2, 2, 2]
    assert [branch["fate"] for branch in branches] == [
        "ended, return 1",
        "dropped at step 2",
        "continued by 3 particles at step 2",
        "ended, return 0",
        "ended, return 1; the answer",
        "ended with an error",
    ]


def test_a_step_shows_the_value_with_which_it_was_weighed(make_run):
    branches = texts(make_run().to_html())["branches"]
    values = [[step.get("value") for step in branch["steps"]] for branch in branches]
    assert values == [[None, "1"], [None, "0.1"], [None, "0.6"], ["0"], [None, "1"], ["unknown"]]
    assert branches[4]["steps"][1]["reward"] == "1"


def test_the_last_weighing_stands_at_the_last_answer(make_run):
    """An agent answers without a pause, so its last weighing is numbered by the pause before the answer."""
    run = make_run()
    run = replace(run, history=(run.history[0], replace(run.history[1], step=3)))
    branches = texts(run.to_html())["branches"]
    assert [step.get("value") for step in branches[4]["steps"]] == [None, "1"]


def test_the_picture_has_room_for_the_label_of_the_answer(make_run):
    page = make_run().to_html()
    width = float(re.search(r'<svg width="(\d+)"', page)[1])
    label = re.search(r'<text x="([\d.]+)"[^>]*>([^<]* · answer)</text>', page)
    assert label
    # Bold letters of 13 pixels are at most 8 wide.
    assert float(label[1]) + 8 * len(label[2]) <= width


def test_a_run_without_rewards_names_no_return(make_run):
    run = make_run()
    alone = [replace(each, steps=tuple(replace(step, reward=0.0) for step in each.steps))
             for each in run.population.trajectories]  # fmt: skip
    run = replace(run, population=replace(run.population, trajectories=tuple(alone)), best=alone[1])
    fates = [branch["fate"] for branch in texts(run.to_html())["branches"]]
    assert not any("return" in fate for fate in fates)
    assert "ended; the answer" in fates
    table = run.to_html().partition(">Particles</h2>")[2].partition("</table>")[0]
    assert '<td class="number"></td>' in table


def test_the_line_of_the_answer_is_marked(make_run):
    assert Tree(view(make_run())).winners == {2, 4}


def test_a_dropped_line_without_text_says_so(make_run):
    run = make_run()
    run = replace(run, history=(replace(run.history[0], dropped={}), run.history[1]))
    lost = texts(run.to_html())["branches"][1]
    assert lost["steps"] == []
    assert lost["fate"] == "dropped at step 2; its text was not kept"


def test_a_line_that_only_a_retired_particle_continued_keeps_its_text(make_run):
    run = make_run()
    # Slot 2 continues in slot 0 alone, which retires at step 3; the others continue slot 1.
    first = replace(run.history[0], ancestors=np.array([2, 1, 1]), retired=(), dropped={0: played("a1", "a2")})
    second = replace(
        run.history[1], step=3, ancestors=np.array([1, 1, 2]), retired=(0,), values=np.array([1.0, 0.2, 0.3])
    )
    final = (played("b1", "b2", "b3", "x4"), played("b1", "b2", "b3", "y4"), played("b1", "b2", "g3", "z4"),
             played("c1", "c2", "h3", reward=1.0))  # fmt: skip
    end = replace(run.history[1], step=4)
    run = replace(run, population=replace(run.population, trajectories=final), history=(first, second, end))
    actions = [[step["action"] for step in branch["steps"]] for branch in texts(run.to_html())["branches"]]
    assert actions[:6] == [["a1", "a2"], ["b1", "b2"], ["c1", "c2"], ["b3"], ["g3"], ["h3"]]
    assert sorted(actions[6:]) == [["x4"], ["y4"], ["z4"]]


def test_a_run_of_several_rounds_shows_its_final_trajectories(make_run):
    run = make_run()
    again = replace(run.history[1], step=1)
    page = replace(run, history=(*run.history, again)).to_html()
    assert "several rounds" in page
    assert [branch["parent"] for branch in texts(page)["branches"]] == [None] * 4


def test_a_run_without_weighing_points_has_a_page(make_run):
    assert "Genealogy" in replace(make_run(), history=()).to_html()


def test_no_text_of_a_model_or_a_world_becomes_markup(make_run):
    run = make_run(HOSTILE)
    parser = _Attributes()
    page = run.to_html()
    parser.feed(page)
    assert "img" not in parser.tags
    assert {name for name in parser.names if not name.startswith(("aria-", "data-"))} <= ALLOWED
    assert page.count("</script") == 2, "a text ended the data's element"
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)
    fragment = _Attributes()
    fragment.feed(run._repr_html_())
    assert "img" not in fragment.tags


def test_long_texts_are_cut_so_that_the_page_stays_small(make_run):
    page = make_run("x" * 300_000).to_html()
    assert len(page) < 3_000_000
    assert "more characters)" in texts(page)["branches"][0]["steps"][0]["observation"]


def test_the_page_refers_to_nothing_outside(make_run):
    page = make_run().to_html()
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|https?://", page)


def test_a_saved_run_gives_the_same_page(make_run, tmp_path):
    run = make_run()
    path = run.save(tmp_path / "new" / "folder")
    assert path.name == "run.json"
    assert run_page(read_run(path)) == run.to_html(tmp_path / "run.html") == (tmp_path / "run.html").read_text()


def test_a_file_that_is_not_a_run_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"best": 1}')
    with pytest.raises(CheckpointError, match="does not hold a run"):
        read_run(tmp_path / "run.json")


def test_a_notebook_shows_the_summary_and_how_to_get_the_page(make_run):
    shown = make_run()._repr_html_()
    assert "to_html" in shown
    assert "by &quot;return&quot;" in shown
    assert "<script" not in shown
    assert len(shown) < 10_000


def test_a_run_prints_in_20_lines(make_run):
    assert len(repr(make_run(HOSTILE)).splitlines()) <= 20
