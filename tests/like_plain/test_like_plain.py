"""Whatever users of LangGraph do with an agent works the same with `amc(agent)`.

The same scripted agent is called in the same way three times: plain, and as one and as three particles whose answers
are equal. What its caller can observe must be the same, but for the differences listed in `differences.py`.
"""

from __future__ import annotations

import pytest

from tests.like_plain.agents import AGENTS
from tests.like_plain.covering import covering
from tests.like_plain.differences import KNOWN, differences, unexplained
from tests.like_plain.play import Case, play

SCENARIOS = {**AGENTS}
FACTORS = {
    "scenario": [*SCENARIOS],
    "call": ["invoke", "ainvoke", "stream", "astream", "batch", "abatch", "events_v1", "events_v2"],
    "modes": ["-", "values", "updates", "messages", "custom", "tasks", "checkpoints", "debug", "values+messages+custom",
              "values/subgraphs", "updates+messages/subgraphs"],
    "version": ["v1", "v2"],
    "saver": ["none", "memory", "sqlite"],
    "place": ["itself", "bound", "node"],
    "durability": ["-", "sync", "async", "exit"],
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
    if call and "batch" in call and scenario in SHARES_A_STORE:
        return False
    return not (saver == "none" and SCENARIOS[scenario].needs_saver)


SHARES_A_STORE = ("store in a tool",)
"""Two calls of a batch would read each other's writes, at any time."""
QUICK = covering({name: levels for name, levels in FACTORS.items() if name != "modes"} | {"modes": FACTORS["modes"]},
                 allowed, [("scenario", "saver"), ("call", "modes"), ("call", "place"), ("modes", "version"),
                           ("call", "saver"), ("saver", "durability"), ("place", "durability")])  # fmt: skip
PAIRWISE = [row for row in covering(FACTORS, allowed) if row not in QUICK]
CASES = [
    *(pytest.param(Case(**row), id=str(Case(**row))) for row in QUICK),
    *(pytest.param(Case(**row), id=str(Case(**row)), marks=pytest.mark.thorough) for row in PAIRWISE),
]


def found(case, n_particles):
    scenario = SCENARIOS[case.scenario]
    return differences(play(scenario, case, None), play(scenario, case, n_particles), n_particles)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_a_wrapped_agent_is_like_the_plain_one(case):
    plain = play(SCENARIOS[case.scenario], case, None)
    for n_particles in (1, 3):
        wrapped = play(SCENARIOS[case.scenario], case, n_particles)
        assert not unexplained(case, n_particles, differences(plain, wrapped, n_particles)), n_particles


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.why)
def test_each_known_difference_is_still_there(known):
    for n_particles in known.n_particles:
        assert set(known.aspects.split()) & set(found(known.example, n_particles)), "remove the entry, and its line"
