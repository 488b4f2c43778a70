from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from dataclasses import asdict

import pytest
from langgraph.store.base import BaseStore, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

from amc_agents.concurrency.gather import to_its_end
from amc_agents.errors import ConfigurationError, PosteriorError
from amc_agents.psrl.posterior.memory import Evidence, Version
from amc_agents.psrl.posterior.store import StorePosterior, posteriors_in
from amc_agents.psrl.posterior.updates import apply_pending, edit, rollback, update_posterior
from amc_agents.runtime.store_operations import batch, items_of
from tests.psrl.posterior.posterior_writers import NAMESPACE

PRIOR = "Lever A: 0 of 0."


class OtherStore(BaseStore):
    """A third-party store in which other tasks may run before and after every call."""

    def __init__(self, inner=None):
        self.inner = inner or InMemoryStore()

    def batch(self, ops):
        return self.inner.batch(ops)

    async def abatch(self, ops):
        await asyncio.sleep(0)
        results = self.inner.batch(ops)
        await asyncio.sleep(0)
        return results


@asynccontextmanager
async def open_store(kind, path):
    if kind == "other":
        yield OtherStore()
    elif kind == "sqlite":
        with SqliteStore.from_conn_string(str(path / "memory.db")) as store:
            yield store
    else:
        async with AsyncSqliteStore.from_conn_string(str(path / "memory.db")) as store:
            yield store


@pytest.fixture(params=["other", "sqlite", "async sqlite"])
async def store(request, tmp_path):
    async with open_store(request.param, tmp_path) as opened:
        yield opened


async def append_line(text, evidence):
    await asyncio.sleep(0)
    return f"{text}\n{evidence.observation}"


async def refuse(text, evidence):
    raise TimeoutError


def seen(version):
    return version.text.removeprefix(PRIOR).split()


async def test_a_posterior_comes_back_as_it_was_written(store):
    memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
    evidence = Evidence("Épisode 1", 'won:A 🎰 "quoted"', "e1")
    version = await update_posterior(memory, append_line, evidence)
    again = StorePosterior(store, "worlds.lever", prior="another prior is not used any more")
    assert await again.history() == await memory.history()
    assert await again.head() == version
    assert version.evidence == evidence
    assert list(await again.recorded()) == [evidence]
    assert await posteriors_in(store) == ["worlds.lever"]


async def test_namespaces_do_not_see_each_other(store):
    memory = StorePosterior(store, "a", prior=PRIOR)
    for below in ("a.b", "a.posterior_versions", "a.posterior_evidence"):
        await update_posterior(StorePosterior(store, below, prior="below"), append_line, Evidence("1", "x"))
    assert [version.text for version in await memory.versions()] == [PRIOR]
    assert await memory.pending() == ()
    listed = "a, a.b, a.posterior_evidence, a.posterior_versions"
    with pytest.raises(PosteriorError, match=rf"no posterior under 'c' .* store: {re.escape(listed)}$"):
        await StorePosterior(store, "c").head()


async def test_failed_updates_edits_and_rollbacks_are_kept(store):
    memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
    with pytest.raises(PosteriorError):
        await update_posterior(memory, refuse, Evidence("1", "x1"))
    assert (await memory.head()).text == PRIOR
    assert [evidence.observation for evidence in await StorePosterior(store, NAMESPACE).pending()] == ["x1"]
    await apply_pending(memory, append_line)
    opened = await memory.head()
    await update_posterior(memory, append_line, Evidence("2", "x2"))
    await edit(StorePosterior(store, NAMESPACE), f"{PRIOR}\nowner", parent=opened.id)
    assert seen(await apply_pending(memory, append_line)) == ["owner", "x2"]
    await rollback(memory, "1")
    assert (await StorePosterior(store, NAMESPACE).head()).text == PRIOR
    assert [
        version.cause for version in await memory.versions()
    ] == "prior evidence evidence edit evidence rollback".split()


async def test_twenty_tasks_at_once_lose_nothing(store):
    def memory():
        return StorePosterior(store, NAMESPACE, prior=PRIOR)

    await asyncio.gather(*[update_posterior(memory(), append_line, Evidence(f"{i}", f"x{i}")) for i in range(20)])
    assert sorted(seen(await memory().head())) == sorted(f"x{i}" for i in range(20))
    assert len(await memory().versions()) == 21


