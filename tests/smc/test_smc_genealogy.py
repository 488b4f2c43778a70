from __future__ import annotations

import numpy as np

from amc_agents.smc import Genealogy, init, resample, weigh

TREE = Genealogy(3, [np.array([0, 0, 2]), None, np.array([0, 1, 1])], retired=[[1], [], [2]])


def test_a_lineage_lists_the_slots_of_a_particles_past():
    assert TREE.lineage(2) == (0, 1, 1, 2)
    assert TREE.lineage(0) == (0, 0, 0, 0)


def test_a_retired_particle_has_a_lineage_up_to_its_segment():
    assert TREE.lineage(1, segment=0) == (1,)
    assert TREE.lineage(2, segment=2) == (2, 2, 2)


def test_survivors_are_counted_at_each_point():
    assert TREE.survivors == (2, 3, 2)


def test_roots_are_the_ancestors_of_all_final_particles():
    assert TREE.roots == {0, 1, 2}
    assert Genealogy(3, TREE.ancestors).roots == {0}
    assert Genealogy(3, []).roots == {0, 1, 2}
    assert Genealogy(3, []).lineage(1) == (1,)


def test_lineages_agree_with_carrying_histories_along():
    rng, n_particles = np.random.default_rng(0), 9
    state, ancestors = init(n_particles), []
    carried = [(slot,) for slot in range(n_particles)]
    for _ in range(6):
        state = weigh(state, state.potentials + rng.normal(size=n_particles))
        state, info = resample(rng, state, np.zeros(n_particles, dtype=bool), scheme="multinomial")
        ancestors.append(info.ancestors)
        carried = [(*carried[parent], slot) for slot, parent in enumerate(info.ancestors)]
    family = Genealogy(n_particles, ancestors)
    assert [family.lineage(slot) for slot in range(n_particles)] == carried
    assert len(family.roots) < n_particles


GROWING = Genealogy(2, [None, np.array([0, 1, 1, 0]), None, np.array([3, 3])], retired=[[], [], [2], []])
"""Two particles become four, and then two again."""


def test_the_number_of_particles_may_change():
    assert GROWING.sizes == (2, 2, 4, 4, 2)
    assert GROWING.survivors == (2, 2, 4, 1)
    assert GROWING.lineage(1) == (0, 0, 3, 3, 1)
    assert GROWING.lineage(2, segment=2) == (1, 1, 2)
    assert Genealogy(2, GROWING.ancestors[:2]).roots == {0, 1}
    assert Genealogy(2, GROWING.ancestors).roots == {0}
    assert GROWING.roots == {0, 1}
