"""A population as containers, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.types import Interrupt

from amc_agents.errors import ConfigurationError, ParticleFailure, PopulationError
from amc_agents.messages import MessageReader, as_message, message_key, step_of
from amc_agents.population.features.durable.interning import Constant, Memo
from amc_agents.population.features.durable.world_record import dump_world
from amc_agents.population.particle import Particle, Past
from amc_agents.population.saver import ForkSaver
from amc_agents.population.settings import Settings
from amc_agents.population.system import ParticleSystem, Retired
from amc_agents.quoting import quoted
from amc_agents.run import WeighingPoint
from amc_agents.runtime.door import CallKey, Door, PendingCall
from amc_agents.runtime.effects import Effect
from amc_agents.runtime.world import RecordingWorld
from amc_agents.smc.filter import FilterState
from amc_agents.types import Step, Task, Trajectory
from amc_agents.usage import Meter, Usage

_FIXED = ("n_particles", "beta", "success_reward", "rewards", "rewards_observed")
"""Settings that give the recorded weights their meaning."""


async def dump_system(system: ParticleSystem, memo: Memo, elapsed_s: float) -> dict[str, Any]:
    """Describe a population whose agents are stopped, and save its worlds.

    Args:
        system: the population.
        memo: the descriptions of what never changes.
        elapsed_s: seconds since the start of the run.
    """
    archived = [] if system.archive is None else [system.archive]
    particles = list({id(particle): particle for particle in [*system.everyone, *archived]}.values())
    worlds = await asyncio.gather(*(_dump_world(particle, memo) for particle in particles))
    # Copies of a finished particle share its reader, by which they are recognised.
    readers = {id(particle.reader): particle.reader for particle in particles if particle.reader is not None}
    numbers = {key: number for number, key in enumerate(readers)}
    place = {id(particle): number for number, particle in enumerate(particles)}
    plain, recording = system.settings.as_plain(), system.features.recording
    return {
        "settings": {name: plain[name] for name in _FIXED},
        "seed": system.outlet.seed,
        "run_id": system.outlet.run_id,
        "rng": dump_rng(system.rng),
        "particles": [
            {
                **dump_particle(particle, system.runner.streams.saver, world, numbers.get(id(particle.reader))),
                "features": {each.name: each.record_of(particle) for each in recording},
            }
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
        "beta": (system.target.beta, system.target.beta_step),
        "history": [memo.of(point, _dump_point) for point in system.history],
        "notes": list(system.outlet.notes),
        "step": system.step,
        "features": {each.name: each.record(system) for each in recording},
        "usage": {
            role: {model: _dump(usage) for model, usage in models.items()}
            for role, models in system.outlet.meter.by_model().items()
        },
        "elapsed_s": elapsed_s,
    }


def load_system(dumped: Mapping[str, Any], system: ParticleSystem, particles: Sequence[Particle]) -> None:
    """Make a new population the recorded one.

    Args:
        dumped: what `dump_system` returned.
        system: created for this process, with its critic, settings, features and clients.
        particles: the recorded particles, in order.
    """
    system.rng = load_rng(dumped["rng"])
    system.particles = [particles[number] for number in dumped["live"]]
    system.retired = [Retired(particles[number], *weights) for number, *weights in dumped["retired"]]
    system.archive = None if dumped["archive"] is None else particles[dumped["archive"]]
    system.weights = FilterState(*dumped["weights"])
    system.values, system.known = dumped["values"], dumped["known"]
    system.target.beta, system.target.beta_step = dumped["beta"]
    system.history = [WeighingPoint(*point) for point in dumped["history"]]
    new = [note for note in system.outlet.notes if note not in dumped["notes"]]
    system.outlet.notes[:] = [*dumped["notes"], *new]
    system.step = dumped["step"]
    for name, recorded in dumped["features"].items():
        feature = system.features.require(name)
        if feature is None:
            continue  # The call of this process does without it.
        feature.restore(system, recorded)
        for particle, record in zip(particles, dumped["particles"], strict=True):
            if name in record["features"]:
                feature.restore_of(particle, record["features"][name])


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


async def _dump_world(particle: Particle, memo: Memo) -> Any:
    world = particle.world
    if world is None or not world.is_open:
        return None
    return await dump_world(world, at_rest=not particle.running, memo=memo)


def _dump_point(point: WeighingPoint) -> tuple[Any, ...]:
    """Return the fields of a weighing point without the dropped trajectories, which would dwarf the rest."""
    return tuple(getattr(point, field.name) for field in fields(point) if field.name != "dropped")


def _dump(value: Any) -> tuple[Any, ...]:
    """Return the fields of a dataclass, without copying arrays."""
    return tuple(getattr(value, field.name) for field in fields(value))


_OWN = ("index", "ancestor", "thread_id")
_PAST = (
    "steps", "saved", "supersteps", "finished", "at_horizon", "return_", "world_return", "hand_off", "held", "dropped",
)  # fmt: skip
"""Fields that are stored as they are; a record of an earlier version may lack the last ones."""


def dump_particle(particle: Particle, saver: ForkSaver, world: Any, reader: int | None) -> dict[str, Any]:
    """Describe a stopped particle.

    Args:
        particle: its agent does not run.
        saver: holds its thread.
        world: the record of its world; None: it has no world, or the world is closed.
        reader: number of its reader; None: it has none.
    """
    error = particle.error
    return {
        **{name: getattr(particle, name) for name in _OWN},
        **{name: getattr(particle.past, name) for name in _PAST},
        # The flags of a closed world are gone after a restart.
        "at_horizon": particle.truncated if world is None else particle.past.at_horizon,
        "state": dict(particle.state),
        "rng": dump_rng(particle.rng),
        "reader": reader,
        "world": world,
        "error": None if error is None else (type(error).__name__, str(error)),
        "door": _dump_door(particle.door),
        "questions": [(question.id, question.value) for question in particle.past.questions],
        "thread": saver.dump_thread(particle.thread_id) if particle.running and particle.past.saved else None,
    }


def load_particle(
    dumped: Mapping[str, Any],
    saver: ForkSaver,
    *,
    world: RecordingWorld | None,
    readers: Sequence[MessageReader],
    effects: Mapping[str, Effect],
) -> Particle:
    """Rebuild a particle.

    Args:
        dumped: what `dump_particle` returned.
        saver: receives its thread.
        world: its restored world.
        readers: of all particles.
        effects: of its tools.
    """
    error = dumped["error"]
    past = Past(
        state=dumped["state"],
        reader=None if dumped["reader"] is None else readers[dumped["reader"]],
        error=None if error is None else ParticleFailure.like(*error),
        questions=tuple(Interrupt(value, id=name) for name, value in dumped["questions"]),
        **{name: dumped[name] for name in _PAST if name in dumped},
    )
    particle = Particle(
        past,
        load_rng(dumped["rng"]),
        world=world,
        door=_load_door(dumped["door"], effects),
        **{name: dumped[name] for name in _OWN},
    )
    if dumped["thread"] is not None:
        saver.load_thread(particle.thread_id, dumped["thread"])
    return particle


def _dump_door(door: Door) -> dict[str, Any]:
    return {
        "deferred": [(*call.key, dict(call.args)) for call in door.deferred],
        "waiting": [(*call.key, dict(call.args)) for call in door.waiting.values()],
        "opened": [(*call.key, dict(call.args)) for call in door.opened.values()],
        "results": [(tuple(key), result) for key, result in door.results.items()],
        "failures": [
            (tuple(key), [(type(error).__name__, str(error)) for error in errors])
            for key, errors in door.failures.items()
        ],
    }


def _load_door(dumped: Mapping[str, Any], effects: Mapping[str, Effect]) -> Door:
    deferred, waiting, opened = (
        [PendingCall(CallKey(*key), key[1], args) for *key, args in dumped[name]]
        for name in ("deferred", "waiting", "opened")
    )
    return Door(
        effects,
        tuple(deferred),
        {CallKey(*key): result for key, result in dumped["results"]},
        {call.key: call for call in waiting},
        {call.key: call for call in opened},
        {
            CallKey(*key): tuple(ParticleFailure.like(*error) for error in errors)
            for key, errors in dumped.get("failures", ())
        },
    )


def dump_reader(reader: MessageReader, memo: Memo) -> dict[str, Any]:
    """Describe what was read of a particle's messages.

    Args:
        reader: the reader.
        memo: the descriptions of steps, which particles share.
    """
    trajectory = reader.trajectory
    listed = set(map(message_key, reader.listed))
    return {
        "task": (trajectory.task.id, trajectory.task.instruction),
        "steps": _dump_steps(reader, memo),
        "ends": (trajectory.done, trajectory.truncated),
        "listed": list(reader.listed),
        # A message without an id that left the agent's list cannot come back.
        "unlisted": [key for key in reader.seen if key not in listed and isinstance(key, str)],
        "given": list(reader.given),
    }


def load_reader(dumped: Mapping[str, Any], task: Task | None) -> MessageReader:
    """Rebuild a reader from what `dump_reader` returned.

    Args:
        dumped: the record.
        task: of the worlds, which must be the recorded task; None: the task was the agent's input.

    Raises:
        PopulationError: the tasks differ.
    """
    name, instruction = dumped["task"]
    if task is not None and (task.id, task.instruction) != (name, instruction):
        raise PopulationError(
            f"the run cannot go on: its task was {quoted(name)}, and environment= now returns {quoted(task.id)} "
            "(or another instruction): it must return the same task for the same input"
        )
    done, truncated = dumped["ends"]
    steps = tuple(step_of(*step) if len(step) == 2 else Step(*step) for step in dumped["steps"])
    trajectory = Trajectory(task or Task(name, instruction), steps, done, truncated)
    listed = tuple(dumped["listed"])
    seen = {**dict.fromkeys(dumped["unlisted"]), **{message_key(message): message for message in listed}}
    return MessageReader(trajectory, seen, listed, tuple(dumped.get("given", ())))


def _dump_steps(reader: MessageReader, memo: Memo) -> list[Constant]:
    messages: dict[str | None, BaseMessage] = {}

    def describe(step: Step) -> tuple[Any, ...]:
        messages.update({} if messages else {message.id: message for message in map(as_message, reader.listed)})
        return _dump_step(step, messages)

    return [memo.of(step, describe) for step in reader.trajectory.steps]


def _dump_step(step: Step, messages: Mapping[str | None, BaseMessage]) -> tuple[Any, ...]:
    """Describe a step by its messages, which are stored anyway, or else by its texts."""
    own = [messages[name] for name in step.message_ids if name in messages]
    if own and isinstance(own[0], AIMessage) and step_of(own, step.reward) == step:
        return tuple(own), float(step.reward)
    # The text of a message is of a subclass of str.
    return str(step.action), str(step.observation), str(step.thought), float(step.reward), step.message_ids


def dump_rng(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator, and of the seed sequence from which it spawns others."""
    seeds = rng.bit_generator.seed_seq
    assert isinstance(seeds, np.random.SeedSequence)
    bits = rng.bit_generator.state
    return {**bits, **bits["state"], "seeds": seeds.state}


def load_rng(dumped: Mapping[str, Any]) -> np.random.Generator:
    """Rebuild a generator from what `dump_rng` returned: it draws and spawns as the original would."""
    bits = np.random.PCG64(np.random.SeedSequence(**dumped["seeds"]))
    state: Any = {**dumped, "state": {"state": dumped["state"], "inc": dumped["inc"]}}
    bits.state = state
    return np.random.Generator(bits)
