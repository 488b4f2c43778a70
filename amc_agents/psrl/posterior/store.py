"""A posterior in any LangGraph store.

Below the posterior's namespace lie `posterior_versions` and `posterior_evidence`. Every version is written once, under
a key that contains its id, so writers in several processes never overwrite each other. The head is derived from all
versions: see `amc_agents.psrl.posterior.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from langgraph.store.base import BaseStore, GetOp, Item, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from amc_agents.errors import ConfigurationError, PosteriorError
from amc_agents.psrl.posterior.memory import Evidence, Lineage, PosteriorMemory, Turns, Version
from amc_agents.quoting import excerpt, quoted
from amc_agents.runtime.store_operations import ALL, batch, items_of

T = TypeVar("T", Version, Evidence)

VERSIONS, EVIDENCE = "posterior_versions", "posterior_evidence"
"""Last label of the namespace of each kind of record."""
FORMAT = 1
"""Format number of the records. Another number means that another release wrote the record."""

_VERSION, _EVIDENCE = TypeAdapter(Version), TypeAdapter(Evidence)
_turns: WeakKeyDictionary[BaseStore, dict[tuple[str, ...], Turns]] = WeakKeyDictionary()


class StorePosterior(PosteriorMemory):
    """A posterior in a LangGraph store. Any number of objects, in any number of processes, may share a namespace.

    Each call reads every version of the posterior.

    Args:
        store: sync or async. An async store works only in the event loop in which it was created.
        namespace: a sequence of labels, or a text with dots between them.
        prior: text of the first version, used while the namespace has no posterior.

    Raises:
        ConfigurationError: the namespace has no label or an empty one, or the prior is empty.
    """

    def __init__(self, store: BaseStore, namespace: Sequence[str] | str, *, prior: str | None = None) -> None:
        self.namespace = tuple(namespace.split(".") if isinstance(namespace, str) else namespace)
        if not all(self.namespace or [""]) or any("." in label for label in self.namespace):
            raise ConfigurationError(
                "expected a namespace as a sequence of labels without dots, or as a text with dots between them, such "
                f"as agents.lock; got {quoted(namespace)}"
            )
        if prior is not None and not prior.strip():
            raise ConfigurationError("the prior is empty: describe what is known and unknown, or omit it")
        self._store, self._prior = store, prior
        self._versions, self._evidence = (*self.namespace, VERSIONS), (*self.namespace, EVIDENCE)
        self._parsed: dict[str, Version] = {}

    @override
    async def lineage(self) -> Lineage:
        lineage = await self._stored()
        if not lineage.versions and self._prior is not None:
            await self.append(Version(self._prior, "prior"))
            lineage = await self._stored()
        if not lineage.versions:
            names = ", ".join(await posteriors_in(self._store)) or "none"
            raise PosteriorError(
                f"there is no posterior under {quoted('.'.join(self.namespace))} and no prior to begin with. "
                f"Posteriors in this store: {names}"
            )
        return lineage

    @override
    async def append(self, version: Version) -> bool:
        if (await self._stored()).next_number != version.number:
            return False
        # Another process may write the same number now. Both versions are kept; the lineage decides which leads.
        key = f"{version.number:08d}-{version.id}"
        await batch(self._store, PutOp(self._versions, key, _record(version), index=False))
        return True

    @override
    async def record(self, evidence: Evidence) -> None:
        [item] = await batch(self._store, GetOp(self._evidence, evidence.id, refresh_ttl=False))
        if item is None:
            await batch(self._store, PutOp(self._evidence, evidence.id, _record(evidence), index=False))

    @override
    async def recorded(self) -> Sequence[Evidence]:
        items = await items_of(self._store, self._evidence)
        return [_parsed(_EVIDENCE, item) for item in sorted(items, key=lambda item: item.created_at)]

    @override
    def turn(self) -> AbstractAsyncContextManager[None]:
        return _turns.setdefault(self._store, {}).setdefault(self.namespace, Turns()).take()

    async def _stored(self) -> Lineage:
        items = sorted(await items_of(self._store, self._versions), key=lambda item: item.key)
        for item in items:
            if item.key not in self._parsed:
                self._parsed[item.key] = _parsed(_VERSION, item)
        return Lineage(self._parsed[item.key] for item in items)


async def posteriors_in(store: BaseStore) -> list[str]:
    """List the namespaces of a store that have a posterior, each as a text with dots, sorted."""
    [namespaces] = await batch(store, ListNamespacesOp((MatchCondition("suffix", (VERSIONS,)),), limit=ALL))
    # The in-memory store also lists namespaces that were only searched.
    records = await batch(store, *[SearchOp(namespace, limit=1) for namespace in namespaces])
    return sorted(".".join(namespace[:-1]) for namespace, items in zip(namespaces, records, strict=True) if items)


def _record(content: Version | Evidence) -> dict[str, Any]:
    return {"amc_posterior": FORMAT, **asdict(content)}


def _parsed(kind: TypeAdapter[T], item: Item) -> T:
    place = f"{'.'.join(item.namespace)}, key {quoted(item.key)}"
    value: Any = item.value
    if not isinstance(value, Mapping) or "amc_posterior" not in value:
        raise PosteriorError(
            f"{place} is not a record of a posterior: another program writes to this namespace. Use another namespace"
        )
    if value["amc_posterior"] != FORMAT:
        raise PosteriorError(
            f"{place} was written in format {quoted(value['amc_posterior'], 40)}, and this release reads format "
            f"{FORMAT}: install the release that wrote it"
        )
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)[:_SHOWN]
        reasons = "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in details)
        raise PosteriorError(f"{place} is damaged: {excerpt(reasons)}. Restore the record from a backup") from error


_SHOWN = 3
"""Maximum number of faults that an error lists."""
