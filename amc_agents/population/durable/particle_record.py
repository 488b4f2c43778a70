"""A particle as containers, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.store.base import BaseStore
from langgraph.types import Interrupt

from amc_agents.errors import ParticleFailure, PopulationError
from amc_agents.messages import MessageReader, as_message, message_key, step_of
from amc_agents.population.durable.interning import Constant, Memo
from amc_agents.population.durable.random_state import dump_rng, load_rng
from amc_agents.population.particle import Particle
from amc_agents.population.saver import ForkSaver
from amc_agents.population.store.view import ParticleStore
from amc_agents.quoting import quoted
from amc_agents.runtime.door import CallKey, Door, PendingCall
from amc_agents.runtime.effects import Effect
from amc_agents.runtime.world import RecordingWorld
from amc_agents.types import Step, Task, Trajectory

_PLAIN = (
    "index",
    "ancestor",
    "thread_id",
    "steps",
    "saved",
    "supersteps",
    "finished",
    "at_horizon",
    "return_",
    "world_return",
    "hand_off",
    "held",
)
"""Fields that are stored as they are."""


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
        **{name: getattr(particle, name) for name in _PLAIN},
        "proposal": particle.proposal,
        # The flags of a closed world are gone after a restart.
        "at_horizon": particle.truncated if world is None else particle.at_horizon,
        "state": dict(particle.state),
        "rng": dump_rng(particle.rng),
        "reader": reader,
        "world": world,
        "store": None if particle.store is None else particle.store.dump(),
        "error": None if error is None else (type(error).__name__, str(error)),
        "door": _dump_door(particle.door),
        "questions": [(question.id, question.value) for question in particle.questions],
        "thread": saver.dump_thread(particle.thread_id) if particle.running and particle.saved else None,
    }


def load_particle(
    dumped: Mapping[str, Any],
    saver: ForkSaver,
    *,
    world: RecordingWorld | None,
    readers: Sequence[MessageReader],
    base_store: BaseStore | None,
    effects: Mapping[str, Effect],
) -> Particle:
    """Rebuild a particle.

    Args:
        dumped: what `dump_particle` returned.
        saver: receives its thread.
        world: its restored world.
        readers: of all particles.
        base_store: the agent's store.
        effects: of its tools.
    """
    error = dumped["error"]
    particle = Particle(
        state=dumped["state"],
        rng=load_rng(dumped["rng"]),
        reader=None if dumped["reader"] is None else readers[dumped["reader"]],
        world=world,
        store=None if dumped["store"] is None or base_store is None else ParticleStore(base_store),
        error=None if error is None else ParticleFailure.like(*error),
        door=_load_door(dumped["door"], effects),
        questions=tuple(Interrupt(value, id=name) for name, value in dumped["questions"]),
        proposal=dumped.get("proposal", 0),
        **{name: dumped[name] for name in _PLAIN},
    )
    if particle.store is not None:
        particle.store.load(dumped["store"])
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
