"""What the package did before it was rebuilt, it still does; what it was measured at, it does not exceed.

`python -m tests.frozen --help` says how the records are rewritten, and when that is allowed. The listing of public
names is frozen by tests/test_exports.py (release/public-api.txt).
"""

from __future__ import annotations

import pytest

from tests.frozen.record import differences
from tests.frozen.records import FILES, FOLDER, played, read
from tests.frozen.walks import FIGURES

QUICK = {
    "scheme systematic", "schedule ess below", "finished retire", "hidden rewards", "beta chosen", "failed particles",
    "budget with weighings", "adaptive by values", "a tool calling agent with events", "settled stream",
    "lac inside particles", "stop at", "worlds that fork", "worlds that replay", "durable broken off", "commits",
    "deferred", "question to a human", "proposals", "store views", "estimate of a call", "as a node of another graph",
    "lac sync", "lac votes", "pnlc refines", "psrl sync", "psrl nodes", "ids async",
}  # fmt: skip
"""A configuration of each feature; the others are thorough."""
CASES = [
    pytest.param(file, name, id=name, marks=() if name in QUICK else pytest.mark.thorough)
    for file, configurations in FILES.items()
    for name in configurations
]
RECORDS = {file: read(file) for file in FILES}
CEILINGS = {
    "files touched by amc() and one invoke": 42,
    "modules imported by it": 57,
    "files from a vllm: string to a float": 15,
    "files from a training row to the loss": 18,
    "context variables": 6,
    "parameters of amc()": 21,  # 20, and race=
    "basenames used twice": 18,
    "lines of amc_agents": 71_200,
    "files of amc_agents": 319,
    "lines of the first wing": 49_062,  # all but bench, operations and cli
    "files of the first wing": 215,
    "lines of tests": 63_500,
    "files of tests": 384,
}
"""The figures when the records were taken; of lines and files, with room for the work of the same day. A commit that
lowers a figure lowers its ceiling; one that adds a feature raises it by what the feature takes."""
WALKS = {name for name in CEILINGS if name.startswith(("files touched", "modules", "files from"))}
"""Each starts a process that imports the package, a server or a training: thorough."""


@pytest.mark.parametrize(("file", "name"), CASES)
def test_a_configuration_does_what_it_did(file, name):
    assert name in RECORDS[file], "no record: python -m tests.frozen --write, in a commit that says why"
    _, found = played(file, name, RECORDS[file])
    assert not found, "\n".join(found[:20])


def test_every_record_is_of_a_configuration():
    assert {file: set(records) for file, records in RECORDS.items()} == {file: set(FILES[file]) for file in FILES}
    assert sum(map(len, RECORDS.values())) >= 40
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 300_000


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough if name in WALKS else ()) for name in CEILINGS],
)
def test_a_figure_stays_below_its_ceiling(name):
    assert FIGURES[name]() <= CEILINGS[name]


def test_exact_numbers_must_be_equal_and_computed_ones_near():
    then = {"values": [0.5, 1], "log_weights": [-0.25, "-inf"], "notes": ["a", "b"], "failed": []}
    assert differences(then, {**then, "log_weights": [-0.25 + 1e-12, "-inf"]}) == []
    assert differences(then, {**then, "values": [0.5 + 1e-12, 1]}) == ["/values/0: was 0.5, is 0.500000000001"]
    assert differences(then, {**then, "values": [0.5, True]}) == ["/values/1: was 1, is True"]
    assert differences(then, {**then, "log_weights": [-0.25 + 1e-6, "-inf"]}) != []
    assert differences(then, {**then, "log_weights": [-0.25, 0.0]}) == ["/log_weights/1: was '-inf', is 0.0"]
    assert differences(then, {**then, "notes": ["b", "a"]}) == [
        "/notes/0: was 'a', is 'b'",
        "/notes/1: was 'b', is 'a'",
    ]
    assert differences(then, {"values": [0.5, 1], "log_weights": [-0.25, "-inf"], "notes": ["a", "b"], "more": 1}) == [
        "/failed: is missing", "/more: is new"
    ]  # fmt: skip
