"""A population as containers, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from amc_agents.commits import Commit
from amc_agents.errors import ConfigurationError
from amc_agents.population.durable.interning import Memo
from amc_agents.population.durable.particle_record import dump_particle, dump_reader
from amc_agents.population.durable.random_state import dump_rng, load_rng
from amc_agents.population.durable.world_record import dump_world
from amc_agents.population.particle import Particle
from amc_agents.population.population import ParticleSystem, Retired
from amc_agents.population.settings import Settings
from amc_agents.quoting import quoted
from amc_agents.run import WeighingPoint
from amc_agents.runtime.tracing import Untraced
from amc_agents.smc.filter import FilterState
from amc_agents.usage import Meter, Usage

_FIXED = ("n_particles", "beta", "success_reward", "rewards", "rewards_observed")
"""Settings that give the recorded weights their meaning."""


async def dump_system(system: ParticleSystem, memo: Memo) -> dict[str, Any]:
    """Describe a population whose agents are stopped, and save its worlds.

    Args:
        system: the population.
        memo: the descriptions of what never changes.
    """
    particles = _all_particles(system)
    worlds = await asyncio.gather(*(_dump_world(particle, memo) for particle in particles))
    # Copies of a finished particle share its reader, by which they are recognised.
    readers = {id(particle.reader): particle.reader for particle in particles if particle.reader is not None}
    numbers = {key: number for number, key in enumerate(readers)}
    place = {id(particle): number for number, particle in enumerate(particles)}
    plain = system.settings.as_plain()
    return {
        "settings": {name: plain[name] for name in _FIXED},
        "seed": system.seed,
        "run_id": system.runner.streams.run_id,
        "rng": dump_rng(system.rng),
        "particles": [
            dump_particle(particle, system.runner.streams.saver, world, numbers.get(id(particle.reader)))
            for particle, world in zip(particles, worlds, strict=True)
        ],
        "readers": [dump_reader(reader, memo) for reader in readers.values()],
        "live": [place[id(particle)] for particle in system.particles],
        "retired": [
            (place[id(retired.particle)], retired.log_weight, retired.log_weight_since, retired.value)
            for retired in system.retired
        ],
        "archive": None if system.archive is None else place[id(system.archive)],
        "weights": tuple(map(np.asarray, _dump(system.weights))),
        "values": system.values,
        "known": system.known,
        "beta": (system.beta, system.beta_step),
        "history": [memo.of(point, _dump_point) for point in system.history],
        "notes": list(system.notes),
        "step": system.step,
        "due": system.due,
        "last_pause": system.last_pause,
        "selected": system.selected,
        "chosen_past": system.chosen_past,
        "n_attempts": system.n_attempts,
        "commits": [_dump(commit) for commit in system.commits],
        "stopped": system.stopped,
        "n_earlier": system.n_earlier,
        "twins": system.twins.dump(),
        "usage": {
            role: {model: _dump(usage) for model, usage in models.items()}
            for role, models in system.meter.by_model().items()
        },
        "elapsed_s": system.deadline.elapsed_s,
        **_dump_spans(system, particles),
    }


def load_system(dumped: Mapping[str, Any], system: ParticleSystem, particles: Sequence[Particle]) -> None:
    """Make a new population the recorded one.

    Args:
        dumped: what `dump_system` returned.
        system: created for this process, with its critic, settings and clients.
        particles: the recorded particles, in order.
    """
    system.runner = replace(system.runner, streams=replace(system.runner.streams, run_id=dumped["run_id"]))
    system.rng = load_rng(dumped["rng"])
    system.particles = [particles[number] for number in dumped["live"]]
    system.retired = [Retired(particles[number], *weights) for number, *weights in dumped["retired"]]
    system.archive = None if dumped["archive"] is None else particles[dumped["archive"]]
    system.weights = FilterState(*dumped["weights"])
    system.values, system.known = dumped["values"], dumped["known"]
    if "beta" in dumped:  # Older points have none: their settings give a number.
        system.beta, system.beta_step = dumped["beta"]
    system.history = [WeighingPoint(*point) for point in dumped["history"]]
    system.notes = [*dumped["notes"], *(note for note in system.notes if note not in dumped["notes"])]
    system.step, system.due, system.last_pause = dumped["step"], dumped["due"], dumped["last_pause"]
    system.n_earlier = dumped["n_earlier"]
    system.selected, system.commits = dumped["selected"], [Commit(*commit) for commit in dumped["commits"]]
    system.chosen_past, system.n_attempts = dumped["chosen_past"], dumped["n_attempts"]
    if dumped["stopped"]:
        system.stop()
    system.twins.load(dumped["twins"])
    _load_spans(dumped.get("spans"), system, particles)


def load_usage(dumped: Mapping[str, Any]) -> Meter:
    """Return a meter with the recorded usage."""
    meter = Meter()
    for role, models in dumped["usage"].items():
        for model, counts in models.items():
            meter.add(role, Usage(*counts), model)
    return meter


def check_settings(dumped: Mapping[str, Any], settings: Settings) -> None:
    """Check that the recorded weights mean the same under the current settings.

    Raises:
        ConfigurationError: a setting differs.
    """
    now = settings.as_plain()
    for name, before in dumped["settings"].items():
        if now[name] != before:
            raise ConfigurationError(
                f"the run was started with {name}={quoted(before)} and cannot go on with {name}={quoted(now[name])}: "
                "build the graph as before, or start a new run by giving an input"
            )


def _all_particles(system: ParticleSystem) -> list[Particle]:
    archived = [] if system.archive is None else [system.archive]
    return list({id(particle): particle for particle in [*system.everyone, *archived]}.values())


async def _dump_world(particle: Particle, memo: Memo) -> Any:
    world = particle.world
    if world is None or not world.is_open:
        return None
    return await dump_world(world, at_rest=not particle.running, memo=memo)


def _dump_spans(system: ParticleSystem, particles: Sequence[Particle]) -> dict[str, Any]:
    """Return the contexts of the spans, to which the spans of a resumed run link; empty if nothing is traced."""
    run = system.span.traceparent
    return {} if run is None else {"spans": (run, [particle.span.traceparent for particle in particles])}


def _load_spans(dumped: Any, system: ParticleSystem, particles: Sequence[Particle]) -> None:
    if dumped is None:
        return
    system.span.continues(dumped[0])
    for particle, traceparent in zip(particles, dumped[1], strict=True):
        particle.span = Untraced(traceparent)


def _dump_point(point: WeighingPoint) -> tuple[Any, ...]:
    """Return the fields of a weighing point without the dropped trajectories, which would dwarf the rest."""
    return tuple(getattr(point, field.name) for field in fields(point) if field.name != "dropped")


def _dump(value: Any) -> tuple[Any, ...]:
    """Return the fields of a dataclass, without copying arrays."""
    return tuple(getattr(value, field.name) for field in fields(value))
