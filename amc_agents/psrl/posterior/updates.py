"""Updating a posterior that belongs to its user, so that no observation is ever lost.

    record the evidence -> apply it to the head -> check what was dropped -> append a version -> is it in the head?

Evidence is recorded before anything is made of it, and versions are only ever added: whatever is interrupted, at any
await, can be done again. Which version is the head: `amc_agents.psrl.posterior.lineage`.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from weakref import WeakKeyDictionary

from amc_agents.errors import PosteriorError, UpdateError
from amc_agents.psrl.posterior.lineage import Lineage
from amc_agents.psrl.posterior.retained import dropped_statements
from amc_agents.psrl.posterior.types import Apply, Cause, Evidence, Guard, PosteriorMemory, Version

__all__ = [
    "Apply",
    "Cause",
    "Evidence",
    "Guard",
    "InMemoryPosterior",
    "Lineage",
    "PosteriorMemory",
    "Turns",
    "Version",
    "apply_pending",
    "diff",
    "dropped_statements",
    "edit",
    "rollback",
    "update_posterior",
]

_log = logging.getLogger(__name__)


async def update_posterior(
    memory: PosteriorMemory, apply: Apply, evidence: Evidence, guard: Guard | None = dropped_statements
) -> Version:
    """Account for new evidence.

    Where others have changed the posterior meanwhile, the evidence is applied again to what it is then. Observations
    that an owner's edit has displaced are applied again as well.

    Args:
        memory: where the posterior is kept.
        apply: the updater, a model or an exact one.
        evidence: what was observed. If the head has it already, nothing is asked.
        guard: finds what a new text has dropped: then `apply` is asked once more, with `Evidence.must_keep`, and the
            better of both is taken; what is missing even so stands in `Version.dropped`, and is logged with the diff.
            None: no check, for an exact updater.

    Returns:
        The head, which accounts for the evidence.

    Raises:
        UpdateError: the updater failed, refused, or wrote nothing. The posterior is as it was, and the evidence is
            kept as not applied: see `apply_pending`.
    """
    await memory.record(evidence)
    async with memory.turn():
        while True:
            lineage = await memory.lineage()
            left = [one for one in (evidence, *lineage.displaced()) if one.id not in lineage.settled]
            if not left:
                return lineage.head
            await _add_evidence(memory, lineage, apply, left[0], guard)


async def apply_pending(memory: PosteriorMemory, apply: Apply, guard: Guard | None = dropped_statements) -> Version:
    """Apply all evidence that the head does not account for yet: of updates that failed or were interrupted.

    What another process is about to apply counts as well: calling this meanwhile is safe, and paid for twice.

    Returns:
        The head.

    Raises:
        UpdateError: of the last that could not be applied; the others have been.
    """
    failure: UpdateError | None = None
    for evidence in await memory.pending():
        try:
            await update_posterior(memory, apply, evidence, guard)
        except UpdateError as error:
            failure = error
    if failure is not None:
        raise failure
    return await memory.head()


async def edit(memory: PosteriorMemory, text: str, *, parent: str | None = None, note: str = "") -> Version:
    """The owner's own text as a new version. It wins over evidence that came in since `parent`, which is applied again.

    Args:
        memory: where the posterior is kept.
        text: the whole new posterior.
        parent: id of the version that the owner had before them; None: the head.
        note: why.

    Raises:
        PosteriorError: the text is empty, or the owner has edited the posterior elsewhere since `parent`; then this
            text is kept as a version that is not in use.
    """
    if not text.strip():
        raise PosteriorError("an empty text is no posterior: nothing was changed")
    started = await memory.head() if parent is None else await memory.get(parent)
    if text == started.text:
        return started
    return await _add_by_owner(memory, Version(text, "edit", started.id, note=note))


async def rollback(memory: PosteriorMemory, id: str, *, note: str = "") -> Version:
    """An earlier text again, as a new version. Evidence between the two counts as done with: it is not applied again.

    Args:
        memory: where the posterior is kept.
        id: the version to return to, as `PosteriorMemory.get` takes it.
        note: why.

    Raises:
        PosteriorError: there is no such version, or the owner has edited the posterior at this moment.
    """
    wanted, head = await memory.get(id), await memory.head()
    if wanted.id == head.id:
        return head
    return await _add_by_owner(memory, Version(wanted.text, "rollback", head.id, restores=wanted.id, note=note))


def diff(old: Version, new: Version) -> str:
    """What changed between two versions, as a unified diff; empty where nothing did."""
    before, after = (f"version {one.number} ({one.id})" for one in (old, new))
    lines = difflib.unified_diff(old.text.splitlines(), new.text.splitlines(), before, after, lineterm="", n=1)
    return "\n".join(lines)


class Turns:
    """Turns of updates, one after the other in each event loop."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for one's turn, and keep it."""
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            yield


