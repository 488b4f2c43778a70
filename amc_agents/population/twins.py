"""Detect identical particles: a fixed model seed, temperature 0, or cached answers."""

from __future__ import annotations

from collections.abc import Sequence

from amc_agents.types import Trajectory

LEAST_REPEATS = 4
"""Minimum number of repeated steps that are not attributed to chance: five particles that agree at one step, or two
that agree at four steps. Two attempts at a short task often agree at one step."""


class Twins:
    """Compares the steps of the particles during a run.

    A fork shares its past by reference, so only the steps since the last resampling are compared.
    """

    def __init__(self) -> None:
        self._differed = False
        self._n_compared = 0
        self._n_repeats = 0

    def compare(self, trajectories: Sequence[Trajectory]) -> None:
        """Compare the newest steps. Call this before each resampling and at the end of the run.

        Args:
            trajectories: of the particles that have not failed.
        """
        if self._differed or not trajectories:
            return
        newest = [
            tuple((step.thought, step.action, step.observation) for step in trajectory.steps[self._n_compared :])
            for trajectory in trajectories
        ]
        self._differed = len(set(newest)) > 1
        self._n_repeats += (len(newest) - 1) * len(newest[0])
        self._n_compared += len(newest[0])

    def begin_again(self) -> None:
        """Continue with new particles, whose steps count from the first."""
        self._n_compared = 0

    def dump(self) -> tuple[bool, int, int]:
        """Return the state of the comparison, for `load`."""
        return self._differed, self._n_compared, self._n_repeats

    def load(self, dumped: tuple[bool, int, int]) -> None:
        """Continue a comparison from what `dump` returned."""
        self._differed, self._n_compared, self._n_repeats = dumped

    def notes(self, n_particles: int) -> list[str]:
        """Return a note if all particles were identical for enough steps."""
        if self._differed or self._n_repeats < LEAST_REPEATS:
            return []
        return [
            f"all {n_particles} particles gave the same answer at each of {self._n_compared} steps: is the model's "
            "temperature 0, its seed fixed, or are its answers cached? Identical particles do not improve the answer"
        ]
