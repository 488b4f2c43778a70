"""An in-memory checkpoint saver that copies threads by reference.

Nothing is serialised, because a particle never leaves the process. LangGraph's own savers do not implement
`copy_thread`, and a copy through their interface serialises the whole state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    copy_checkpoint,
    empty_checkpoint,
    get_checkpoint_id,
)
from langgraph.types import Send
from typing_extensions import override

from amc_agents.quoting import quoted
from amc_agents.runtime.calls import PARTICLE_THREAD


class _Saved(NamedTuple):
    """A checkpoint with its own containers, so that threads can share it."""

    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    parent_id: str | None


class _Write(NamedTuple):
    task_path: str
    task_id: str
    channel: str
    value: Any


@dataclass
class _Thread:
    """The checkpoints of a thread by namespace and id, oldest first."""

    checkpoints: dict[str, dict[str, _Saved]] = field(default_factory=dict)
    writes: dict[tuple[str, str], dict[tuple[str, int], _Write]] = field(default_factory=dict)
    """(namespace, checkpoint id) -> what tasks wrote after the checkpoint, by task id and index."""


class ForkSaver(BaseCheckpointSaver[int]):
    """A checkpoint saver that does not serialise.

    Like with serialisation, the stored checkpoint, its writer and its readers each have their own containers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._threads: dict[str, _Thread] = {}

    def begin_thread(self, thread_id: str, values: Mapping[str, Any]) -> None:
        """Start a thread with values of channels that are no input: what an agent keeps from a conversation's turns."""
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = dict(values)
        checkpoint["channel_versions"] = dict.fromkeys(values, self.get_next_version(None, None))
        # LangGraph counts supersteps from a thread's last one, and begins at -1.
        self.put(_config(thread_id, "", ""), checkpoint, {"source": "update", "step": -2}, {})

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Make the target thread a copy of the source thread; the checkpoints are shared by reference."""
        source = self._threads.get(source_thread_id, _Thread())
        self._threads[target_thread_id] = _Thread(
            {namespace: dict(saved) for namespace, saved in source.checkpoints.items()},
            {key: dict(written) for key, written in source.writes.items()},
        )

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints except the newest of each namespace; with "delete", delete all.

        Older checkpoints from which a `DeltaChannel` of the newest is rebuilt are kept too.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f'strategy must be "keep_latest" or "delete", got {quoted(strategy)}')
        for thread_id in thread_ids:
            thread = self._threads.pop(thread_id, None)
            if thread is not None and strategy == "keep_latest":
                checkpoints = {namespace: _needed(saved) for namespace, saved in thread.checkpoints.items() if saved}
                kept = {(namespace, key) for namespace, saved in checkpoints.items() for key in saved}
                writes = {key: written for key, written in thread.writes.items() if key in kept}
                self._threads[thread_id] = _Thread(checkpoints, writes)

    def supersteps(self, thread_id: str) -> int:
        """Return the number of supersteps up to a thread's newest checkpoint."""
        saved = self._threads[thread_id].checkpoints[""]
        return int(saved[next(reversed(saved))].metadata["step"]) + 1

    def dump_thread(self, thread_id: str) -> dict[str, Any]:
        """Return a thread's checkpoints and writes as containers, for `load_thread`."""
        thread = self._threads[thread_id]
        return {
            "checkpoints": {
                namespace: [(saved.checkpoint, dict(saved.metadata), saved.parent_id) for saved in kept.values()]
                for namespace, kept in thread.checkpoints.items()
            },
            "writes": {
                key: {place: tuple(write) for place, write in kept.items()} for key, kept in thread.writes.items()
            },
        }

    def load_thread(self, thread_id: str, dumped: Mapping[str, Any]) -> None:
        """Create a thread from what `dump_thread` returned."""
        self._threads[thread_id] = _Thread(
            {
                namespace: {saved[0]["id"]: _Saved(*saved) for saved in kept}
                for namespace, kept in dumped["checkpoints"].items()
            },
            {key: {place: _Write(*write) for place, write in kept.items()} for key, kept in dumped["writes"].items()},
        )

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the thread's newest."""
        configurable = config["configurable"]
        thread_id, namespace = _thread_of(configurable), configurable.get("checkpoint_ns", "")
        thread = self._threads.get(thread_id, _Thread())
        saved = thread.checkpoints.get(namespace)
        if not saved:
            return None
        checkpoint_id = get_checkpoint_id(config) or next(reversed(saved))
        return _as_tuple(thread, thread_id, namespace, checkpoint_id) if checkpoint_id in saved else None

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint."""
        configurable = config["configurable"]
        thread_id, namespace = _thread_of(configurable), configurable.get("checkpoint_ns", "")
        saved = self._threads.setdefault(thread_id, _Thread()).checkpoints.setdefault(namespace, {})
        saved[checkpoint["id"]] = _Saved(_with_own_containers(checkpoint), metadata, get_checkpoint_id(config))
        return _config(thread_id, namespace, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what tasks wrote after a checkpoint. The first ordinary write wins, the last special write wins."""
        configurable = config["configurable"]
        thread = self._threads.setdefault(_thread_of(configurable), _Thread())
        kept = thread.writes.setdefault((configurable.get("checkpoint_ns", ""), configurable["checkpoint_id"]), {})
        for position, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, position)
            if index < 0 or (task_id, index) not in kept:
                kept[task_id, index] = _Write(task_path, task_id, channel, own_containers(value))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, newest first, of one or all threads and namespaces.

        Args:
            config: names the thread, and optionally the namespace and the checkpoint; None: all threads.
            filter: keys and values that their metadata must have.
            before: names a checkpoint; only older ones are listed.
            limit: maximum number of checkpoints.
        """
        matching = (
            _as_tuple(thread, thread_id, namespace, checkpoint_id)
            for thread_id, thread in self._threads.items()
            for namespace, saved in thread.checkpoints.items()
            for checkpoint_id in reversed(saved)
            if _matches(config, thread_id, namespace, checkpoint_id)
            and _is_before(before, checkpoint_id)
            and _holds(saved[checkpoint_id].metadata, filter or {})
        )
        return islice(matching, limit)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        self._threads.pop(thread_id, None)

    @override
    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.copy_thread(source_thread_id, target_thread_id)

    @override
    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self.prune(thread_ids, strategy=strategy)

    @override
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    @override
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.put(config, checkpoint, metadata, new_versions)

    @override
    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    @override
    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for listed in self.list(config, filter=filter, before=before, limit=limit):
            yield listed

    @override
    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)


def _with_own_containers(checkpoint: Checkpoint) -> Checkpoint:
    copy = copy_checkpoint(checkpoint)
    copy["channel_values"] = own_containers(copy["channel_values"])
    return copy


def _needed(saved: dict[str, _Saved]) -> dict[str, _Saved]:
    """Return the newest checkpoint and its ancestors back to the last snapshot of each `DeltaChannel`, oldest first."""
    newest_id = next(reversed(saved))
    needed = {newest_id: saved[newest_id]}
    # LangGraph counts the updates of each channel since its last snapshot.
    unresolved = set(saved[newest_id].metadata.get("counters_since_delta_snapshot") or ())
    unresolved -= saved[newest_id].checkpoint["channel_values"].keys()
    parent_id = saved[newest_id].parent_id
    while unresolved and parent_id in saved:
        parent = needed[parent_id] = saved[parent_id]
        unresolved -= parent.checkpoint["channel_values"].keys()
        parent_id = parent.parent_id
    return dict(reversed(needed.items()))


def _as_tuple(thread: _Thread, thread_id: str, namespace: str, checkpoint_id: str) -> CheckpointTuple:
    checkpoint, metadata, parent_id = thread.checkpoints[namespace][checkpoint_id]
    written = thread.writes.get((namespace, checkpoint_id), {})
    # A running graph applies writes in this order.
    ordered = [write for _, write in sorted(written.items(), key=lambda kept: (kept[1].task_path, *kept[0]))]
    return CheckpointTuple(
        config=_config(thread_id, namespace, checkpoint_id),
        checkpoint=_with_own_containers(checkpoint),
        metadata=metadata,
        parent_config=_config(thread_id, namespace, parent_id) if parent_id else None,
        pending_writes=[(write.task_id, write.channel, own_containers(write.value)) for write in ordered],
    )


def _matches(config: RunnableConfig | None, thread_id: str, namespace: str, checkpoint_id: str) -> bool:
    wanted = {**config["configurable"], "thread_id": _thread_of(config["configurable"])} if config else {}
    actual = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
    return all(wanted.get(key) in (None, value) for key, value in actual.items())


def _is_before(before: RunnableConfig | None, checkpoint_id: str) -> bool:
    # Ids increase with time.
    bound = get_checkpoint_id(before) if before else None
    return bound is None or checkpoint_id < bound


def _holds(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(key) == value for key, value in wanted.items())


def _thread_of(configurable: Mapping[str, Any]) -> Any:
    """Return the particle's thread: "thread_id" is that of the caller, for the agent's own code."""
    return configurable.get(PARTICLE_THREAD) or configurable.get("thread_id")


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def own_containers(value: Any) -> Any:
    """Copy nested lists, dicts, sets, tuples and `Send`s, and share all other objects.

    An agent may mutate a container in place; other particles must not see the change. Lists and dicts may be nested to
    any depth.
    """
    copied = [value]
    unfinished: list[tuple[Any, Any]] = [(copied, 0)]
    while unfinished:
        holder, key = unfinished.pop()
        own = holder[key] = _own(holder[key])
        if type(own) is list and _nested(own):
            unfinished += [(own, index) for index in range(len(own))]
        elif type(own) is dict and _nested(own.values()):
            unfinished += [(own, name) for name in own]
    return copied[0]


class CarriedValue(UntrackedValue[Any]):
    """An `UntrackedValue` that a fork keeps if it consists of plain values, such as the counters of run limits.

    Other objects, such as the session of a shell, cannot be copied: after a fork they are missing, as after a restart.
    """

    @override
    def checkpoint(self) -> Any:
        return self.value if is_plain(self.value) else super().checkpoint()

    @override
    def from_checkpoint(self, checkpoint: Any) -> CarriedValue:
        restored = super().from_checkpoint(checkpoint)
        restored.value = checkpoint
        return restored


def carrying(channels: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's channels, with those that LangGraph leaves out of checkpoints kept at forks."""
    return {
        name: CarriedValue(channel.typ, channel.guard) if type(channel) is UntrackedValue else channel
        for name, channel in channels.items()
    }


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts, lists and dicts."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return all(map(is_plain, value)) if isinstance(value, list) else isinstance(value, str | int | float | None)


def _own(value: Any) -> Any:
    """Copy a container, and what tuples and `Send`s hold."""
    kind = type(value)
    if kind is list or kind is dict or kind is set:
        return value.copy()
    if kind is Send:
        sent = copy(value)
        sent.arg = own_containers(value.arg)
        return sent
    if kind is tuple or hasattr(kind, "_make"):
        items = map(own_containers, value)
        return tuple(items) if kind is tuple else kind._make(items)
    return value


def _nested(items: Iterable[Any]) -> bool:
    # Checking types is fast: a conversation of hundreds of messages has three.
    return any(issubclass(kind, (list, dict, set, tuple, Send)) for kind in {*map(type, items)})
