"""A particle's view of a store: reads include its writes, and only the winner's writes reach the store."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

from amc_agents.population.features.store_views import ParticleStore

ALL = 1000
SPACES = [("a",), ("a", "b"), ("a", "b", "c"), ("d",)]


class OtherStore(BaseStore):
    """A third-party store that records the operations it received."""

    supports_ttl = True

    def __init__(self):
        self.inner, self.received = InMemoryStore(), []

    def batch(self, ops):
        ops = list(ops)
        self.received += ops
        return self.inner.batch(ops)

    async def abatch(self, ops):
        return self.batch(ops)


class AwaitedSqlite(SqliteStore):
    """A sync store that async tests can use."""

    async def abatch(self, ops):
        return self.batch(ops)


@asynccontextmanager
async def opened(kind, path):
    if kind == "memory":
        yield InMemoryStore()
    elif kind == "other":
        yield OtherStore()
    elif kind == "sqlite":
        with AwaitedSqlite.from_conn_string(str(path)) as store:
            yield store
    else:
        async with AsyncSqliteStore.from_conn_string(str(path)) as store:
            yield store


kinds = pytest.mark.parametrize("kind", ["memory", "other", "sqlite", "async sqlite"])


@pytest.fixture
async def stores(request, tmp_path):
    """A base store, and a store that is written to directly."""
    kind = request.getfixturevalue("kind")
    async with opened(kind, tmp_path / "base.db") as base, opened(kind, tmp_path / "plain.db") as plain:
        yield base, plain


def random_write(rng):
    namespace, key = rng.choice(SPACES), rng.choice("uvwxyz")
    return namespace, key, None if rng.random() < 0.25 else {"n": rng.randrange(4), "of": {"kind": rng.choice("pq")}}


async def put(store, namespace, key, value):
    await (store.adelete(namespace, key) if value is None else store.aput(namespace, key, value))


def facts(items):
    return [(item.namespace, item.key, item.value) for item in items]


SEARCHES = [(prefix, matching) for prefix in [("a",), ("a", "b"), ("d",), ("none",)]
            for matching in [None, {"n": 2}, {"n": {"$gte": 1}}, {"n": {"$ne": 0}}]]  # fmt: skip


async def compare(view, plain, *, ordered):
    for namespace in SPACES:
        for key in "uvwxyz":
            seen, there = await view.aget(namespace, key), await plain.aget(namespace, key)
            assert (seen and seen.value) == (there and there.value)
    for prefix, matching in SEARCHES:
        whole = [facts(await store.asearch(prefix, filter=matching, limit=ALL)) for store in (view, plain)]
        assert whole[0] == whole[1] if ordered else sorted(map(str, whole[0])) == sorted(map(str, whole[1]))
        pages = [facts(await view.asearch(prefix, filter=matching, limit=3, offset=at)) for at in range(0, 27, 3)]
        assert [item for page in pages for item in page] == whole[0], "pages together are the whole result"


@pytest.mark.thorough
@kinds
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
async def test_reads_equal_those_of_a_store_with_the_writes(kind, stores, seed):
    base, plain = stores
    rng = random.Random(seed)
    for _ in range(15):
        write = random_write(rng)
        await put(base, *write)
        await put(plain, *write)
    before = facts(await base.asearch((), limit=ALL))
    view = ParticleStore(base)
    # In a dictionary an item that is deleted and written again moves to the end: such writes are compared as sets.
    ordered = kind == "memory" and seed == 0
    for _ in range(15):
        write = random_write(rng)
        if ordered and write[2] is None:
            continue
        await put(view, *write)
        await put(plain, *write)
        await compare(view, plain, ordered=ordered)
    assert facts(await base.asearch((), limit=ALL)) == before
    assert await view.flush() == []
    assert sorted(map(str, facts(await base.asearch((), limit=ALL)))) == sorted(
        map(str, facts(await plain.asearch((), limit=ALL)))
    )


@kinds
async def test_own_namespaces_are_listed_and_emptied_ones_are_not(kind, stores):
    base, _ = stores
    for namespace in [("a", "b"), ("a", "c", "d"), ("e",)]:
        await base.aput(namespace, "k", {"n": 1})
    view = ParticleStore(base)
    assert await view.alist_namespaces() == [("a", "b"), ("a", "c", "d"), ("e",)]
    await view.aput(("a", "x", "y"), "k", {"n": 1})
    await view.adelete(("e",), "k")
    assert await view.alist_namespaces() == [("a", "b"), ("a", "c", "d"), ("a", "x", "y")]
    assert await view.alist_namespaces(max_depth=1) == [("a",)]
    assert await view.alist_namespaces(suffix=("y",)) == [("a", "x", "y")]
    assert await view.alist_namespaces(prefix=("a",), limit=1, offset=1) == [("a", "c", "d")]


@kinds
async def test_forks_share_only_the_past(kind, stores):
    base, _ = stores
    await base.aput(("m",), "base", {"notes": ["b"]})
    parent = ParticleStore(base)
    await parent.aput(("m",), "own", {"notes": ["p"]})
    children = [parent.fork(), parent.fork()]
    for number, child in enumerate(children):
        item = await child.aget(("m",), "own")
        item.value["notes"].append(number)
        (await child.aget(("m",), "base")).value["notes"].append(number)
        assert (await child.aget(("m",), "own")).value == {"notes": ["p"]}, "a read item is a copy"
        await child.aput(("m",), "own", item.value)
    assert (await parent.aget(("m",), "own")).value == {"notes": ["p"]}
    assert [(await child.aget(("m",), "own")).value for child in children] == [{"notes": ["p", 0]}, {"notes": ["p", 1]}]
    assert (await base.aget(("m",), "base")).value == {"notes": ["b"]}
    await children[1].flush()
    assert facts(await base.asearch(("m",), limit=ALL))
    assert (await base.aget(("m",), "own")).value == {"notes": ["p", 1]}


def test_a_fork_copies_nothing_until_it_writes():
    parent = ParticleStore(InMemoryStore())
    parent.batch([PutOp(("m",), str(i), {"n": i}) for i in range(1000)])
    child, other = parent.fork(), parent.fork()
    assert child._entries is parent._entries is other._entries
    child.put(("m",), "1", {"n": -1})
    parent.put(("m",), "2", {"n": -2})
    assert [store.get(("m",), key).value["n"] for store in (parent, child, other) for key in "12"] == [
        1,
        -2,
        -1,
        2,
        1,
        2,
    ]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_batch_reads_the_state_before_its_writes(sync):
    base = InMemoryStore()
    base.put(("m",), "k", {"n": 0})
    view = ParticleStore(base)
    ops = [GetOp(("m",), "k"), PutOp(("m",), "k", {"n": 1}), SearchOp(("m",)), PutOp(("m",), "l", {"n": 2})]
    for expected in ([0, 0], [1, 1]):
        got, _, hits, _ = view.batch(ops) if sync else asyncio.run(view.abatch(ops))
        assert [got.value["n"], hits[0].value["n"]] == expected
    assert [item.value["n"] for item in view.search(("m",))] == [1, 2]
    assert view.get(("m",), "k").created_at == base.get(("m",), "k").created_at < view.get(("m",), "k").updated_at


FILTERS: list[Any] = [
    {"n": 1}, {"n": {"$eq": 1}}, {"n": {"$ne": 1}}, {"n": {"$gt": 1}}, {"n": {"$gte": 1}}, {"n": {"$lt": 2}},
    {"n": {"$lte": 1}}, {"n": {"$gt": 0, "$lt": 2}}, {"of": {"kind": "p"}}, {"of": {"kind": "p"}, "n": 2},
    {"all": [1, 2]}, {"all": [1]}, {"none": None}, {"n": True}, {},
]  # fmt: skip


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
def test_own_items_are_filtered_like_items_of_the_base(wanted):
    base, plain = InMemoryStore(), InMemoryStore()
    view = ParticleStore(base)
    for store in (view, plain):
        for n in range(4):
            store.put(("m",), str(n), {"n": n, "of": {"kind": "pq"[n % 2]}, "all": [1, n]})
    assert facts(view.search(("m",), filter=wanted)) == facts(plain.search(("m",), filter=wanted))


def test_values_that_cannot_be_compared_do_not_match():
    view = ParticleStore(InMemoryStore())
    view.put(("m",), "number", {"at": 5})
    view.put(("m",), "text", {"at": "2026-02-01"})
    view.put(("m",), "none", {"of": 1})
    assert [hit.key for hit in view.search(("m",), filter={"at": {"$gt": 4}})] == ["number"]
    assert [hit.key for hit in view.search(("m",), filter={"at": {"$gt": "2026-01-01"}})] == ["text"]
    with pytest.raises(ValueError, match=r"expected a filter operator among \$eq"):
        view.search(("m",), filter={"at": {"$near": 4}})


VECTORS = {"cat": [1.0, 0.0], "kitten": [0.9, 0.1], "car": [0.0, 1.0], "lorry": [0.1, 0.9], "thing": [0.5, 0.5]}


def indexed(received=None, fields=("text",)):
    def embed(texts):
        if received is not None:
            received.extend(texts)
        return [VECTORS[text] for text in texts]

    return InMemoryStore(index={"dims": 2, "embed": embed, "fields": list(fields)})


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_semantic_search_ranks_own_writes_among_the_others(sync):
    received: list[str] = []
    base, plain = indexed(received), indexed()
    for store in (base, plain):
        store.put(("m",), "1", {"text": "car"})
        store.put(("m",), "2", {"text": "kitten", "old": True})
        store.put(("m",), "3", {"text": "cat"})
    view = ParticleStore(base)
    for store in (view, plain):
        store.put(("m",), "4", {"text": "lorry"})
        store.put(("m",), "3", {"text": "thing"})
        store.put(("m",), "5", {"text": "cat"}, index=False)
        store.put(("m",), "6", {"name": "cat", "text": "car"}, index=["name"])
        store.delete(("m",), "1")

    def search(store, **page):
        if sync:
            return store.search(("m",), query="cat", **page)
        return asyncio.run(store.asearch(("m",), query="cat", **page))

    assert [(hit.key, hit.score) for hit in search(view)] == [(hit.key, hit.score) for hit in search(plain)]
    assert [hit.key for hit in search(view)] == ["6", "2", "3", "4", "5"]
    assert [hit.key for hit in search(view, limit=2, offset=1)] == ["2", "3"]
    assert [hit.key for hit in search(view, filter={"old": True})] == ["2"]
    received.clear()
    child = view.fork()
    child.put(("m",), "7", {"text": "car"})
    assert [hit.key for hit in search(child)] == ["6", "2", "3", "4", "7", "5"]
    assert sorted(received) == ["car", "cat"], "the new text, and the query in the base: nothing is embedded twice"


async def test_writes_are_flushed_in_order_with_their_index_and_time_to_live():
    base = OtherStore()
    view = ParticleStore(base)
    await view.aput(("m",), "a", {"n": 1}, index=["n"], ttl=5.0)
    await view.aput(("m",), "b", {"n": 2}, index=False)
    await view.aput(("m",), "c", {"n": 3})
    await view.aput(("m",), "a", {"n": 4}, index=["n"], ttl=7.0)
    await view.adelete(("m",), "c")
    base.received.clear()
    await view.flush()
    puts = [op for op in base.received if isinstance(op, PutOp)]
    assert puts == [
        PutOp(("m",), "b", {"n": 2}, index=False, ttl=None),
        PutOp(("m",), "a", {"n": 4}, index=["n"], ttl=7.0),
        PutOp(("m",), "c", None),
    ]
    with pytest.raises(NotImplementedError, match="TTL"):
        ParticleStore(InMemoryStore()).put(("m",), "k", {}, ttl=1.0)


@kinds
async def test_items_changed_by_others_are_noted(kind, stores):
    base, _ = stores
    for key in "abcd":
        await base.aput(("m",), key, {"n": 0})
    view = ParticleStore(base)
    await view.aget(("m",), "a")
    await view.aput(("m",), "b", {"n": 1})
    await view.asearch(("m",), filter={"n": 0})
    for key in "abcde":
        await base.aput(("m",), key, {"n": 9})
    for key in "ac":
        await view.aput(("m",), key, {"n": 1})
    await view.aget(("m",), "d")
    await view.aput(("m",), "f", {"n": 1})
    [note] = await view.flush()
    assert note.startswith("others changed m/b, m/a, m/c in the store during the run")
    assert sorted((item.key, item.value["n"]) for item in await base.asearch(("m",), limit=ALL)) == [
        ("a", 1), ("b", 1), ("c", 1), ("d", 9), ("e", 9), ("f", 1)]  # fmt: skip


async def test_a_sync_only_store_is_used_in_a_thread(tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "sync.db")) as base:
        base.put(("m",), "1", {"n": 1})
        view = ParticleStore(base)
        await view.aput(("m",), "2", {"n": 2})
        assert [hit.key for hit in await view.asearch(("m",))] == ["2", "1"]
        await view.flush()
        assert {hit.key for hit in base.search(("m",))} == {"1", "2"}


async def test_a_view_of_a_view_flushes_into_the_outer_view():
    base = indexed()
    outer = ParticleStore(base)
    await outer.aput(("m",), "o", {"text": "cat"})
    inner = ParticleStore(outer)
    await inner.aput(("m",), "i", {"text": "car"})
    assert [hit.key for hit in await inner.asearch(("m",), query="car")] == ["i", "o"]
    assert [hit.key for hit in await inner.asearch(("m",))] == ["o", "i"]
    await inner.flush()
    assert base.search(("m",)) == []
    await outer.flush()
    assert [hit.key for hit in base.search(("m",))] == ["o", "i"]
