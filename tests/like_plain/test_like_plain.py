"""Whatever users of LangGraph do with an agent works the same with `amc(agent)`.

The same scripted agent is called in the same way plain, and as one or as three particles whose answers are
equal. What its caller can observe must be the same, but for the differences listed in `differences.py`.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.like_plain.agents import AGENTS
from tests.like_plain.covering import covering
from tests.like_plain.differences import KNOWN, case, differences, unexplained
from tests.like_plain.middlewares import MIDDLEWARES
from tests.like_plain.play import Case, play

SCENARIOS = {**AGENTS, **MIDDLEWARES}
FACTORS = {
    "scenario": [*SCENARIOS],
    "call": ["invoke", "ainvoke", "stream", "astream", "batch", "abatch", "events_v1", "events_v2"],
    "modes": ["-", "values", "updates", "messages", "custom", "tasks", "checkpoints", "debug", "values+messages+custom",
              "values/subgraphs", "updates+messages/subgraphs"],
    "version": ["v1", "v2"],
    "saver": ["none", "memory", "sqlite"],
    "place": ["itself", "bound", "node"],
    "durability": ["-", "sync", "async", "exit"],
    "particles": [1, 3],
}  # fmt: skip


def allowed(row):
    """Whether such a call exists, and the plain agent makes it."""
    call, modes, saver, scenario = row.get("call"), row.get("modes"), row.get("saver"), row.get("scenario")
    if call and modes and ("stream" in call) == (modes == "-"):
        return False
    if call and row.get("version") == "v2" and ("events" in call or "batch" in call):
        return False
    if saver == "none" and (row.get("durability", "-") != "-" or modes == "checkpoints"):
        return False
    if scenario is None:
        return True
    if call and (("batch" in call and scenario in SHARES_A_STORE) or not SCENARIOS[scenario].only(call)):
        return False
    return not (saver == "none" and SCENARIOS[scenario].needs_saver)


SHARES_A_STORE = ("store in a tool",)
"""Two calls of a batch would read each other's writes, at any time."""
OF_SCENARIOS = [("scenario", "call"), ("scenario", "saver"), ("scenario", "place"), ("scenario", "particles")]
OF_CALLS = [*combinations([name for name in FACTORS if name != "scenario"], 2)]
ALL = covering(FACTORS, allowed, [*OF_SCENARIOS, *OF_CALLS])
OF_EACH = [[row for row in ALL if row["scenario"] == scenario] for scenario in SCENARIOS]
QUICK = [rows[n % len(rows)] for number, rows in enumerate(OF_EACH) for n in (number, number + 3)]
"""Two cases of each scenario, by calls that take turns; the others are thorough."""
REST = [row for row in ALL if row not in QUICK]
QUESTIONS = [case(scenario, call, modes) for scenario in ("interrupt", "approval")
             for call, modes in (("stream", "messages"), ("astream", "values+messages+custom"))]  # fmt: skip
CASES = [
    *(pytest.param(one, id=f"{one}, asked") for one in QUESTIONS),
    *(pytest.param(Case(**row), id=str(Case(**row))) for row in QUICK),
    *(pytest.param(Case(**row), id=str(Case(**row)), marks=pytest.mark.thorough) for row in REST),
]


def found(called):
    scenario = SCENARIOS[called.scenario]
    return differences(play(scenario, called, wrapped=False), play(scenario, called, wrapped=True), called.particles)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("called", CASES)
def test_a_wrapped_agent_is_like_the_plain_one(called):
    assert not unexplained(called, found(called))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.why)
def test_each_known_difference_is_still_there(known):
    assert set(known.aspects.split()) & set(found(known.example)), "remove the entry, and its line in docs/support.md"
