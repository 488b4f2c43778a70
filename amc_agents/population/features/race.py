"""A race: the first particles that finish decide, and the others are cancelled at once with their requests.

"First" is by the clock, by the number of steps, or by tokens. A particle that can no longer be among the first is
dropped as soon as that is known. A particle that waits before a commit call has arrived too: it makes its call when it
is among the first, and all others are dropped before that. `amc advise` replays the same rules on logged runs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amc_agents.errors import AgentContractError, BudgetExhausted
from amc_agents.population.feature import Feature, Weigh
from amc_agents.population.features.usage_by_fate import UsageByFate
from amc_agents.population.particle import Particle
from amc_agents.population.race_settings import Race
from amc_agents.population.system import ParticleSystem
from amc_agents.population.weighing import evaluate
from amc_agents.run import Run
from amc_agents.smc.weights import BoolArray

Recruit = Callable[[int, int], Awaitable[list[Particle]]]
"""Creates new particles: (their number, number of earlier particles)."""


@dataclass
class _Mark:
    """What the race keeps of a particle."""

    judged: bool = False
    """Whether the early stop has judged it."""
    accepted: bool = False
    tokens: int = 0
    """Its tokens before the run was restored."""
    seen: bool = False
    """Whether its end was seen: it may have ended in a task that has not been waited for."""


class Racing(Feature):
    """The race of a run.

    Args:
        race: its settings.
        recruit: creates the particles as which stopped ones begin anew.
    """

    name = "race"
    abrupt = True

    def __init__(self, race: Race, recruit: Recruit) -> None:
        self._race, self._recruit = race, recruit
        self._arrived: list[Particle] = []
        """The accepted particles, in the order of their arrival."""
        self._stopped, self._restarts = 0, 0
        self._ended = False
        """Whether the end of the race was noted."""
        self._system: Any = None
        self._context: Context | None = None
        """In which the critic is asked: outside of the particles'."""

    async def on_start(self, system: ParticleSystem) -> None:
        """Follow the particles of a run."""
        self._system, self._context = system, copy_context()

    async def goes_on(self, particle: Particle) -> bool:
        """Drop a particle that is beaten, and stop one that the critic holds to be hopeless."""
        system, stop = self._system, self._race.stop
        if self._beaten(system, particle):
            return False
        if stop is None or _of(particle).judged or len(system.runner.trajectory_of(particle).steps) < stop.at_step:
            return True
        _of(particle).judged = True
        if self._restarts_left == 0 or not await self._value(particle) < stop.below:
            return True
        if self._restarts_left == 0:  # Another particle has begun anew in the meantime.
            return True
        self._stopped += 1
        if not stop.restarts:
            return False
        self._restarts += 1
        earlier = len(system.particles) + self._restarts - 1
        (fresh,) = await self._recruit(1, earlier)
        await system.runner.begin_anew(particle, fresh)
        for on_recruited in system.features.on_recruited:
            on_recruited(system, earlier)
        return True

    async def on_arrival(self, particle: Particle) -> None:
        """Ask whether a particle may win."""
        if particle.past.at_horizon:  # It has not finished its work.
            return
        accept = self._race.accept
        if accept is None:
            accepted: Any = True
        elif callable(accept):
            trajectory = self._system.runner.trajectory_of(particle)
            if inspect.iscoroutinefunction(accept):
                accepted = await accept(trajectory)
            else:
                accepted = await asyncio.to_thread(accept, trajectory)
        else:
            accepted = await self._value(particle) >= accept
        _of(particle).accepted = bool(accepted)

    def on_step(self, system: ParticleSystem, particle: Particle) -> None:
        """Take down who has arrived, and drop those that are beaten."""
        _of(particle).seen = particle.finished
        if not particle.lost and _of(particle).accepted and all(particle is not each for each in self._arrived):
            self._arrived.append(particle)
            for each in system.particles:
                if self._beaten(system, each):
                    system.runner.drop(each)
        first = self._first(system)
        going_on = any(map(_is_open, system.particles))
        if len(first) < self._race.finish or self._ended or going_on:
            return
        self._ended = True
        if self._lost(system):
            system.note(
                f"the race ended with particle {first[-1].index} after {first[-1].steps} steps: the others were "
                "stopped, and log Z is not known"
            )

    def stops(self, system: ParticleSystem) -> str | None:
        """Return "race" when enough particles have arrived, or all others were stopped."""
        if any(map(_is_open, system.particles)):
            return None
        return "race" if len(self._first(system)) >= self._race.finish or self._lost(system) else None

    async def on_cut(self, system: ParticleSystem, weigh: Weigh) -> None:
        """Let the critic value those among which `select` chooses."""
        first = self._first(system)
        if len(first) < 2 or not system.settings.may_call_critic or system.pick not in ("value", "weight", "sample"):
            return
        try:
            await weigh([each.index for each in first])
        except BudgetExhausted:
            system.note("the budget did not suffice for the critic to choose among those that finished")

    def before_offspring(self, system: ParticleSystem) -> None:
        """Let a particle that has made its commit call run again."""
        self._arrived = [each for each in self._arrived if each.succeeded]

    def answer(self, system: ParticleSystem) -> Particle | None:
        """Return the particle that has won; None: `select` chooses."""
        first = self._finished(system)
        return first[0] if first and self._race.finish == 1 else None

    def candidates(self, system: ParticleSystem) -> BoolArray | None:
        """Return the accepted particles that have finished; None: there are none, so any finished one may be picked."""
        first = self._finished(system)
        return np.array([any(particle is each for each in first) for particle in system.everyone]) if first else None

    def hides_evidence(self, system: ParticleSystem) -> bool:
        """Whether particles were stopped."""
        return self._stopped > 0 or self._lost(system)

    async def on_end(self, system: ParticleSystem, run: Run, winner: Particle) -> Run:
        """Note the early stops."""
        stop = self._race.stop
        if stop is not None and self._stopped:
            system.note(
                f"early stop: {self._stopped} times the critic valued a particle below {stop.below:.4g} after "
                f"{stop.at_step} steps; {self._restarts} began anew"
            )
        return run

    # Forks and durable points

    def on_fork(self, parent: Particle, child: Particle) -> None:
        """Let the child arrive itself."""
        child.states[Racing] = replace(_of(parent), accepted=False)

    def record(self, system: ParticleSystem) -> dict[str, Any]:
        """Return who has arrived, and how many were stopped."""
        arrived = [i for each in self._arrived for i, particle in enumerate(system.everyone) if particle is each]
        return {"arrived": arrived, "stopped": self._stopped, "restarts": self._restarts}

    def restore(self, system: ParticleSystem, recorded: Mapping[str, Any]) -> None:
        """Take over who has arrived, and how many were stopped."""
        self._arrived = [system.everyone[index] for index in recorded["arrived"]]
        self._stopped, self._restarts = recorded["stopped"], recorded["restarts"]

    def record_of(self, particle: Particle) -> tuple[bool, bool, int]:
        """Return what is kept of a particle."""
        mark = _of(particle)
        return mark.judged, mark.accepted, mark.tokens + _tokens(particle)[0]

    def restore_of(self, particle: Particle, recorded: Sequence[Any]) -> None:
        """Take over what was kept of a particle."""
        judged, accepted, tokens = recorded
        particle.states[Racing] = _Mark(judged, accepted, tokens, seen=particle.finished)

    # Who is first

    def _first(self, system: ParticleSystem) -> list[Particle]:
        """The first of those that have arrived, `finish` or fewer."""
        everyone = system.everyone  # Without those that a selected particle's commit call has cleared.
        present = [each for each in self._arrived if any(each is other for other in everyone)]
        if self._race.by != "clock":
            present.sort(key=lambda each: self._measure(system, each))
        return present[: self._race.finish]

    def _finished(self, system: ParticleSystem) -> list[Particle]:
        return [each for each in self._first(system) if each.succeeded]

    def _beaten(self, system: ParticleSystem, particle: Particle) -> bool:
        """Whether a particle that has not arrived can no longer be among the first."""
        first = self._first(system)
        if len(first) < self._race.finish or not _is_open(particle) or any(particle is each for each in first):
            return False
        return self._race.by == "clock" or self._measure(system, particle) >= self._measure(system, first[-1])

    def _measure(self, system: ParticleSystem, particle: Particle) -> int:
        if self._race.by == "steps":
            return len(system.runner.trajectory_of(particle).steps)
        tokens, missing = _tokens(particle)
        if missing:
            raise AgentContractError(
                f'a race by="tokens" needs the usage of every request, and {missing} of particle {particle.index} came '
                'without: use a model that reports it (stream_usage=True), or by="steps"'
            )
        return _of(particle).tokens + tokens

    def _lost(self, system: ParticleSystem) -> bool:
        return any(each.past.dropped for each in system.particles)

    @property
    def _restarts_left(self) -> int | None:
        """How many stopped particles may still begin anew; None: they do not."""
        stop = self._race.stop
        return None if stop is None or not stop.restarts else stop.restarts - self._restarts

    async def _value(self, particle: Particle) -> float:
        """Return the critic's value of a particle; NaN if it failed and the run goes on without."""
        assert self._context is not None
        valuation = await asyncio.create_task(evaluate(self._system, [particle]), context=self._context.copy())
        if valuation.error is not None:
            self._system.note(f"step {particle.steps} of particle {particle.index}: no value ({valuation.error})")
        return float(valuation.values[0])


def _of(particle: Particle) -> _Mark:
    mark: _Mark = particle.states.setdefault(Racing, _Mark())
    return mark


def _is_open(particle: Particle) -> bool:
    """Whether a particle may still arrive, or waits before a commit call."""
    return not particle.lost and not (particle.finished and _of(particle).seen)


def _tokens(particle: Particle) -> tuple[int, int]:
    """Return the tokens of a particle's own requests, and the number of requests without reported usage."""
    segment = particle.of(UsageByFate)
    spent = [] if segment is None else [part.usage for part in segment.line()]
    return sum(usage.tokens for usage in spent), sum(usage.missing for usage in spent)
