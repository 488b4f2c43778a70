"""How long one resampling of 1,000 particles of 50 steps takes, fork bookkeeping included.

    python benchmarks/resampling.py

Prints JSON: the median and the worst of many repetitions in milliseconds, per scheme, and whether each median is
below the target. Timed: weighing, drawing ancestors, handing trajectories on by reference, listing the worlds to fork.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from amc_agents.smc import SCHEMES, init, resample, weigh
from amc_agents.types import Step, Task, Trajectory

TARGET_MS = 10.0


def population(n_particles: int, n_steps: int) -> list[Trajectory]:
    """Particles with a different past each."""
    task = Task("benchmark", "Do the thing.")
    return [
        Trajectory(task, tuple(Step(f"act {particle} {step}", "Done. " * 20) for step in range(n_steps)))
        for particle in range(n_particles)
    ]


def one_resampling(
    rng: np.random.Generator, trajectories: list[Trajectory], potentials: np.ndarray, scheme: str
) -> tuple[list[Trajectory], list[tuple[int, int]]]:
    """Weigh, resample, and give the new population with the (source, slot) pairs whose world must be forked."""
    state = weigh(init(len(trajectories)), potentials)
    finished = np.array([trajectory.done for trajectory in trajectories])
    _, info = resample(rng, state, finished, scheme)
    ancestors = info.ancestors.tolist()
    forks = [(source, slot) for slot, source in enumerate(ancestors) if source != slot]
    return [trajectories[source] for source in ancestors], forks


def measure(scheme: str, n_particles: int, n_steps: int, repetitions: int) -> dict[str, float | int | bool]:
    """Times of one scheme in milliseconds."""
    rng = np.random.default_rng(0)
    trajectories = population(n_particles, n_steps)
    times = []
    for _ in range(repetitions):
        potentials = rng.normal(size=n_particles)
        start = time.perf_counter()
        survivors, forks = one_resampling(rng, trajectories, potentials, scheme)
        times.append(1e3 * (time.perf_counter() - start))
    originals = {id(trajectory) for trajectory in trajectories}
    assert all(id(trajectory) in originals for trajectory in survivors), "a trajectory was copied"
    median = float(np.median(times))
    return {
        "median_ms": round(median, 3),
        "worst_ms": round(max(times), 3),
        "forks": len(forks),
        "below_target": median < TARGET_MS,
    }


def main() -> None:
    """Measure every scheme and print the table as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--particles", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repetitions", type=int, default=200)
    options = parser.parse_args()
    schemes = {name: measure(name, options.particles, options.steps, options.repetitions) for name in sorted(SCHEMES)}
    settings = {"particles": options.particles, "steps": options.steps, "repetitions": options.repetitions}
    print(json.dumps({"benchmark": "resampling", **settings, "target_ms": TARGET_MS, "schemes": schemes}, indent=2))
    if not all(row["below_target"] for row in schemes.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
