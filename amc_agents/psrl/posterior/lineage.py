"""Which version is the head, worked out from the versions alone.

Versions form a tree, since each names the one that it started from. Of several that started from the same one, that
leads on which the owner's earliest edit or rollback is, or came of: an owner wins over evidence, and over later edits
elsewhere. Where there is none of an owner's, the first leads on.

So a version that leads to the head is displaced by nobody but its owner. What was observed in a displaced version is
applied again to the head.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from amc_agents.errors import PosteriorError
from amc_agents.psrl.posterior.types import Evidence, Version


class Lineage:
    """The versions of one posterior, in order, and the chain of those that led to its head."""

    def __init__(self, versions: Iterable[Version] = ()) -> None:
        self.versions: list[Version] = []
        """Every version, in the order in which they were added."""
        self.chain: list[Version] = []
        """Those that led to the head, the oldest first, the head last."""
        self.settled: set[str] = set()
        """Ids of the evidence that the chain accounts for."""
        self.add(versions)

    @property
    def head(self) -> Version:
        """The last of the chain.

        Raises:
            PosteriorError: there is no version yet.
        """
        if not self.chain:
            raise PosteriorError("this posterior has no version yet: give it a prior to begin with")
        return self.chain[-1]

    @property
    def next_number(self) -> int:
        """Number of the version that is added next."""
        return self.versions[-1].number + 1 if self.versions else 1

    def add(self, versions: Iterable[Version]) -> None:
        """Take in versions that were added.

        Raises:
            PosteriorError: one started from a version that there is not.
        """
        rest = deque(versions)
        while rest and rest[0].parent == (self.chain[-1].id if self.chain else None):
            # A child of the head changes nothing before it, and this is almost every one.
            self.versions.append(rest[0])
            self._lead_on(rest.popleft())
        if rest:
            everything = sorted([*self.versions, *rest], key=lambda one: (one.number, one.id))
            chain = _chain_of(everything)
            self.versions, self.chain, self.settled = everything, [], set()
            for version in chain:
                self._lead_on(version)

    def displaced(self) -> list[Evidence]:
        """Evidence in versions that do not lead to the head, and that the head does not account for."""
        if len(self.chain) == len(self.versions):
            return []
        found = {one.evidence.id: one.evidence for one in self.versions if one.evidence is not None}
        return [one for one in found.values() if one.id not in self.settled]

    def _lead_on(self, version: Version) -> None:
        self.chain.append(version)
        if version.evidence is not None:
            self.settled.add(version.evidence.id)


def _chain_of(versions: Sequence[Version]) -> list[Version]:
    """Those that led to the head, of versions in order."""
    known = {one.id for one in versions}
    children: dict[str | None, list[Version]] = {}
    first_of_owner: dict[str, float] = {}
    for one in reversed(versions):  # Children come after their parents.
        if one.parent is not None and one.parent not in known:
            raise PosteriorError(
                f"version {one.number} ({one.id}) started from version {one.parent}, which is missing: the store "
                "has lost it"
            )
        first = min(first_of_owner.get(one.id, math.inf), one.number if one.by_owner else math.inf)
        first_of_owner[one.id] = first
        children.setdefault(one.parent, []).append(one)
        if one.parent is not None:
            first_of_owner[one.parent] = min(first_of_owner.get(one.parent, math.inf), first)
    chain: list[Version] = []
    at: str | None = None
    while at in children:
        # Of equals the first: the lists are in reverse order.
        chain.append(min(reversed(children[at]), key=lambda one: first_of_owner[one.id]))
        at = chain[-1].id
    return chain