class InMemoryPosterior(PosteriorMemory):
    """A posterior in this process, for tests and experiments.

    Args:
        prior: the first version's text.
    """

    def __init__(self, prior: str) -> None:
        self._lineage = Lineage([Version(prior, "prior")])
        self._evidence: dict[str, Evidence] = {}
        self._turns = Turns()
        self._adding = threading.Lock()

    async def lineage(self) -> Lineage:
        """See `PosteriorMemory`."""
        return self._lineage

    async def append(self, version: Version) -> bool:
        """See `PosteriorMemory`."""
        with self._adding:
            if version.number != self._lineage.next_number:
                return False
            self._lineage.add([version])
            return True

    async def record(self, evidence: Evidence) -> None:
        """See `PosteriorMemory`."""
        self._evidence.setdefault(evidence.id, evidence)

    async def recorded(self) -> Sequence[Evidence]:
        """See `PosteriorMemory`."""
        return tuple(self._evidence.values())

    def turn(self) -> AbstractAsyncContextManager[None]:
        """See `PosteriorMemory`."""
        return self._turns.take()


async def _add_evidence(
    memory: PosteriorMemory, lineage: Lineage, apply: Apply, evidence: Evidence, guard: Guard | None
) -> None:
    """One try to append a version with the evidence; if others were faster, nothing happens."""
    head, number = lineage.head, lineage.next_number
    text = await _applied(apply, head, evidence)
    dropped = tuple(guard(head.text, text)) if guard else ()
    if guard and dropped:
        second = await _applied(apply, head, replace(evidence, must_keep=dropped))
        still = tuple(guard(head.text, second))
        if len(still) <= len(dropped):
            text, dropped = second, still
    version = Version(text, "evidence", head.id, number, evidence, dropped)
    if await memory.append(version) and dropped:
        _log.warning(
            "the update of episode %s dropped what was known, even on a second try: %s\n%s",
            evidence.episode,
            "; ".join(dropped),
            diff(head, version),
        )


async def _applied(apply: Apply, head: Version, evidence: Evidence) -> str:
    try:
        text = await apply(head.text, evidence)
    except Exception as error:
        raise UpdateError(head.number, evidence.episode, f"{type(error).__name__}: {error}") from error
    if not isinstance(text, str) or not text.strip():
        raise UpdateError(head.number, evidence.episode, f"expected the new posterior as a text, got {text!r}")
    return text


async def _add_by_owner(memory: PosteriorMemory, version: Version) -> Version:
    while True:
        version = replace(version, number=(await memory.lineage()).next_number)
        if await memory.append(version):
            break
    history = await memory.history()
    if version.id not in {one.id for one in history}:
        other = next(one for one in reversed(history) if one.by_owner)
        raise PosteriorError(
            f"version {other.number} ({other.id}) was made by its owner since {version.parent}, from which yours "
            f"started. Yours is kept as version {version.number} ({version.id}), and is not in use: look at the "
            "difference of the two, and edit the head"
        )
    return version
