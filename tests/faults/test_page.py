"""The page on reliability shows the tables that are tested."""

from __future__ import annotations

from tests.faults.outcomes import FAMILIES, KINDS, cases
from tests.faults.page import PAGE, written


def test_the_page_shows_the_matrix():
    assert PAGE.read_text() == written(PAGE.read_text()), "python -m tests.faults.page"


def test_every_fault_has_a_named_outcome_in_every_method():
    every = list(cases())
    assert len({case.fault.name for case in every}) >= 50
    assert len(every) >= 200
    assert all(family.name in kind.once and family.name in kind.always for kind in KINDS for family in FAMILIES)
    assert len({str(case) for case in every}) == len(every)
