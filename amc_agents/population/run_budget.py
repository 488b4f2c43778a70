"""Run particles within a budget: keep enough to finish one of them, and stop when nothing more fits.

Until a particle has finished, half of the budget is kept. Where the other half is used up, each particle waits at its
next request. The best of them then runs on alone to its end, on what was kept; afterwards the others continue with the
rest. When all of them wait again, the budget is exhausted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from langchain_core.runnables import RunnableConfig

from amc_agents.budget import NOTHING, Amounts, Purse
from amc_agents.errors import BudgetExhausted
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import ParticleRunner
from amc_agents.types import FloatArray

_KEPT = 0.5
"""Share of the budget that is kept until a particle has finished."""
_GROWTH = 2.0
"""Factor by which the last weighing may cost more than the weighing before it."""

Tasks = dict[asyncio.Task[None], Particle]


class RunBudget:
    """The budget of a run of particles.

    Args:
        purse: access to the budget.
        particles: all particles at the start.
        keeps_weighing: keep the cost of a weighing after the first particle has finished. False if the values of
            finished particles are known without a critic.
    """

    def __init__(self, purse: Purse, particles: Sequence[Particle], *, keeps_weighing: bool) -> None:
        self.purse = purse
        self.exhausted = False
        """Whether the budget ended the run."""
        self._keeps_weighing = keeps_weighing
        self._weighing = NOTHING
        self._finished = False
        purse.keep(_KEPT)
        self._release_reserve(particles)

    async def wait(
        self,
        tasks: Tasks,
        particles: Sequence[Particle],
        log_weights: FloatArray,
        runner: ParticleRunner,
        config: RunnableConfig,
        on_end: Callable[[], bool],
    ) -> None:
        """Wait until the particles' tasks have ended or the budget is exhausted.

        Args:
            tasks: the running tasks and their particles.
            particles: `[N]` the live slots.
            log_weights: `[N]` their weights.
            runner: runs the particle that finishes alone.
            config: for particles that start.
            on_end: called when a particle stops; returns True if the run ends early.
        """
        tasks, parked, loop = {**tasks}, asyncio.Event(), asyncio.get_running_loop()
        self.purse.on_parked = lambda: _set_from_thread(loop, parked)
        while tasks:
            parked.clear()
            if all(particle.queued or self.purse.is_parked(particle) for particle in tasks.values()):
                if not await self.finish_best(tasks, particles, log_weights, runner, config):
                    return
            else:
                for task in await _first_ended(tasks, parked):
                    del tasks[task]
                    task.result()
            if on_end():
                return
            self._release_reserve(particles)

    async def finish_best(
        self,
        tasks: Tasks,
        particles: Sequence[Particle],
        log_weights: FloatArray,
        runner: ParticleRunner,
        config: RunnableConfig,
    ) -> bool:
        """Run the best particle alone to its end on the reserve; False, and exhausted, if that is not possible."""
        running = [particle for particle in particles if particle.can_step]
        if not running or self._finished:
            self.exhausted = True
            return False
        # The steps that wait for a request hold the slots for which others queue.
        ready = [particle for particle in running if not particle.queued] or running
        best = max(ready, key=lambda particle: (log_weights[particle.index], particle.steps))
        with suppress(BudgetExhausted), self.alone(best):
            for task in [task for task, particle in tasks.items() if particle is best]:
                del tasks[task]
                await task
            await runner.advance(best, None, asyncio.Event(), config)
        self._release_reserve(particles)
        return not self.exhausted

    @contextmanager
    def alone(self, particle: Particle) -> Iterator[None]:
        """Let one particle spend what is kept, while no other particle runs; if that is not enough, exhausted."""
        self.purse.only = particle
        self.purse.budget.review()
        try:
            yield
        except BudgetExhausted:
            self.exhausted = True
            raise
        finally:
            self.purse.only = None

    def spend_reserve(self) -> None:
        """Allow the last weighing to use what is kept."""
        self.purse.kept = NOTHING
        self.purse.budget.review()

    @contextmanager
    def weighing(self) -> Iterator[None]:
        """Measure the cost of a weighing, to keep as much for the last weighing."""
        before = self.purse.budget.spent
        yield
        after = self.purse.budget.spent
        costs = {name: _GROWTH * (after[name] - before[name]) for name in after if name in Amounts._fields}
        self._weighing = NOTHING._replace(**costs)

    def _release_reserve(self, particles: Sequence[Particle]) -> None:
        """After the first particle has finished, keep no more than a weighing."""
        self._finished = self._finished or any(particle.finished and particle.error is None for particle in particles)
        if self._finished:
            self.purse.kept = self._weighing if self._keeps_weighing else NOTHING
        self.purse.budget.review()


async def _first_ended(tasks: Tasks, parked: asyncio.Event) -> list[asyncio.Task[None]]:
    """Wait until a task has ended or a request was parked, and return the tasks that have ended."""
    woken = asyncio.ensure_future(parked.wait())
    try:
        ended, _ = await asyncio.wait([*tasks, woken], return_when=asyncio.FIRST_COMPLETED)
    finally:
        woken.cancel()
    return [task for task in tasks if task in ended]


def _set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # The loop is closed, so nothing waits.
        loop.call_soon_threadsafe(event.set)
