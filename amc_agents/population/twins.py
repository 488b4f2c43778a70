"""Whether the particles are copies of one another: a fixed model seed, temperature 0, a cache of answers."""

from __future__ import annotations

from collections.abc import Sequence

from amc_agents.types import Trajectory

LEAST_REPEATS = 4
"""Repeated steps that are taken for more than chance: five particles at one step, or two of them over four steps. Two
tries at a short task may well agree at a step."""


class Twins:
    """Compares what the particles say, step by step, as the run goes on.

    A fork shares its past by reference, so only steps made since the last resampling are each particle's own.
    """

    def __init__(self) -> None:
        self._differed = False
        self._n_compared = 0
        self._n_repeats = 0

    def compare(self, trajectories: Sequence[Trajectory]) -> None:
        """Compare the newest steps: before each resampling, and at the end.

        Args:
            trajectories: of the particles that have not failed.
        """
        if self._differed or not trajectories:
            return
        newest = [
            tuple((step.thought, step.action) for step in trajectory.steps[self._n_compared :])
            for trajectory in trajectories
        ]
        self._differed = len(set(newest)) > 1
        self._n_repeats += (len(newest) - 1) * len(newest[0])
        self._n_compared += len(newest[0])

    def notes(self, n_particles: int) -> list[str]:
        """For the run's notes; empty where they said different things, or too little to tell."""
        if self._differed or self._n_repeats < LEAST_REPEATS:
            return []
        return [
            f"all {n_particles} particles said the same at each of {self._n_compared} steps: is the model's "
            "temperature 0, its seed fixed, or are its answers cached? A population of copies brings nothing"
        ]
