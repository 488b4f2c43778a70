"""Limits of a run: a budget of requests, a deadline, and a return at which it may end.

Within a budget, enough is kept to finish one particle: until one has finished, half of it. Where the other half is
used up, each particle waits at its next request. The best of them then runs on alone to its end, on what was kept;
afterwards the others continue with the rest. When all of them wait again, the budget is exhausted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

import numpy as np
from langchain_core.runnables import RunnableConfig

from amc_agents.budget import NOTHING, Amounts, Purse, Spender, spenders
from amc_agents.context import change_context
from amc_agents.errors import BudgetExhausted, RunTimedOut
from amc_agents.population.feature import Feature, Weigh
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import Tasks
from amc_agents.population.settings import Settings
from amc_agents.population.system import ParticleSystem, wait_for
from amc_agents.prices import Rates
from amc_agents.runtime.budget_keeper import check_affordable, keep_budgets, paying_from
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Trajectory
from amc_agents.usage import Usage

_KEPT = 0.5
"""Share of the budget that is kept until a particle has finished."""
_GROWTH = 2.0
"""Factor by which the last weighing may cost more than the weighing before it."""


class StopAt(Feature):
    """Ends the run when a finished particle has reached a return.

    Args:
        least: the return.
    """

    name = "stop_at"

    def __init__(self, least: float) -> None:
        self._least = least
        self._reached = False

    def on_step(self, system: ParticleSystem, particle: Particle) -> None:
        """Look at the best return so far."""
        best = -np.inf if system.archive is None else system.archive.return_
        if best >= self._least and system.stop is None:
            self._reached = True
            system.note(
                f"stopped at return {best:g} >= stop_at: the other particles are unfinished and log Z is not known"
            )

    def stops(self, system: ParticleSystem) -> str | None:
        """Return "stop_at" once the return was reached."""
        return "stop_at" if self._reached else None

    def candidates(self, system: ParticleSystem) -> BoolArray | None:
        """Return the particles that have reached the return; None: another reason ended the run."""
        stopped = system.stop
        if stopped is None or stopped.reason != "stop_at":
            return None
        return np.array([particle.return_ >= self._least for particle in system.everyone])

    def record(self, system: ParticleSystem) -> bool:
        """Return whether the return was reached."""
        return self._reached

    def restore(self, system: ParticleSystem, recorded: bool) -> None:
        """End the restored run if the recorded run was to end."""
        self._reached = recorded


class Limits(Feature):
    """The budget and the deadline of a run; each of them ends it abruptly.

    Args:
        settings: of the run.
        agent: whose models the budget must know.
        prices: prices of the configuration file.
        spent_s: seconds that the run has already taken, in a process that was killed.
        restored: (identifier, usage by model) of a run that goes on; None: it begins.
    """

    abrupt = True

    def __init__(
        self,
        settings: Settings,
        agent: Any,
        prices: Mapping[str, Rates],
        spent_s: float,
        restored: tuple[str, Mapping[str, Mapping[str, Usage]]] | None,
    ) -> None:
        self.budget, self._agent = settings.budget, agent
        self._around = spenders()
        self._purse = None if self.budget is None else Purse(self.budget, prices)
        if self._purse is not None and restored is not None:
            self._purse.resume(*restored, spent_s)
        left = None if self.budget is None else self.budget.left.get("seconds")
        of_budget = left is not None and (settings.run_timeout is None or left + spent_s < settings.run_timeout)
        self._limit_s = left + spent_s if left is not None and of_budget else settings.run_timeout
        self._time_is_of = "budget" if of_budget else "run_timeout"
        self._ends_at = None if self._limit_s is None else asyncio.get_running_loop().time() + self._limit_s - spent_s
        self._late = False
        """Whether the deadline interrupted something."""
        self._exhausted = False
        """Whether the budget ended the run."""
        self._keeps_weighing = True
        self._weighing = NOTHING
        """What is kept for the last weighing."""
        self._finished = False
        self._config: RunnableConfig = {}

    async def on_start(self, system: ParticleSystem) -> None:
        """Check what can be known about the budget, and keep a share of it."""
        if self._purse is None:
            return
        worlds = [particle.world for particle in system.particles]
        task = None if (reader := system.particles[0].reader) is None else reader.trajectory.task
        users = self._agent, system.target.critic, system.runner.streams.agent_context, worlds, task
        check_affordable(self._purse.budget, self._purse.prices, *users)
        # With rewards, the values of finished particles are known without a critic.
        self._keeps_weighing = not system.settings.rewards_observed
        self._purse.run_id = system.outlet.run_id
        self._purse.keep(_KEPT)
        self._release_reserve(system.everyone)

    def stops(self, system: ParticleSystem) -> str | None:
        """Return which limit was reached."""
        return "budget" if self._exhausted else self._time_is_of if self._late else None

    @asynccontextmanager
    async def around(self, verb: str, system: ParticleSystem | None) -> AsyncIterator[None]:
        """Interrupt the work at the deadline."""
        limit = asyncio.timeout_at(self._ends_at)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            self._late = True
        if self._late and verb == "start":
            raise self._error([])

    def around_critic(self) -> AbstractContextManager[None]:
        """Pay for the critic's requests."""
        return paying_from(self._purse)

    def on_enter(self, particle: Particle) -> None:
        """Let the particle pay for its requests."""
        if self._purse is not None:
            keep_budgets()
            change_context(spenders=(*self._around, Spender(self._purse, particle)))

    def on_close(self) -> None:
        """Refuse further requests."""
        if self._purse is not None:
            self._purse.close()

    # Running

    async def around_wait(
        self, system: ParticleSystem, tasks: Tasks, config: RunnableConfig, stopped: Callable[[Particle], bool]
    ) -> None:
        """Wait until the particles' tasks have ended, or the budget is exhausted."""
        purse, self._config = self._purse, config
        if purse is None:
            return await wait_for(system, tasks, stopped)
        tasks, parked, loop = {**tasks}, asyncio.Event(), asyncio.get_running_loop()
        purse.on_parked = lambda: _set_from_thread(loop, parked)
        while tasks:
            parked.clear()
            if all(each.queued or purse.is_parked(each) for each in tasks.values()):
                best = await self._finish_best(system, tasks)
                if best is None or stopped(best):
                    return
            else:
                for task in await _first_ended(tasks, parked):
                    particle = tasks.pop(task)
                    task.result()
                    if stopped(particle):  # Steps in progress would cost money.
                        return
            self._release_reserve(system.particles)

    @contextmanager
    def alone(self, particle: Particle) -> Iterator[None]:
        """Let one particle spend what is kept, while no other particle runs; if that is not enough, exhausted."""
        if self._purse is None:
            yield
            return
        self._purse.only = particle
        self._purse.budget.review()
        try:
            yield
        except BudgetExhausted:
            self._exhausted = True
            raise
        finally:
            self._purse.only = None

    async def _finish_best(self, system: ParticleSystem, tasks: Tasks) -> Particle | None:
        """Run the best particle alone to its end on the reserve, and return it; None, and exhausted: not possible."""
        running, runner = [particle for particle in system.particles if particle.can_step], system.runner
        if not running or self._finished:
            self._exhausted = True
            return None
        # The steps that wait for a request hold the slots for which others queue.
        ready = [particle for particle in running if not particle.queued] or running
        best = max(ready, key=lambda particle: (system.weights.log_weights[particle.index], particle.steps))
        runner.urgent = best
        try:
            with suppress(BudgetExhausted), self.alone(best):
                for task in [task for task, particle in tasks.items() if particle is best]:
                    del tasks[task]
                    await task
                await runner.advance(best, None, asyncio.Event(), self._config)
        finally:
            runner.urgent = None
        self._release_reserve(system.particles)
        return None if self._exhausted else best

    def _release_reserve(self, particles: Sequence[Particle]) -> None:
        """After the first particle has finished, keep no more than a weighing."""
        if self._purse is None:
            return
        self._finished = self._finished or any(particle.succeeded for particle in particles)
        if self._finished:
            self._purse.kept = self._weighing if self._keeps_weighing else NOTHING
        self._purse.budget.review()

    # Weighing

    async def around_weigh(self, system: ParticleSystem, weigh: Weigh) -> bool:
        """Weigh all particles; where that does not fit the budget, finish one of them first, and try again."""
        while not self._late:
            try:
                await self._measured(weigh, range(len(system.particles)))
            except BudgetExhausted:
                if await self._finish_best(system, {}) is None:
                    await self.on_cut(system, weigh)
                    return False
            else:
                return True
        return False

    async def on_cut(self, system: ParticleSystem, weigh: Weigh) -> None:
        """Weigh the finished particles on what is kept."""
        if self._purse is None or not self._exhausted:
            return
        self._purse.kept = NOTHING
        self._purse.budget.review()
        slots = [slot for slot, each in enumerate(system.particles) if each.succeeded and np.isnan(system.values[slot])]
        try:
            await self._measured(weigh, slots)
        except BudgetExhausted:
            system.note("the budget did not suffice for a last weighing of the finished particles")

    async def _measured(self, weigh: Weigh, slots: Iterable[int]) -> None:
        """Measure the cost of a weighing, to keep as much for the last weighing."""
        if self.budget is None:
            return await weigh(slots)
        before = self.budget.spent
        await weigh(slots)
        after = self.budget.spent
        costs = {name: _GROWTH * (after[name] - before[name]) for name in after if name in Amounts._fields}
        self._weighing = NOTHING._replace(**costs)

    # The answer

    def candidates(self, system: ParticleSystem) -> BoolArray | None:
        """Return the finished particles if a limit ended the run.

        Raises:
            RunTimedOut: the run's time limit passed before any particle finished.
            BudgetExhausted: the budget ended the run before any particle finished.
        """
        stopped = self.stops(system)
        if stopped is None:
            return None
        finished = np.array([particle.succeeded for particle in system.everyone])
        if not finished.any():
            raise self._error(
                [system.runner.trajectory_of(each) for each in system.everyone], system.outlet.meter.read()
            )
        late = stopped == "run_timeout"
        reason = f"run_timeout={self._limit_s:g} s passed" if late else f"the budget ended: {self.budget}"
        system.note(
            f"{reason}: the answer is the best of {finished.sum()} finished trajectories; the other particles are "
            "unfinished and log Z is not known"
        )
        return finished

    def _error(self, trajectories: Sequence[Trajectory], usage: Mapping[str, Usage] | None = None) -> Exception:
        if (self._exhausted or self._time_is_of == "budget") and self.budget is not None:
            return BudgetExhausted(self.budget.limits, self.budget.spent, trajectories=trajectories, usage=usage)
        return RunTimedOut(self._limit_s or 0.0, trajectories)


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
