"""A private checkpoint saver in memory, whose threads are forked by reference.

Nothing is serialised: a particle never leaves the process. LangGraph's own savers refuse `copy_thread`,
and copying through their interface costs a serialisation of the whole state for each copy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    copy_checkpoint,
)

Writes = dict[tuple[str, int], tuple[str, str, Any]]
"""(task id, index) -> (task id, channel, value)."""


@dataclass
class _Thread:
    """One thread's checkpoints, by namespace and id, oldest first."""

    checkpoints: dict[str, dict[str, tuple[Checkpoint, CheckpointMetadata, str | None]]] = field(default_factory=dict)
    writes: dict[tuple[str, str], Writes] = field(default_factory=dict)


class ForkSaver(BaseCheckpointSaver[int]):
    """Keeps checkpoints as they are, by reference."""

    def __init__(self) -> None:
        super().__init__()
        self._threads: dict[str, _Thread] = {}

    def fork(self, source: str, target: str) -> None:
        """Make thread `target` a copy of thread `source`: shared leaves, containers of its own."""
        original = self._threads[source]
        checkpoints = {
            namespace: {
                key: (_with_own_containers(kept), meta, parent) for key, (kept, meta, parent) in kept_by_id.items()
            }
            for namespace, kept_by_id in original.checkpoints.items()
        }
        writes = {key: dict(written) for key, written in original.writes.items()}
        self._threads[target] = _Thread(checkpoints, writes)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the thread's newest."""
        configurable = config["configurable"]
        thread_id, namespace = configurable["thread_id"], configurable.get("checkpoint_ns", "")
        thread = self._threads.get(thread_id)
        kept_by_id = thread.checkpoints.get(namespace) if thread else None
        if not thread or not kept_by_id:
            return None
        checkpoint_id = configurable.get("checkpoint_id") or next(reversed(kept_by_id))
        if checkpoint_id not in kept_by_id:
            return None
        checkpoint, metadata, parent_id = kept_by_id[checkpoint_id]
        return CheckpointTuple(
            config=_config(thread_id, namespace, checkpoint_id),
            # The running graph changes its checkpoint's bookkeeping in place.
            checkpoint=copy_checkpoint(checkpoint),
            metadata=metadata,
            parent_config=_config(thread_id, namespace, parent_id) if parent_id else None,
            pending_writes=list(thread.writes.get((namespace, checkpoint_id), {}).values()),
        )

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
        thread = self._threads.setdefault(thread_id, _Thread())
        parent_id = configurable.get("checkpoint_id")
        thread.checkpoints.setdefault(namespace, {})[checkpoint["id"]] = (checkpoint, metadata, parent_id)
        return _config(thread_id, namespace, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what tasks wrote after a checkpoint."""
        configurable = config["configurable"]
        thread = self._threads.setdefault(configurable["thread_id"], _Thread())
        kept = thread.writes.setdefault((configurable.get("checkpoint_ns", ""), configurable["checkpoint_id"]), {})
        for index, (channel, value) in enumerate(writes):
            kept[task_id, WRITES_IDX_MAP.get(channel, index)] = (task_id, channel, value)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """A thread's checkpoints, newest first."""
        if config is None:
            return
        thread_id, namespace = config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns", "")
        thread = self._threads.get(thread_id, _Thread())
        for count, checkpoint_id in enumerate(reversed(thread.checkpoints.get(namespace, {}))):
            if limit is not None and count >= limit:
                return
            found = self.get_tuple(_config(thread_id, namespace, checkpoint_id))
            if found is not None:
                yield found

    def delete_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        self._threads.pop(thread_id, None)

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
        for found in self.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def adelete_thread(self, thread_id: str) -> None:
        """See `delete_thread`."""
        self.delete_thread(thread_id)


def own_containers(value: Any) -> Any:
    """A copy of nested lists, dicts and sets, with everything else shared.

    Two particles must not see each other's changes to a container that an agent mutates in place.
    """
    if type(value) is list:
        return [own_containers(item) for item in value]
    if type(value) is dict:
        return {key: own_containers(item) for key, item in value.items()}
    return set(value) if type(value) is set else value


def _with_own_containers(checkpoint: Checkpoint) -> Checkpoint:
    copy = copy_checkpoint(checkpoint)
    copy["channel_values"] = own_containers(copy["channel_values"])
    return copy


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}
