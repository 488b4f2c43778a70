from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.errors import PosteriorError
from amc_agents.psrl.posterior.memory import Evidence, Lineage, Version


def tree(rows):
    """Versions 2, 3, ... after a prior, from (how far back the parent is, whether the owner made it)."""
    versions = [Version("prior", "prior", None, 1, id="v1")]
    for number, (back, owner) in enumerate(rows, 2):
        parent = versions[max(0, len(versions) - 1 - back)].id
        made = ("edit", None) if owner else ("evidence", Evidence("", "", f"e{number}"))
        versions.append(Version(f"{number}", made[0], parent, number, made[1], id=f"v{number}"))
    return versions


trees = st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=25).map(tree)


@given(trees)
def test_the_chain_is_one_path_from_the_first_version_to_one_that_nothing_started_from(versions):
    chain = Lineage(versions).chain
    assert chain[0].id == "v1"
    assert all(later.parent == earlier.id for earlier, later in pairwise(chain))
    assert chain[-1].id not in {version.parent for version in versions}


@given(trees, st.data())
def test_it_does_not_matter_in_which_order_versions_become_known(versions, data):
    expected = Lineage(versions).chain
    order = data.draw(st.permutations(versions[1:]))
    lineage = Lineage(versions[:1])
    known = {"v1"}
    while order:  # Only a version whose parent is known can be known.
        version = next(version for version in order if version.parent in known)
        order = [other for other in order if other is not version]
        known.add(version.id)
        lineage.add([version])
    assert lineage.chain == expected
    assert lineage.settled == {version.evidence.id for version in expected if version.evidence}


@given(trees)
def test_evidence_is_either_settled_or_displaced(versions):
    lineage = Lineage(versions)
    displaced = {evidence.id for evidence in lineage.displaced()}
    assert displaced | lineage.settled == {version.evidence.id for version in versions if version.evidence}
    assert not displaced & lineage.settled


@given(trees)
def test_a_version_in_use_is_displaced_by_its_owner_or_a_longer_branch_only_and_an_owners_never(versions):
    lineage = Lineage(versions[:1])
    for version in versions[1:]:
        before = list(lineage.chain)
        lineage.add([version])
        displaced = {old.id for old in before} - {now.id for now in lineage.chain}
        assert not displaced or version.by_owner or len(lineage.chain) > len(before)
        assert not any(old.by_owner for old in before if old.id in displaced)


@pytest.mark.thorough  # quick: the other properties of lineages
@given(trees)
def test_without_an_edit_the_longest_branch_leads(versions):
    if any(version.by_owner for version in versions):
        return
    depth = {None: 0}
    for version in versions:
        depth[version.id] = depth[version.parent] + 1
    assert len(Lineage(versions).chain) == max(depth.values())


@pytest.mark.parametrize(
    ("rows", "chain"),
    [
        ([(0, False), (1, False)], "v1 v2"),  # Two writers started from v1: the first leads,
        ([(0, False), (0, False), (2, False)], "v1 v2 v3"),  # and a late writer displaces nothing.
        ([(0, False), (1, False), (0, False)], "v1 v3 v4"),  # The longer branch leads,
        ([(0, True), (1, False), (0, False), (0, False)], "v1 v2"),  # unless the other is the owner's.
        ([(0, False), (1, True)], "v1 v3"),  # An edit of v1 wins over evidence.
        ([(0, True), (1, True)], "v1 v2"),  # Of two edits the first wins,
        ([(0, False), (0, True), (2, True)], "v1 v2 v3"),  # wherever they started from.
        ([(0, False), (0, False), (2, True), (0, False)], "v1 v4 v5"),
    ],
)
def test_which_version_is_the_head(rows, chain):
    assert " ".join(version.id for version in Lineage(tree(rows)).chain) == chain


def test_a_late_version_of_the_same_number_displaces_nothing():
    prior = Version("prior", "prior", id="v1")
    second = Version("2", "evidence", "v1", 2, Evidence("", "", "e2"), id="z")
    third = Version("3", "evidence", "z", 3, Evidence("", "", "e3"), id="v3")
    late = Version("late", "evidence", "v1", 2, Evidence("", "", "late"), id="a")
    lineage = Lineage([prior, second, third])
    lineage.add([late])
    assert lineage.chain == [prior, second, third]
    assert [evidence.id for evidence in lineage.displaced()] == ["late"]


def test_no_version_and_a_missing_parent_are_errors():
    with pytest.raises(PosteriorError, match="no version yet"):
        _ = Lineage().head
    with pytest.raises(PosteriorError, match=r"version 3 \(v3\) started from version v2, which is missing"):
        Lineage([version for version in tree([(0, False), (0, False)]) if version.id != "v2"])


def test_a_damaged_version_is_an_error_each_time_and_changes_nothing():
    lineage = Lineage(tree([(0, False)]))
    for _ in range(2):
        with pytest.raises(PosteriorError, match="which is missing"):
            lineage.add([Version("4", "edit", "v3", 4, id="v4")])
        assert [version.id for version in lineage.versions] == ["v1", "v2"]
