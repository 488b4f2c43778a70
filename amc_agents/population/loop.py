"""AMC, Algorithm 1: the run of a population is a loop over five verbs.

    start -> (propagate -> weigh -> resample)* -> conclude

| verb | Algorithm 1 |
|---|---|
| `start.start` | line 1: N particles at their first state, each with weight 1/N |
| `propagate` | lines 2-5: each particle runs on from state to state |
| `weigh` | line 6: w <- w exp(V(new) - V(old) + r), accumulated since the last weighing; line 8: the criterion |
| `resample` | lines 9-10: draw N ancestors by weight, and reset the weights |
| `conclude` | the answer, from the weighted particles |

Each verb returns the name of the next. As nodes of a LangGraph graph (`nodes`) they can stop and go on between any two
verbs. Particles run freely, without waiting for each other, until the criterion needs all of them; so the loop steps
from weighing point to weighing point. What else a run does is a `Feature`, which the verbs ask and tell.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from langchain_core.runnables import RunnableConfig

from amc_agents import smc
from amc_agents.population.conclusion import choose, run_of
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import stop
from amc_agents.population.system import ParticleSystem, archive, check_quorum, continue_from, dropped, wait
from amc_agents.population.weighing import weigh_all, weigh_slots
from amc_agents.run import Run, WeighingPoint


async def propagate(system: ParticleSystem, config: RunnableConfig) -> str:
    """Run every particle to the next weighing point or to its end, or to a pause on the way.

    Args:
        system: the particles.
        config: for the particles that start here.
    """
    if system.stop is not None:
        return "weigh"
    features, until = system.features, system.settings.resample.next_point(system.step)
    if until is not None and until >= system.settings.horizon:
        until = None
    pauses = [step for pauses_at in features.pauses_at if (step := pauses_at(system)) is not None]
    pause = min((step for step in pauses if until is None or step < until), default=None)
    moving = [particle.can_step for particle in system.particles]
    tasks = system.runner.start_all(system.particles, until if pause is None else pause, config)
    try:
        async with features.within("propagate", system):
            await wait(system, tasks, config)
    finally:
        system.runner.cut = system.runner.cut or not all(task.done() for task in tasks)
        await stop([*tasks])
    if (stopped := system.stop) is not None and stopped.abrupt:
        for particle in system.particles:
            archive(system, particle)
        system.values[moving] = np.nan
        return "weigh"
    causes = check_quorum(system)
    if pause is not None and not system.concluded and not system.at_door:
        return await rest(system, "propagate")
    system.step = max(particle.steps for particle in system.particles) if until is None or system.at_door else until
    if causes:
        system.note_failures(causes)
    return "weigh"


async def weigh(system: ParticleSystem) -> str:
    """Weigh the particles in their current states, and decide whether to resample them."""
    async with system.features.within("weigh", system):
        await _weigh(system)
    then = "conclude" if system.concluded else "resample" if system.due else "propagate"
    then = await system.features.after(system, then)
    return then if then == "resample" else await rest(system, then)


async def _weigh(system: ParticleSystem) -> None:
    features, stopped = system.features, system.stop
    if stopped is not None and stopped.abrupt:
        for on_cut in features.on_cut:
            await on_cut(system, partial(weigh_slots, system))
        return
    weighs = next(iter(features.around_weigh), weigh_all)
    if not await weighs(system, partial(weigh_slots, system)):
        return
    point = WeighingPoint(system.step, system.values.copy(), system.weights.log_weights.copy(), system.ess, None)
    system.history.append(point)
    system.emit("amc.weigh", step=system.step, values=point.values.tolist(), log_weights=point.log_weights.tolist(),
                ess=point.ess)  # fmt: skip
    for on_weighed in features.on_weighed:
        on_weighed(system)


async def resample(system: ParticleSystem) -> str:
    """Draw ancestors by weight: discard light particles, fork heavy ones, and retire finished ones."""
    async with system.features.within("resample", system):
        await _resample(system)
    return await rest(system, "propagate")


async def _resample(system: ParticleSystem) -> None:
    settings, sizes = system.settings, [offspring(system) for offspring in system.features.offspring]
    size = next((size for size in sizes if size is not None), len(system.particles))
    after, info = smc.resample(
        system.rng,
        system.weights,
        system.retirable,
        scheme=settings.scheme,
        mode=settings.finished,
        n_offspring=size,
    )
    if not info.resampled:
        system.weights = after
        return
    ancestors, slots = info.ancestors, tuple(np.flatnonzero(info.retired).tolist())
    retired, gone = [system.retire(slot) for slot in slots], dropped(system, ancestors, slots)
    await continue_from(system, ancestors, retired)
    system.weights, system.values = after, system.values[ancestors]
    system.history[-1] = replace(system.history[-1], ancestors=ancestors.copy(), retired=slots, dropped=gone)
    system.emit("amc.resample", step=system.step, ancestors=ancestors.tolist(), retired=list(slots))
    for on_resampled in system.features.on_resampled:
        on_resampled(system)


async def conclude(system: ParticleSystem) -> tuple[Run, Particle]:
    """Stop the agents, select the answer, and return the run with the particle whose trajectory is the answer.

    Raises:
        AllWeightsZero: no particle has a positive weight.
        PopulationError: the run was stopped before any particle had finished.
    """
    await system.runner.stop_all(system.everyone)
    winner, index = choose(system)
    run = run_of(system, winner, index)
    for on_end in system.features.on_end:
        run = await on_end(system, run, winner)
    return replace(run, notes=tuple(system.outlet.notes)), winner


async def rest(system: ParticleSystem, then: str) -> str:
    """Let features act between two verbs, while no particle moves, and return the verb that follows."""
    for on_pause in system.features.on_pause:
        await on_pause(system, then)
    return then
