"""Work items, and the queue from which workers claim them.

The runs of a comparison and the trials of an exploration are both work items: plain values with a stable key. A worker
claims an item, executes it, and completes it with its result. `results_folder.FolderQueue` serves one process, and
`shared.SharedQueue` several that work on one folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from amc_agents.concurrency.gather import side_by_side

ItemKey = tuple[str, str, int]
"""(method, task, seed)"""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One unit of work: a method or agent, a task and a seed. Plain values, so that items can be stored and sent."""

    name: str
    """Name of the method or agent."""
    task: str
    """Id of the task."""
    seed: int

    @property
    def key(self) -> ItemKey:
        """Identifies the item and its result, in every process and after a restart."""
        return self.name, self.task, self.seed


class ResultLine(Protocol):
    """The result of one work item: one line of a results folder."""

    @property
    def key(self) -> ItemKey:
        """The key of the work item."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        ...


ResultT = TypeVar("ResultT", bound=ResultLine, covariant=True)
Execute = Callable[[WorkItem], Awaitable[ResultLine | None]]
"""Executes one work item; None: it failed and was recorded as a failure, so it has no result."""
CountCallback = Callable[[int], None]
"""Receives the number of results that are stored so far."""


class WorkQueue(Protocol):
    """Gives work items to workers and stores their results."""

    def claim(self) -> WorkItem | None:
        """Claim the next item for this worker; None when the queue is empty."""
        ...

    def complete(self, item: WorkItem, result: ResultLine) -> None:
        """Store the result of a claimed item. It is durable when this returns."""
        ...

    def give_up(self, item: WorkItem) -> None:
        """End a claimed item that has no result; its failure is recorded elsewhere."""
        ...


async def work_off(queue: WorkQueue, execute: Execute, *, n_concurrent: int) -> None:
    """Execute the items of a queue until it is empty.

    Args:
        queue: the items.
        execute: executes one item. Its first error cancels the other items and is raised.
        n_concurrent: items in progress at the same time.
    """

    async def worker() -> None:
        while (item := queue.claim()) is not None:
            await asyncio.sleep(0)  # An executor that never waits would otherwise leave no chance to cancel.
            result = await execute(item)
            if result is None:
                queue.give_up(item)
            else:
                queue.complete(item, result)

    await side_by_side(*(worker() for _ in range(n_concurrent)))


def share_of(items: Sequence[WorkItem], part: int, of: int) -> list[WorkItem]:
    """Return the items of every `of`-th task, starting with task number `part`."""
    tasks = list(dict.fromkeys(item.task for item in items))
    share = set(tasks[part::of])
    return [item for item in items if item.task in share]
