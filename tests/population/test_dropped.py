"""A run keeps the trajectories of the particles that a resampling dropped."""

from __future__ import annotations

from amc_agents.operations.page.family_tree import Tree
from amc_agents.operations.page.run_view import RunView
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from tests.population.worlds import ReturnSoFar, number_agent, start, sum_world


def test_a_resampling_keeps_the_trajectories_of_the_particles_without_offspring():
    graph = amc(
        number_agent(), ReturnSoFar(), environment=lambda state: sum_world(state, 4), n_particles=6,
        resample=AtSteps(1, 3), beta=0.5, seed=1,
    )  # fmt: skip
    run = graph.run(start())
    resampled = [point for point in run.history if point.ancestors is not None]
    assert any(point.dropped for point in resampled)
    for point in resampled:
        assert point.dropped.keys() == set(range(6)) - set(point.ancestors.tolist())
        assert {len(trajectory.steps) for trajectory in point.dropped.values()} <= {point.step}
    assert run.history[-1].dropped == {}
    tree = Tree(RunView.of(run.as_plain()))
    assert all(len(steps) == branch.end - branch.start for branch, steps in zip(tree.branches, tree.steps, strict=True))
