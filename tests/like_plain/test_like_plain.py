"""Whatever users of LangGraph do with an agent works the same with `amc(agent)`.

The same scripted agent is called in the same way plain, and as one or as three particles whose answers are
equal. What its caller can observe must be the same, but for the differences listed in `differences.py`.
"""

from __future__ import annotations

from collections import Counter
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
VARIANTS = {
    "messages as tuples", "a single message", "dataclass state", "invalid pydantic state", "injected arguments",
    "interrupt, resume with update", "interrupt, edited", "goto", "replaced messages", "bound recursion limit",
    "file search", "approval, edited", "approval, rejected", "emulated tools", "model call limit of the thread",
    "model call limit that raises", "personal data, blocked", "provider's tool search", "shell",
    "tool call limit of the thread", "tool errors", "sync model wrapper", "sync tool wrapper", "structured, corrected",
    "structured by the provider",
}  # fmt: skip
"""Scenarios that differ by a detail from another one, or that a known difference plays: only thorough."""


def quick():
    """One case of each other scenario: the one whose levels have occurred least."""
    seen = Counter()
    for rows in OF_EACH:
        if rows[0]["scenario"] not in VARIANTS:
            row = min(rows, key=lambda row: sum(seen[level] for level in row.items()))
            seen.update(row.items())
            yield row


QUICK = [*quick()]
REST = [row for row in ALL if row not in QUICK]
QUESTIONS = [case(scenario, call, modes) for scenario in ("interrupt", "approval")
             for call, modes in (("stream", "messages"), ("astream", "values+messages+custom"))]  # fmt: skip
CASES = [
    *(pytest.param(called, id=f"{called}, asked") for called in QUESTIONS[::3]),
    *(pytest.param(called, id=f"{called}, asked", marks=pytest.mark.thorough) for called in QUESTIONS[1:3]),
    *(pytest.param(Case(**row), id=str(Case(**row))) for row in QUICK),
    *(pytest.param(Case(**row), id=str(Case(**row)), marks=pytest.mark.thorough) for row in REST),
]


def test_the_quick_cases_meet_every_level():
    assert VARIANTS <= set(SCENARIOS)
    for name in set(FACTORS) - {"scenario"}:
        assert {row[name] for row in QUICK} == set(FACTORS[name]), name


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
