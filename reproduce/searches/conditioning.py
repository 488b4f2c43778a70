"""Iterated search: conditional SMC over rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from found import Found, Model, S

from amc_agents.smc import log_sum_exp, multinomial, normalised
from amc_agents.types import FloatArray


async def conditional(
    model: Model[S],
    n: int,
    points: Collection[int],
    beta: float,
    rng: np.random.Generator,
    reference: Sequence[S],
) -> tuple[list[list[S]], FloatArray, FloatArray]:
    """Run conditional SMC: slot 0 is the reference's, whatever its weight (Andrieu, Doucet and Holenstein 2010).

    Finished particles stay in their slots. A draw of a path by weight leaves the target invariant.

    Args:
        model: policy, world and critic.
        n: number of particles, the reference included.
        points: steps after which to weigh and resample, multinomially.
        beta: of the target.
        rng: for resampling.
        reference: the states of the reference after each step, or () for an unconditional run.

    Returns:
        `[N]` paths of states, `[N]` log-weights and `[N]` final values.
    """
    paths: list[list[S]] = [[state] for state in await model.begin(n)]
    log_weights, potentials = np.full(n, -np.log(n)), np.zeros(n)
    values = np.zeros(n)
    step, pinned = 0, len(reference) > 0
    while not all(path[-1].finished for path in paths):
        moving = [slot for slot, path in enumerate(paths) if not path[-1].finished and not (pinned and slot == 0)]
        for slot, state in zip(moving, await model.step([paths[slot][-1] for slot in moving]), strict=True):
            paths[slot] = [*paths[slot], state]
        if pinned and step < len(reference):
            paths[0] = [*paths[0], reference[step]]
        step += 1
        ended = all(path[-1].finished for path in paths)
        if step not in points and not ended:
            continue
        values = await model.values([path[-1] for path in paths])
        log_weights, potentials = log_weights + values / beta - potentials, values / beta
        if ended:
            break
        ancestors = multinomial(rng, log_weights, n)
        if pinned:
            ancestors[0] = 0
        total = float(log_sum_exp(log_weights))
        log_weights, potentials = np.full(n, total - np.log(n)), potentials[ancestors]
        paths = [paths[index] for index in ancestors]
    return paths, log_weights, values


async def iterated(
    model: Model[S],
    n: int,
    rounds: int,
    points: Collection[int],
    beta: float,
    rng: np.random.Generator,
    choose: Callable[[FloatArray, FloatArray], int] | None = None,
) -> Found[S]:
    """Repeat conditional SMC; each round's reference is drawn from the round before. The weights are the last round's.

    Args:
        model: policy, world and critic.
        n: particles per round, the reference included.
        rounds: number of rounds.
        points: steps after which to resample.
        beta: of the target.
        rng: for resampling.
        choose: (log-weights, values) -> the next reference; None: drawn by weight, which leaves the target invariant.
    """
    found: Found[S] = Found()
    reference: Sequence[S] = ()
    for _ in range(rounds):
        paths, log_weights, values = await conditional(model, n, points, beta, rng, reference)
        for slot, path in enumerate(paths):
            if not reference or slot > 0:
                found.add(path[-1], float(log_weights[slot]), float(values[slot]))
        chosen = int(rng.choice(n, p=normalised(log_weights))) if choose is None else choose(log_weights, values)
        reference = paths[chosen][1:]
    return found
