"""A particle's view of the agent's store. Only the winner's writes reach the store."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from langgraph.store.base import BaseStore, GetOp, IndexConfig, Item, ListNamespacesOp, Op, PutOp, Result, SearchOp
from langgraph.store.memory import InMemoryStore
from typing_extensions import override

from amc_agents.population.feature import AgentStart, Feature
from amc_agents.population.features.store_search import (
    in_namespace,
    index_like,
    matches,
    merged,
    own_hit,
    own_item,
    truncated,
)
from amc_agents.population.particle import Particle
from amc_agents.population.saver import own_containers
from amc_agents.population.system import ParticleSystem
from amc_agents.run import Run
from amc_agents.runtime.store_operations import ALL, batch

Requests = Generator[tuple[BaseStore, list[Op]], list[Any], Any]
"""Yields operations for a store, receives their results, and returns a value."""


class ParticleStore(BaseStore):
    """An overlay: reads see the particle's own writes over the base store, writes stay in the overlay until `flush`.

    Results equal those of the base store with the writes applied. A search without a query, in a store that sorts by
    time, returns the particle's own items first. A search with a query ranks own items by cosine similarity under the
    base store's index.

    Args:
        base: the user's store.
    """

    def __init__(self, base: BaseStore) -> None:
        self.base = base
        self.supports_ttl, self.ttl_config = base.supports_ttl, base.ttl_config
        self._index: IndexConfig | None = index_like(base)
        self._entries: dict[Key, Entry] = {}
        self._shared = False
        self._searchable: dict[bool, InMemoryStore] = {}
        self._lock = threading.Lock()

    @property
    def index_config(self) -> IndexConfig | None:
        """The base store's index, for a `ParticleStore` over this store."""
        return self._index

    @property
    def keeps_order(self) -> bool:
        """Whether searches without a query return items in the order of writing instead of newest first."""
        return self.base.keeps_order if isinstance(self.base, ParticleStore) else isinstance(self.base, InMemoryStore)

    def fork(self) -> ParticleStore:
        """Return an overlay with the same writes, copied on the next write of either."""
        self._shared = True
        child = copy(self)
        child._lock = threading.Lock()
        return child

    def dump(self) -> list[tuple[Any, ...]]:
        """Return the particle's knowledge and writes as containers, for `load`."""
        return [
            (
                key,
                entry.before,
                None if entry.write is None else tuple(entry.write),
                None if entry.item is None else (entry.item.created_at, entry.item.updated_at),
            )
            for key, entry in self._entries.items()
        ]

    def load(self, dumped: Iterable[Sequence[Any]]) -> None:
        """Take over what `dump` returned."""
        self._entries = {}
        for key, before, write, times in dumped:
            put = None if write is None else PutOp(*write)
            item = None
            if put is not None and put.value is not None and times is not None:
                item = Item(value=dict(put.value), key=put.key, namespace=put.namespace,
                            created_at=times[0], updated_at=times[1])  # fmt: skip
            self._entries[key] = Entry(before, put, item)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations. Reads see the state before the writes of the same batch."""
        requests = self._requests(list(ops))
        try:
            store, store_ops = next(requests)
            while True:
                store, store_ops = requests.send(store.batch(store_ops))
        except StopIteration as done:
            return list(done.value)

    @override
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        requests = self._requests(list(ops))
        try:
            store, store_ops = next(requests)
            while True:
                store, store_ops = requests.send(await batch(store, *store_ops))
        except StopIteration as done:
            return list(done.value)

    async def flush(self) -> list[str]:
        """Write this particle's writes to the base store. Returns notes; see `flush`."""
        return await flush(self.base, {key: entry for key, entry in self._entries.items() if entry.write is not None})

    def _requests(self, ops: list[Op]) -> Requests:
        entries = self._entries
        base_ops = [self._base_op(op, entries) for op in ops]
        needed = [op for op in base_ops if op is not None]
        base_results = iter((yield self.base, needed) if needed else [])
        answers = [None if op is None else next(base_results) for op in base_ops]
        results: list[Result] = [None] * len(ops)
        for i, (op, answer) in enumerate(zip(ops, answers, strict=True)):
            if isinstance(op, GetOp):
                results[i] = self._got(op, answer, entries)
            elif isinstance(op, SearchOp):
                results[i] = yield from self._searched(op, answer, entries)
            elif isinstance(op, ListNamespacesOp):
                results[i] = yield from self._listed(op, answer, entries)
        for op, answer in zip(ops, answers, strict=True):
            if isinstance(op, PutOp):
                self._write(op, answer)
        return results

    def _base_op(self, op: Op, entries: dict[Key, Entry]) -> Op | None:
        """Return the operation that the base store must run for `op`; None if it need not run any."""
        if isinstance(op, GetOp):
            entry = entries.get((op.namespace, op.key))
            return op if entry is None or entry.write is None else None
        if isinstance(op, PutOp):
            known = (op.namespace, op.key) in entries
            return None if known else GetOp(op.namespace, op.key, refresh_ttl=False)
        if isinstance(op, SearchOp):
            n_hidden = sum(in_namespace(entry.write, op.namespace_prefix) for entry in entries.values())
            if not n_hidden:
                return op
            whole = self.keeps_order and not (op.query and self._index)
            return op._replace(offset=0, limit=ALL if whole else op.offset + op.limit + n_hidden)
        if any(entry.write for entry in entries.values()):
            return op._replace(max_depth=None, offset=0, limit=ALL)
        return op

    def _got(self, op: GetOp, stored: Any, entries: dict[Key, Entry]) -> Item | None:
        entry = entries.get((op.namespace, op.key))
        if entry is None or entry.write is None:
            self._remember((op.namespace, op.key), stored)
            return None if stored is None else own_item(stored)
        return None if entry.item is None else own_item(entry.item)

    def _searched(self, op: SearchOp, stored: Any, entries: dict[Key, Entry]) -> Requests:
        for item in stored:
            self._remember((item.namespace, item.key), item)
        writes = {key: entry.item for key, entry in entries.items() if in_namespace(entry.write, op.namespace_prefix)}
        if not writes:
            return [own_hit(item, item.score) for item in stored]
        ranked = bool(op.query and self._index)
        store = yield from self._own(ranked, entries)
        [hits] = yield store, [op._replace(filter=None, offset=0, limit=ALL, query=op.query if ranked else None)]
        copies = [own_hit(item, item.score) for item in stored]
        own = [
            own_hit(item, hit.score)
            for hit in hits
            if (item := writes.get((hit.namespace, hit.key))) and matches(item.value, op.filter or {})
        ]
        return merged(op, copies, own, set(writes), ranked=ranked, keeps_order=self.keeps_order)

    def _listed(self, op: ListNamespacesOp, stored: Any, entries: dict[Key, Entry]) -> Requests:
        if not any(entry.write for entry in entries.values()):
            return stored
        store = yield from self._own(False, entries)
        [own] = yield store, [op._replace(max_depth=None, offset=0, limit=ALL)]
        deleted = {key for key, entry in entries.items() if entry.write is not None and entry.item is None}
        suspects = list({namespace for namespace, _ in deleted} & set(stored))
        searches: list[Op] = [SearchOp(namespace, limit=ALL, refresh_ttl=False) for namespace in suspects]
        contents = (yield self.base, searches) if suspects else []
        empty = {
            namespace
            for namespace, items in zip(suspects, contents, strict=True)
            if not any(item.namespace == namespace and (namespace, item.key) not in deleted for item in items)
        }
        return truncated(op, (set(stored) - empty) | set(own))

    def _own(self, ranked: bool, entries: dict[Key, Entry]) -> Requests:
        """Return a searchable store of the particle's own items, embedded only if they are ranked."""
        if ranked not in self._searchable:
            store = InMemoryStore(index=self._index if ranked else None)
            yield store, [entry.write for entry in entries.values() if entry.item is not None and entry.write]
            self._searchable[ranked] = store
        return self._searchable[ranked]

    def _remember(self, key: Key, stored: Item | None) -> None:
        if key not in self._entries:
            self._set(key, Entry(None if stored is None else own_containers(stored.value)))

    def _write(self, op: PutOp, stored: Any) -> None:
        key, now = (op.namespace, op.key), datetime.now(UTC)
        self._remember(key, stored)
        entry = self._entries[key]
        if op.value is None:
            self._set(key, Entry(entry.before, op))
            return
        value = own_containers(dict(op.value))
        earlier = entry.item or stored
        item = Item(value=value, key=op.key, namespace=op.namespace,
                    created_at=now if earlier is None else earlier.created_at, updated_at=now)  # fmt: skip
        self._set(key, Entry(entry.before, op._replace(value=value), item))

    def _set(self, key: Key, entry: Entry) -> None:
        with self._lock:
            if self._shared:
                self._entries, self._shared = dict(self._entries), False
            if entry.write is not None:
                # Entries are kept in the order of their last writes.
                self._entries.pop(key, None)
                self._searchable = {}
            self._entries[key] = entry