@pytest.mark.thorough
async def test_racing_writers_lose_nothing_and_overwrite_nothing():
    inner, put = InMemoryStore(), []

    class Process(OtherStore):
        """A separate store object, as in a separate process, so that updates do not wait for each other."""

        async def abatch(self, ops):
            ops = list(ops)
            put.extend(op.key for op in ops if isinstance(op, PutOp) and op.namespace[-1] == "posterior_versions")
            return await super().abatch(ops)

    async def write(i):
        memory = StorePosterior(Process(inner), NAMESPACE, prior=PRIOR)
        await update_posterior(memory, append_line, Evidence(f"{i}", f"x{i}"))

    await asyncio.gather(*[write(i) for i in range(20)])
    memory = StorePosterior(OtherStore(inner), NAMESPACE)
    assert sorted(seen(await memory.head())) == sorted(f"x{i}" for i in range(20))
    assert await memory.pending() == ()
    assert len(put) == len(set(put)) == len(await memory.versions()) > 21, "no race: the test proves nothing"


def test_a_thread_that_writes_while_another_one_reads_stops_nothing():
    class Written(InMemoryStore):
        n_reads = 0

        async def abatch(self, ops):
            self.n_reads += 1
            if self.n_reads == 1:
                raise RuntimeError("dictionary changed size during iteration")
            return await super().abatch(ops)

    store = Written()
    assert asyncio.run(items_of(store, NAMESPACE)) == []
    assert store.n_reads == 2


def test_twenty_threads_on_one_store_lose_nothing():
    store, together = InMemoryStore(), threading.Barrier(20)

    async def slow(text, evidence):
        await asyncio.sleep(0.001)
        return await append_line(text, evidence)

    def write(i):
        together.wait()
        asyncio.run(update_posterior(StorePosterior(store, NAMESPACE, prior=PRIOR), slow, Evidence(f"{i}", f"x{i}")))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = asyncio.run(StorePosterior(store, NAMESPACE).history())
    assert len(history) == 21
    assert sorted(seen(history[-1])) == sorted(f"x{i}" for i in range(20))


@pytest.mark.thorough
def test_twenty_processes_on_one_sqlite_file_lose_nothing(tmp_path, repository):
    path = str(tmp_path / "memory.db")
    with SqliteStore.from_conn_string(path) as store:
        store.setup()
        asyncio.run(StorePosterior(store, NAMESPACE, prior=PRIOR).head())
        completed = subprocess.run(
            [sys.executable, "-m", "tests.psrl.posterior.posterior_writers", path, "20"],
            cwd=repository, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert completed.returncode == 0, completed.stderr
        memory = StorePosterior(store, NAMESPACE)
        history = asyncio.run(memory.history())
        assert sorted(seen(history[-1])) == sorted(f"x{i}" for i in range(20))
        assert len(history) == 21
        assert asyncio.run(memory.pending()) == ()


async def test_a_cancellation_at_any_await_loses_nothing():
    """Cancel the update after 0, 1, 2, ... turns of the event loop, until it finishes before the cancellation."""
    outcomes = []
    for turns in range(60):
        store = OtherStore()
        memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
        task = asyncio.create_task(update_posterior(memory, append_line, Evidence("1", "x1", "e1")))
        for _ in range(turns):
            await asyncio.sleep(0)
        done = not task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        again = StorePosterior(store, NAMESPACE, prior=PRIOR)
        settled = "e1" in (await again.lineage()).settled
        outcomes.append("done" if done else "settled" if settled else "pending" if await again.pending() else "not")
        assert seen(await update_posterior(again, append_line, Evidence("1", "x1", "e1"))) == ["x1"]
        assert await again.pending() == ()
        if done:
            break
    stages = {"not": 0, "pending": 1, "settled": 2, "done": 3}
    assert sorted(outcomes, key=stages.get) == outcomes
    assert outcomes[-1] == "done"
    assert "pending" in outcomes


async def test_a_cancelled_store_operation_completes():
    done = []

    async def transaction():
        for step in ("begin", "insert", "commit"):
            await asyncio.sleep(0)
            done.append(step)

    task = asyncio.create_task(to_its_end(transaction()))
    while not done:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["begin", "insert", "commit"]


@pytest.mark.thorough  # quick: test_twenty_tasks_at_once_lose_nothing
async def test_cancellations_at_random_moments_lose_nothing_in_sqlite(tmp_path):
    rng = random.Random(0)
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "memory.db")) as store:
        memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
        await memory.head()
        cancelled = 0
        for i in range(25):
            task = asyncio.create_task(update_posterior(memory, append_line, Evidence(f"{i}", f"x{i}")))
            # After a single turn of the loop the database cannot have answered yet on any machine.
            await asyncio.sleep(rng.uniform(0, 0.015) if i % 3 else 0)
            cancelled += task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        recorded = {evidence.observation for evidence in await memory.recorded()}
        head = await apply_pending(memory, append_line)
        assert sorted(seen(head)) == sorted(recorded)
        assert cancelled
        assert await StorePosterior(store, NAMESPACE).pending() == ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"text": "notes of mine"}, "another program writes to this namespace"),
        ({"amc_posterior": 2, "text": "x"}, "written in format 2, and this release reads format 1"),
        ({"amc_posterior": 1, "text": 7, "cause": "magic"}, "is damaged: text: .*; cause: .* Restore"),
    ],
)
async def test_damaged_and_foreign_records_are_named(store, value, message):
    await StorePosterior(store, NAMESPACE, prior=PRIOR).head()
    await batch(store, PutOp((*NAMESPACE, "posterior_versions"), "00000002", value))
    with pytest.raises(PosteriorError, match=rf"^worlds\.lever\.posterior_versions, key '00000002' .*{message}"):
        await StorePosterior(store, NAMESPACE).head()


