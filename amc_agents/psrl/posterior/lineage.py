"""The head of a posterior, derived from its versions alone.

Versions form a tree, since each names its parent. Among the children of a version, the child leads whose branch
contains the owner's earliest edit or rollback. Without any edit the longest branch leads, and among equally long
branches the first. So an owner takes precedence over evidence, an edit over later edits elsewhere, and a version that a
slow process adds late does not displace what others have built in the meantime.

Evidence in displaced versions is applied again to the head.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from amc_agents.errors import PosteriorError
from amc_agents.psrl.posterior.types import Evidence, Version


class Lineage:
    """The versions of one posterior, and the chain of those that led to its head."""

    def __init__(self, versions: Iterable[Version] = ()) -> None:
        self.versions: list[Version] = []
        """Every version, in the order of addition."""
        self.chain: list[Version] = []
        """Versions that led to the head, oldest first, with the head last."""
        self.settled: set[str] = set()
        """Ids of the evidence that the chain accounts for."""
        self.add(versions)

    @property
    def head(self) -> Version:
        """Last version of the chain.

        Raises:
            PosteriorError: the posterior has no version.
        """
        if not self.chain:
            raise PosteriorError("this posterior has no version yet: give it a prior to begin with")
        return self.chain[-1]

    @property
    def next_number(self) -> int:
        """Number of the next version."""
        return self.versions[-1].number + 1 if self.versions else 1

    def add(self, versions: Iterable[Version]) -> None:
        """Add versions and derive the head again.

        Raises:
            PosteriorError: the parent of a version is missing.
        """
        rest = deque(versions)
        while rest and rest[0].parent == (self.chain[-1].id if self.chain else None):
            # The common case, a child of the head: the rest of the chain stays.
            self.versions.append(rest[0])
            self._extend(rest.popleft())
        if rest:
            ordered = sorted([*self.versions, *rest], key=lambda version: (version.number, version.id))
            chain = _chain_of(ordered)
            self.versions, self.chain, self.settled = ordered, [], set()
            for version in chain:
                self._extend(version)

    def displaced(self) -> list[Evidence]:
        """Return the evidence of displaced versions that the chain does not account for."""
        if len(self.chain) == len(self.versions):
            return []
        by_id = {version.evidence.id: version.evidence for version in self.versions if version.evidence is not None}
        return [evidence for evidence in by_id.values() if evidence.id not in self.settled]

    def _extend(self, version: Version) -> None:
        self.chain.append(version)
        if version.evidence is not None:
            self.settled.add(version.evidence.id)


def _chain_of(versions: Sequence[Version]) -> list[Version]:
    """Return the versions that led to the head, given all versions in order."""
    known = {version.id for version in versions}
    children: dict[str | None, list[Version]] = {}
    first_edit: dict[str, float] = {}
    """Number of the earliest version by the owner in a version's branch."""
    length: dict[str, int] = {}
    """Versions on the longest path from a version to a leaf."""
    for version in reversed(versions):  # Children come after their parents.
        if version.parent is not None and version.parent not in known:
            raise PosteriorError(
                f"version {version.number} ({version.id}) started from version {version.parent}, which is missing "
                "from the store: restore it from a backup"
            )
        branches = children.get(version.id, [])
        own_edit = version.number if version.by_owner else math.inf
        first_edit[version.id] = min([own_edit, *(first_edit[child.id] for child in branches)])
        length[version.id] = 1 + max((length[child.id] for child in branches), default=0)
        children.setdefault(version.parent, []).insert(0, version)
    chain: list[Version] = []
    leading: str | None = None
    while leading in children:
        chain.append(min(children[leading], key=lambda child: (first_edit[child.id], -length[child.id])))
        leading = chain[-1].id
    return chain