Key = tuple[tuple[str, ...], str]
"""Namespace and key."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A particle's knowledge of one key."""

    before: dict[str, Any] | None
    """Value in the store when the particle first read or wrote the key; None if the key was absent."""
    write: PutOp | None = None
    """The particle's last write to the key."""
    item: Item | None = None
    """Item after that write; None if the write deleted it."""


async def flush(store: BaseStore, written: Mapping[Key, Entry]) -> list[str]:
    """Write to a store, in order, with the index and time to live of each write.

    An item that others changed in the meantime is overwritten, as by an agent that runs alone.

    Args:
        store: the store.
        written: the entries that have a write, in order.

    Returns:
        Notes that name the items that were overwritten in this way.
    """
    if not written:
        return []
    items = await batch(store, *[GetOp(namespace, key, refresh_ttl=False) for namespace, key in written])
    changed = [
        f"{'.'.join(namespace)}/{key}"[:60]
        for ((namespace, key), entry), item in zip(written.items(), items, strict=True)
        if (None if item is None else item.value) != entry.before
    ]
    await batch(store, *[entry.write for entry in written.values() if entry.write is not None])
    if not changed:
        return []
    names = ", ".join(changed[:4]) + (f" and {len(changed) - 4} more" if len(changed) > 4 else "")
    return [f"others changed {names} in the store during the run, and the winner's writes have replaced it"]