async def test_a_version_that_was_deleted_is_noticed(store):
    memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
    for i in range(5):
        await update_posterior(memory, append_line, Evidence(f"{i}", f"x{i}"))
    namespace = (*NAMESPACE, "posterior_versions")
    [items] = await batch(store, SearchOp(namespace, limit=100))
    third = next(item for item in items if item.value["number"] == 3)
    await batch(store, PutOp(namespace, third.key, None))
    with pytest.raises(PosteriorError, match=r"damaged|is missing"):
        await StorePosterior(store, NAMESPACE).head()


async def test_evidence_is_not_changed_by_recording_it_again(store):
    memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
    await memory.record(Evidence("1", "first", "e1"))
    await memory.record(Evidence("1", "second", "e1"))
    assert [evidence.observation for evidence in await memory.recorded()] == ["first"]


async def test_a_posterior_of_an_older_release_is_read_and_continued(store):
    """Releases up to 0.4 used the number alone as the key of a version."""
    prior = Version(PRIOR, "prior", id="v1")
    update = Version(f"{PRIOR}\nx1", "evidence", "v1", 2, Evidence("1", "x1", "e1"), id="v2")
    for version in (prior, update):
        record = {"amc_posterior": 1, **asdict(version)}
        await batch(store, PutOp((*NAMESPACE, "posterior_versions"), f"{version.number:08d}", record, index=False))
    memory = StorePosterior(store, NAMESPACE)
    assert list(await memory.history()) == [prior, update]
    head = await update_posterior(memory, append_line, Evidence("2", "x2"))
    assert (head.number, head.parent, seen(head)) == (3, "v2", ["x1", "x2"])


async def test_long_histories_are_read_whole(store):
    memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
    parent = await memory.head()
    for number in range(2, 13):
        version = Version(f"{number}", "evidence", parent.id, number, Evidence("", "", f"e{number}"))
        assert await memory.append(version)
        parent = version
    history = await StorePosterior(store, NAMESPACE).history()
    assert [version.number for version in history] == list(range(1, 13))


async def test_records_do_not_expire_in_a_store_where_others_do(tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "memory.db"), ttl={"default_ttl": 1}) as store:
        await update_posterior(StorePosterior(store, NAMESPACE, prior=PRIOR), append_line, Evidence("1", "x1"))
        store.put(("others",), "key", {})
        expire = store.conn.execute("SELECT prefix, expires_at IS NOT NULL FROM store").fetchall()
    assert sorted(expire) == [
        ("others", 1),
        ("worlds.lever.posterior_evidence", 0),
        ("worlds.lever.posterior_versions", 0),
        ("worlds.lever.posterior_versions", 0),
    ]


async def test_a_version_whose_number_is_taken_is_not_added(store):
    memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
    first = await memory.head()
    assert await memory.append(Version("a", "edit", first.id, 2))
    assert not await memory.append(Version("b", "edit", first.id, 2))
    assert (await memory.head()).text == "a"


@pytest.mark.parametrize("namespace", ["", (), "a..b", ("a", "")])
def test_a_namespace_needs_labels(namespace):
    with pytest.raises(ConfigurationError, match=r"such as agents\.lock"):
        StorePosterior(InMemoryStore(), namespace)


def test_an_empty_prior_is_refused():
    with pytest.raises(ConfigurationError, match="prior is empty"):
        StorePosterior(InMemoryStore(), "a", prior=" ")
