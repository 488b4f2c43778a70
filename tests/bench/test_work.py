"""Work items, their queue and the workers that empty it."""

from __future__ import annotations

import asyncio
import json

import pytest

from amc_agents.bench.engine import FolderQueue, share_of, work_off
from amc_agents.bench.results_folder import ResultsFolder, RunLine, WorkItem, read_results
from tests.bench.tally import Line

ITEMS = [WorkItem(method, task, 0) for task in "abc" for method in ("one way", "another")]


class Store:
    """A queue that is not a folder, as a database would be."""

    def __init__(self, items):
        self.waiting, self.claimed, self.results = list(items), [], {}

    def claim(self):
        if not self.waiting:
            return None
        self.claimed.append(self.waiting.pop(0))
        return self.claimed[-1]

    def complete(self, item, result):
        self.results[item] = result


async def done(item):
    return Line(*item.key)


@pytest.mark.parametrize("n_concurrent", [1, 3, 20])
async def test_every_item_of_any_queue_is_executed_once(n_concurrent):
    store = Store(ITEMS)
    await work_off(store, done, n_concurrent=n_concurrent)
    assert store.claimed == ITEMS
    assert store.results == {item: Line(*item.key) for item in ITEMS}


async def test_no_more_items_are_in_progress_than_allowed():
    in_progress, most = 0, 0

    async def slow(item):
        nonlocal in_progress, most
        in_progress += 1
        most = max(most, in_progress)
        await asyncio.sleep(0)
        in_progress -= 1
        return Line(*item.key)

    await work_off(Store(ITEMS), slow, n_concurrent=2)
    assert most == 2


async def test_an_error_stops_the_others_even_if_they_never_wait():
    items = [WorkItem("method", str(number), 0) for number in range(50)]
    store = Store(items)

    async def broken(item):
        if item == items[2]:
            raise RuntimeError("the power is out")
        return Line(*item.key)

    with pytest.raises(RuntimeError, match="the power is out"):
        await work_off(store, broken, n_concurrent=2)
    assert len(store.claimed) < 10


def test_shares_are_whole_tasks_and_together_everything():
    shares = [share_of(ITEMS, part, 2) for part in range(2)]
    assert [sorted({item.task for item in share}) for share in shares] == [["a", "c"], ["b"]]
    assert sorted([*shares[0], *shares[1]], key=ITEMS.index) == ITEMS


async def test_a_folder_queue_skips_what_is_stored_and_counts_on(tmp_path):
    counts: list[int] = []
    for items in (ITEMS[:2], ITEMS):
        with ResultsFolder(tmp_path, {}, {}, resume=True) as folder:
            stored = {line.key for line in read_results(tmp_path, lambda values: Line(**values))}
            await work_off(FolderQueue(items, stored, folder, counts.append), done, n_concurrent=1)
    assert counts == [0, 1, 2, 2, 3, 4, 5, 6]
    assert [line.key for line in read_results(tmp_path, lambda values: Line(**values))] == [item.key for item in ITEMS]


def test_of_two_results_of_an_item_the_first_counts(tmp_path):
    for worker in "ab":
        (tmp_path / f"records-{worker}.jsonl").write_text(json.dumps({"method": "m", "task": worker, "seed": 0}) + "\n")

    class Same(RunLine):
        @property
        def key(self):
            return "m", "one task", 0

    assert [line.task for line in read_results(tmp_path, Same.from_json)] == ["a"]


def test_a_result_of_another_item_is_refused(tmp_path):
    with ResultsFolder(tmp_path, {}, {}) as folder, pytest.raises(ValueError, match="expected the result of"):
        FolderQueue(ITEMS, (), folder).complete(ITEMS[0], Line(*ITEMS[1].key))
    assert read_results(tmp_path, lambda values: Line(**values)) == []
