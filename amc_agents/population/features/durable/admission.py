"""Admit a call to its thread: its lease, and what may follow a run that broke off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command, StateSnapshot, StateUpdate

from amc_agents.errors import AgentContractError, CommitError, ConfigurationError
from amc_agents.population.features.durable.lease import Journal, Lease
from amc_agents.population.features.durable.points import NO_CHECKPOINTS as NO_CHECKPOINTS
from amc_agents.population.features.durable.points import PointStore, points_thread
from amc_agents.population.open_run import OpenRun
from amc_agents.population.saver import ForkSaver


async def admit(graph: Any, owner: OpenRun, given: Any, config: RunnableConfig, *, commits: bool, exits: bool) -> Any:
    """Take the lease of a call's thread, and return the input with which the call goes on.

    Args:
        graph: the graph that is called.
        owner: of the call; gets the lease.
        given: the input of the call.
        config: of the call, with the graph's own.
        commits: whether the agent has commit tools.
        exits: whether LangGraph writes no checkpoint before the end of the call.

    Raises:
        ThreadHeld: another call runs the thread.
        AgentContractError: a commit call of this run could be repeated after a crash.
        CommitError: a new input, but the thread's last run made commit calls and has not ended.
    """
    place = config.get("configurable", {})
    saver = place.get("__pregel_checkpointer", graph.checkpointer)
    edits = isinstance(given, Command) and bool(given.goto or given.update)
    if not owner.checkpointed or not isinstance(saver, BaseCheckpointSaver) or isinstance(saver, ForkSaver):
        if edits:
            raise ConfigurationError(_NOT_EDITABLE)
        return given
    if "thread_id" not in place:
        raise ConfigurationError(_NO_THREAD)
    if exits and commits:
        raise AgentContractError(_EXIT_LOSES_COMMITS)
    if not exits:
        thread_id, namespace = str(place["thread_id"]), place.get("checkpoint_ns", "")
        key = points_thread(thread_id, namespace)
        owner.lease = await Lease.take(saver, thread_id, key, asynchronous=owner.asynchronous)
    if owner.lease is None and commits:
        raise AgentContractError(CANNOT_SWAP.format(type(saver).__name__))
    if edits:
        return await _edited(graph, owner, given, config)
    starts_anew = given is not None and not isinstance(given, Command) and not place.get("checkpoint_ns")
    if owner.lease is None or not owner.lease.journal.made or not starts_anew:
        return given
    return await _beside_unfinished(graph, owner, owner.lease, given, config)


async def _beside_unfinished(graph: Any, owner: OpenRun, lease: Lease, given: Any, config: RunnableConfig) -> Any:
    """Return what to do with a new input in a thread whose last run made commit calls and was not seen to end."""
    state = await _state(graph, owner, config)
    if not state.tasks:
        ended = state.config["configurable"].get("checkpoint_id", "") > (lease.journal.head or "")
        if ended:  # It was killed between its last checkpoint and the end of the call.
            await lease.record(Journal())
        return given  # If not ended, no checkpoint of the graph was stored, and `init` restores the run.
    if not lease.journal.uncertain:
        raise CommitError(_UNFINISHED.format(lease.journal.made))
    owner.unread = True
    return None


async def _edited(graph: Any, owner: OpenRun, given: Command[Any], config: RunnableConfig) -> Command[Any]:
    """Keep what a command says beside its answer for the agent that asked, and return the rest."""
    tasks = (await _state(graph, owner, config)).tasks
    about_commit = owner.lease is not None and owner.lease.journal.uncertain
    if given.resume is not None and any(task.interrupts for task in tasks) and not about_commit:
        owner.edit = {"update": given.update, "goto": given.goto}
        return Command(resume=given.resume)
    if given.goto or tasks:
        raise ConfigurationError(_NOT_EDITABLE)
    return given


def check_at_rest(state: StateSnapshot, supersteps: Sequence[Sequence[StateUpdate]]) -> None:
    """Refuse to change the state of a thread whose run has not ended: its particles would not see the change.

    Args:
        state: of the thread.
        supersteps: the updates; one without values that ends or copies the thread is always possible.

    Raises:
        ConfigurationError: the run has not ended.
    """
    changes = any(update.values is not None for updates in supersteps for update in updates)
    if state.tasks and changes:
        raise ConfigurationError(_NOT_EDITABLE)


async def _state(graph: Any, owner: OpenRun, config: RunnableConfig) -> StateSnapshot:
    """Return the newest state of the call's thread."""
    newest: RunnableConfig = {**config, "configurable": {**config["configurable"]}}
    newest["configurable"].pop("checkpoint_id", None)
    state: StateSnapshot = await (
        graph.aget_state(newest) if owner.asynchronous else asyncio.to_thread(graph.get_state, newest)
    )
    return state


async def forget(saver: BaseCheckpointSaver[Any], config: RunnableConfig, *, asynchronous: bool) -> None:
    """Delete the durable points and the record of a thread.

    Args:
        saver: the graph's checkpointer.
        config: names the thread.
        asynchronous: whether the checkpointer's async methods are used.

    Raises:
        ThreadHeld: a call runs the thread.
    """
    thread_id = str(config["configurable"]["thread_id"])
    key = points_thread(thread_id)
    lease = await Lease.take(saver, thread_id, key, asynchronous=asynchronous)
    store = PointStore(saver, key, asynchronous, None, nested=False, replays=False)
    try:
        await store.delete()
    finally:
        if lease is not None:
            await lease.release(finished=True)


_NOT_EDITABLE = (
    "the state of a run lies in its particles, so that it is only changed together with the answer to the agent's "
    "question, by Command(resume=answer, update=..., goto=...): goto= alone, and update= or update_state in a thread "
    "whose run has not ended, or asks whether a commit call ran, would be ignored"
)
_NO_THREAD = (
    "a graph with a checkpointer needs to know the thread: pass config={'configurable': {'thread_id': ...}} "
    "(Checkpointer requires one or more of the following 'configurable' keys: thread_id, checkpoint_ns, checkpoint_id)"
)
_EXIT_LOSES_COMMITS = (
    'the agent has commit tools, and with durability="exit" no checkpoint is written before the end of the call, so '
    'that a run that breaks off would repeat its commits: use durability="async" or "sync", or build amc() with '
    "checkpointer=False"
)
CANNOT_SWAP = (
    "the agent has commit tools, and the checkpointer {} cannot tell two callers of a thread apart, so that both could "
    "make the same commit: use InMemorySaver, SqliteSaver, PostgresSaver or their async forms, give the checkpointer "
    "aread_record and aswap_record (docs/durable.md), or build amc() with checkpointer=False"
)
_UNFINISHED = (
    "the thread's last run broke off, or waits for an answer, after it made {} commit call(s), which a new input could "
    "repeat: first finish it with invoke(None, config), or answer its question with Command(resume=...); then send the "
    "new input. graph.forget(config) deletes the run instead"
)
