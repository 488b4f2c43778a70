"""A private checkpoint saver in memory, whose threads are copied by reference.

Nothing is serialised: a particle never leaves the process. LangGraph's own savers refuse `copy_thread`, and copying
through their interface costs a serialisation of the whole state for each copy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    copy_checkpoint,
    get_checkpoint_id,
)

from amc_agents.population.containers import own_containers


class _Saved(NamedTuple):
    """One checkpoint as it was put. Its containers belong to nobody else, so threads may share it."""

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
    """One thread's checkpoints, by namespace and id, oldest first."""

    checkpoints: dict[str, dict[str, _Saved]] = field(default_factory=dict)
    writes: dict[tuple[str, str], dict[tuple[str, int], _Write]] = field(default_factory=dict)
    """What tasks wrote after a checkpoint (namespace, id), by task id and index."""


class ForkSaver(BaseCheckpointSaver[int]):
    """Keeps checkpoints without serialising them.

    Whoever puts a checkpoint and whoever reads it has containers of its own, as after a serialisation.
    """

    def __init__(self) -> None:
        super().__init__()
        self._threads: dict[str, _Thread] = {}

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Make the target a copy of the source, checkpoints shared by reference."""
        source = self._threads.get(source_thread_id, _Thread())
        self._threads[target_thread_id] = _Thread(
            {namespace: dict(saved) for namespace, saved in source.checkpoints.items()},
            {key: dict(written) for key, written in source.writes.items()},
        )

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Drop all but each namespace's newest checkpoint, or with "delete" everything.

        Ancestors from which a `DeltaChannel` of the newest checkpoint is rebuilt are kept too.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f'strategy must be "keep_latest" or "delete", got {strategy!r}')
        for thread_id in thread_ids:
            thread = self._threads.pop(thread_id, None)
            if thread is not None and strategy == "keep_latest":
                checkpoints = {namespace: _needed(saved) for namespace, saved in thread.checkpoints.items() if saved}
                kept = {(namespace, key) for namespace, saved in checkpoints.items() for key in saved}
                writes = {key: written for key, written in thread.writes.items() if key in kept}
                self._threads[thread_id] = _Thread(checkpoints, writes)

    def supersteps(self, thread_id: str) -> int:
        """Number of supersteps up to a thread's newest checkpoint."""
        saved = self._threads[thread_id].checkpoints[""]
        return int(saved[next(reversed(saved))].metadata["step"]) + 1

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the thread's newest."""
        configurable = config["configurable"]
        thread_id, namespace = configurable["thread_id"], configurable.get("checkpoint_ns", "")
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
        """Keep a checkpoint."""
        configurable = config["configurable"]
        thread_id, namespace = configurable["thread_id"], configurable.get("checkpoint_ns", "")
        saved = self._threads.setdefault(thread_id, _Thread()).checkpoints.setdefault(namespace, {})
        saved[checkpoint["id"]] = _Saved(_with_own_containers(checkpoint), metadata, get_checkpoint_id(config))
        return _config(thread_id, namespace, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what tasks wrote after a checkpoint. An ordinary write is kept once, special ones are replaced."""
        configurable = config["configurable"]
        thread = self._threads.setdefault(configurable["thread_id"], _Thread())
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
        """Checkpoints, newest first, of one thread or all, of one namespace or all.

        Args:
            config: names the thread, and the namespace and the checkpoint where it has them; None: all threads.
            filter: what their metadata must hold.
            before: names a checkpoint; only older ones are given.
            limit: the most that are given.
        """
        matching = (
            _as_tuple(thread, thread_id, namespace, checkpoint_id)
            for thread_id, thread in self._threads.items()
            for namespace, saved in thread.checkpoints.items()
            for checkpoint_id in reversed(saved)
            if _asked_for(config, thread_id, namespace, checkpoint_id)
            and _is_before(before, checkpoint_id)
            and _holds(saved[checkpoint_id].metadata, filter or {})
        )
        return islice(matching, limit)

    def delete_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        self._threads.pop(thread_id, None)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `copy_thread`."""
        self.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `prune`."""
        self.prune(thread_ids, strategy=strategy)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `get_tuple`."""
        return self.get_tuple(config)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `put`."""
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `put_writes`."""
        self.put_writes(config, writes, task_id, task_path)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See `list`."""
        for listed in self.list(config, filter=filter, before=before, limit=limit):
            yield listed

    async def adelete_thread(self, thread_id: str) -> None:
        """See `delete_thread`."""
        self.delete_thread(thread_id)


def _with_own_containers(checkpoint: Checkpoint) -> Checkpoint:
    own = copy_checkpoint(checkpoint)
    own["channel_values"] = own_containers(own["channel_values"])
    return own


def _needed(saved: dict[str, _Saved]) -> dict[str, _Saved]:
    """The newest checkpoint, and the ancestors down to the last snapshot of each `DeltaChannel`, oldest first."""
    newest_id = next(reversed(saved))
    needed = {newest_id: saved[newest_id]}
    # LangGraph counts here, by channel, what has happened since the last snapshot.
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
    # In the order in which a running graph applies them.
    ordered = [write for _, write in sorted(written.items(), key=lambda kept: (kept[1].task_path, *kept[0]))]
    return CheckpointTuple(
        config=_config(thread_id, namespace, checkpoint_id),
        checkpoint=_with_own_containers(checkpoint),
        metadata=metadata,
        parent_config=_config(thread_id, namespace, parent_id) if parent_id else None,
        pending_writes=[(write.task_id, write.channel, own_containers(write.value)) for write in ordered],
    )


def _asked_for(config: RunnableConfig | None, thread_id: str, namespace: str, checkpoint_id: str) -> bool:
    asked = config["configurable"] if config else {}
    given = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
    return all(asked.get(key) in (None, value) for key, value in given.items())


def _is_before(before: RunnableConfig | None, checkpoint_id: str) -> bool:
    # Ids grow with time.
    bound = get_checkpoint_id(before) if before else None
    return bound is None or checkpoint_id < bound


def _holds(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(key) == value for key, value in wanted.items())


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}