class StoreViews(Feature):
    """Gives each particle a view of the agent's store.

    Args:
        base: the user's store.
    """

    name = "store_views"

    def __init__(self, base: BaseStore) -> None:
        self._untouched = ParticleStore(base)

    async def on_start(self, system: ParticleSystem) -> None:
        """Give the new particles views without writes."""
        self.on_recruited(system, 0)

    def on_recruited(self, system: ParticleSystem, earlier: int) -> None:
        """Give the particles of a further round views without writes."""
        for particle in system.everyone:
            if StoreViews not in particle.states:
                particle.states[StoreViews] = self._untouched.fork()

    def on_fork(self, parent: Particle, child: Particle) -> None:
        """Give the child its parent's writes."""
        child.states[StoreViews] = _view_of(parent).fork()

    async def on_agent_start(self, particle: Particle, start: AgentStart) -> None:
        """Let the agent use the particle's view."""
        start.agent = start.agent.copy(update={"store": _view_of(particle)})

    async def on_end(self, system: ParticleSystem, run: Run, winner: Particle) -> Run:
        """Write the winner's writes to the store."""
        for note in await _view_of(winner).flush():
            system.note(note)
        return run

    def record_of(self, particle: Particle) -> list[tuple[Any, ...]]:
        """Return the particle's knowledge and writes."""
        return _view_of(particle).dump()

    def restore_of(self, particle: Particle, recorded: Iterable[Sequence[Any]]) -> None:
        """Take over knowledge and writes."""
        particle.states[StoreViews] = view = self._untouched.fork()
        view.load(recorded)


def _view_of(particle: Particle) -> ParticleStore:
    view: ParticleStore = particle.states[StoreViews]
    return view
