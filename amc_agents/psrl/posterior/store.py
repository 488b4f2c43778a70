"""A posterior under a namespace of any LangGraph store: versions and evidence are records that are never written twice.

Under the namespace lie two more: `posterior_versions`, one record for each version, and `posterior_evidence`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from langgraph.store.base import BaseStore, GetOp, Item, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from pydantic import TypeAdapter, ValidationError

from amc_agents.errors import ConfigurationError, PosteriorError
from amc_agents.psrl.posterior.updates import Evidence, Lineage, PosteriorMemory, Turns, Version
from amc_agents.runtime.store_operations import batch, put_if_absent_in

T = TypeVar("T", Version, Evidence)

VERSIONS, EVIDENCE = "posterior_versions", "posterior_evidence"
FORMAT = 1
"""Of the records; one with another number was written by another release."""
ALL = 1_000_000
"""A search has to name a limit."""

_VERSION, _EVIDENCE = TypeAdapter(Version), TypeAdapter(Evidence)
_turns: WeakKeyDictionary[BaseStore, dict[tuple[str, ...], Turns]] = WeakKeyDictionary()


class StorePosterior(PosteriorMemory):
    """A posterior in a store. Any number of these may look at one namespace, in any number of processes.

    In SQLite, Postgres and LangGraph's store in memory a version is added atomically, under a key that only one writer
    can have. Other stores have nothing of the kind: there each version has a key of its own, so that nothing is
    overwritten, and all versions are read each time.

    Args:
        store: sync or async; one of an async class is only usable in the event loop in which it was made.
        namespace: labels, or as one text with dots.
        prior: the first version's text, where there is none yet.
    """

    def __init__(self, store: BaseStore, namespace: Sequence[str] | str, *, prior: str | None = None) -> None:
        self.namespace = tuple(namespace.split(".") if isinstance(namespace, str) else namespace)
        if not all(self.namespace or [""]) or any("." in one for one in self.namespace):
            raise ConfigurationError(
                "a namespace is labels without dots, or one text with dots between them, such as agents.lock; "
                f"got {namespace!r}"
            )
        if prior is not None and not prior.strip():
            raise ConfigurationError("the prior is empty: say in words what is known and what is not, or give none")
        self._store, self._prior = store, prior
        self._versions, self._evidence = (*self.namespace, VERSIONS), (*self.namespace, EVIDENCE)
        self._put_if_absent = put_if_absent_in(store)
        self._read = Lineage()
        self._reading = threading.Lock()
        self._parsed: dict[str, Version] = {}

    async def lineage(self) -> Lineage:
        """See `PosteriorMemory`."""
        lineage = await self._now()
        if not lineage.versions and self._prior is not None:
            await self.append(Version(self._prior, "prior"))
            lineage = await self._now()
        if not lineage.versions:
            there = ", ".join(await posteriors_in(self._store)) or "none"
            raise PosteriorError(
                f"there is no posterior under {'.'.join(self.namespace)!r} and no prior to begin with. "
                f"In this store there are: {there}"
            )
        return lineage

    async def append(self, version: Version) -> bool:
        """See `PosteriorMemory`."""
        key, value = _key(version.number), _record(version)
        if self._put_if_absent is not None:
            return await self._put_if_absent(self._versions, key, value)
        if (await self._now()).next_number != version.number:
            return False
        # Another process may do the same in this moment: `Lineage` then says which of the two leads on.
        await batch(self._store, PutOp(self._versions, f"{key}-{version.id}", value, index=False))
        return True

    async def record(self, evidence: Evidence) -> None:
        """See `PosteriorMemory`."""
        [there] = await batch(self._store, GetOp(self._evidence, evidence.id, refresh_ttl=False))
        if there is None:
            await batch(self._store, PutOp(self._evidence, evidence.id, _record(evidence), index=False))

    async def recorded(self) -> Sequence[Evidence]:
        """See `PosteriorMemory`."""
        found = await self._search(self._evidence)
        return [_parsed(_EVIDENCE, one) for one in sorted(found, key=lambda one: one.created_at)]

    def turn(self) -> AbstractAsyncContextManager[None]:
        """See `PosteriorMemory`."""
        return _turns.setdefault(self._store, {}).setdefault(self.namespace, Turns()).take()

    async def _now(self) -> Lineage:
        return await (self._searched() if self._put_if_absent is None else self._read_on())

    async def _searched(self) -> Lineage:
        """Everything there is, since versions may turn up in any order."""
        found = sorted(await self._search(self._versions), key=lambda one: one.key)
        for one in found:
            if one.key not in self._parsed:
                self._parsed[one.key] = _parsed(_VERSION, one)
        return Lineage(self._parsed[one.key] for one in found)

    async def _read_on(self) -> Lineage:
        """What was read before, and the numbers that follow."""
        n_asked = 2
        while True:
            first = self._read.next_number
            numbers = range(first, first + n_asked)
            items = await batch(self._store, *[GetOp(self._versions, _key(n), refresh_ttl=False) for n in numbers])
            found = [_parsed(_VERSION, one) for one in items if one is not None]
            if [one.number for one in found] != list(numbers[: len(found)]):
                raise PosteriorError(
                    f"versions of {'.'.join(self.namespace)!r} are damaged: from {first} on, those found are numbered "
                    f"{', '.join(str(one.number) for one in found)}. Was a record deleted or changed?"
                )
            with self._reading:
                # Another task may have read the same meanwhile.
                self._read.add([one for one in found if one.number >= self._read.next_number])
            if len(found) < n_asked:
                return self._read
            n_asked = min(2 * n_asked, 256)

    async def _search(self, namespace: tuple[str, ...]) -> list[Item]:
        [found] = await batch(self._store, SearchOp(namespace, limit=ALL, refresh_ttl=False))
        return list(found)


async def posteriors_in(store: BaseStore) -> list[str]:
    """The namespaces of a store that have a posterior, as texts with dots, sorted."""
    [found] = await batch(store, ListNamespacesOp((MatchCondition("suffix", (VERSIONS,)),), limit=ALL))
    # A store in memory also lists those that were only looked for.
    records = await batch(store, *[SearchOp(one, limit=1) for one in found])
    return sorted(".".join(one[:-1]) for one, there in zip(found, records, strict=True) if there)


def _key(number: int) -> str:
    return f"{number:08d}"


def _record(one: Version | Evidence) -> dict[str, Any]:
    return {"amc_posterior": FORMAT, **asdict(one)}


def _parsed(kind: TypeAdapter[T], item: Item) -> T:
    place = f"{'.'.join(item.namespace)}, key {item.key!r}"
    value: Any = item.value
    if not isinstance(value, Mapping) or "amc_posterior" not in value:
        raise PosteriorError(f"{place} holds no record of a posterior: somebody else writes under this namespace")
    if value["amc_posterior"] != FORMAT:
        raise PosteriorError(
            f"{place} was written in format {value['amc_posterior']!r} and this release reads {FORMAT}: "
            "install the release that wrote it"
        )
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise PosteriorError(f"{place} is damaged: {told}. Restore the record from a backup") from error
