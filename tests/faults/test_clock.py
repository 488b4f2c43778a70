"""A wall clock that jumps: results, durations and retries do not depend on it."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.faults.leftovers import alone, nothing_left
from tests.faults.surfaces import Limits
from tests.faults.test_wire import _no_pauses, folder, methods
from tests.faults.upstream import upstream
from tests.faults.wire import LOST, wire
from tests.faults.works import WORKS

__all__ = ["_no_pauses", "folder", "methods"]
YEAR = 365 * 86400.0
JUMPS = {"forward": [YEAR], "back": [-YEAR], "to and fro": [YEAR, -YEAR]}


@pytest.fixture(params=list(JUMPS))
def jumping_clock(request, monkeypatch):
    """Every reading of the wall clock is a year from the last."""
    steps, now = itertools.cycle(JUMPS[request.param]), [time.time()]

    def read():
        now[0] = max(0.0, now[0] + next(steps))
        return now[0]

    monkeypatch.setattr(time, "time", read)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["AMC, `vllm:`", "LAC, `verdict:` (logits)", "PNLC, embeddings", "PSRL, roles"])
def test_a_method_gives_the_same(name, methods, jumping_clock):
    surface, right = methods[name]
    with nothing_left(), wire(upstream(surface.talk)) as proxy:
        if not name.startswith("PSRL"):
            proxy.broken(surface.path, LOST[0], first=surface.first, last=surface.first)
        assert alone(surface.use(proxy, Limits(), "raise")).facts == right.facts


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each work gives under a steady clock."""
    found = {}
    for work in WORKS:
        folder = tmp_path_factory.mktemp("steady") / "out"
        folder.mkdir()
        work.run(folder)
        found[work.name] = work.result(folder)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_a_work_gives_the_same(work, results, jumping_clock, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with nothing_left():
        work.run(folder)
        work.run(folder)
    assert work.result(folder) == results[work.name]
