"""Updates of a posterior that never lose an observation.

    record the evidence -> apply it to the head -> check what was dropped -> append a version -> is it in the head?

Evidence is recorded before it is applied, and versions are only ever added, so work that was interrupted at any await
can be repeated. `amc_agents.psrl.posterior.memory` derives the head from the versions.
"""

from __future__ import annotations

import difflib
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from amc_agents.errors import PosteriorError, UpdateError
from amc_agents.logs import log, room_logger
from amc_agents.psrl.posterior.memory import (
    Apply,
    Evidence,
    Guard,
    Lineage,
    PosteriorMemory,
    Version,
)
from amc_agents.psrl.posterior.retained import dropped_statements
from amc_agents.psrl.roles import Updater, experience
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import Step

_log = room_logger(__name__)


async def update_posterior(
    memory: PosteriorMemory, apply: Apply, evidence: Evidence, guard: Guard | None = dropped_statements
) -> Version:
    """Add new evidence to the posterior.

    If the posterior changes while `apply` runs, the evidence is applied again to the new head. Evidence in displaced
    versions is applied again too.

    Args:
        memory: where the posterior is stored.
        apply: the updater, a model or an exact one. It is not called if the head already accounts for the evidence.
        evidence: the observation.
        guard: finds what a new text dropped. If it finds any statement, `apply` is called once more with
            `Evidence.must_keep`, and the better of the two texts is taken. Statements that are still missing are stored
            in `Version.dropped` and logged with the diff. None disables the check, for an exact updater.

    Returns:
        The head, which accounts for the evidence.

    Raises:
        UpdateError: the updater raised an error or returned an empty text. The posterior is unchanged and the evidence
            is stored as pending: see `apply_pending`.
    """
    await memory.record(evidence)
    async with memory.turn():
        while True:
            lineage = await memory.lineage()
            candidates = (evidence, *lineage.displaced())
            unsettled = [candidate for candidate in candidates if candidate.id not in lineage.settled]
            if not unsettled:
                return lineage.head
            await _add_evidence(memory, lineage, apply, unsettled[0], guard)


async def apply_pending(memory: PosteriorMemory, apply: Apply, guard: Guard | None = dropped_statements) -> Version:
    """Apply all evidence that the head does not account for, from updates that failed or were interrupted.

    This includes evidence that another process is about to apply: the result is correct, and the update is paid for
    twice.

    Returns:
        The head.

    Raises:
        UpdateError: some evidence could not be applied. The rest has been applied. The error is that of the last
            failure.
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
    """Add the owner's text as a new version.

    It takes precedence over evidence that arrived since `parent`. That evidence is applied to it again.

    Args:
        memory: where the posterior is stored.
        text: the whole new posterior.
        parent: id of the version that the owner edited; None for the head.
        note: reason for the edit, for the history.

    Raises:
        PosteriorError: the text is empty, or the owner has made another edit since `parent`. In the second case this
            text is stored as a version that is not in use.
    """
    if not text.strip():
        raise PosteriorError("the new text is empty: nothing was changed")
    started = await memory.head() if parent is None else await memory.get(parent)
    if text == started.text:
        return started
    return await _add_by_owner(memory, Version(text, "edit", started.id, note=note))


async def rollback(memory: PosteriorMemory, id: str, *, note: str = "") -> Version:
    """Restore an earlier text as a new version. Evidence between the two is not applied again.

    Args:
        memory: where the posterior is stored.
        id: the version to restore, in a form that `PosteriorMemory.get` accepts.
        note: reason for the rollback, for the history.

    Raises:
        PosteriorError: no version matches, or the owner edits the posterior at the same time.
    """
    wanted, head = await memory.get(id), await memory.head()
    if wanted.id == head.id:
        return head
    return await _add_by_owner(memory, Version(wanted.text, "rollback", head.id, restores=wanted.id, note=note))


def diff(old: Version, new: Version) -> str:
    """Return a unified diff of two versions, empty if their texts are equal."""
    before, after = (f"version {version.number} ({version.id})" for version in (old, new))
    lines = difflib.unified_diff(old.text.splitlines(), new.text.splitlines(), before, after, lineterm="", n=1)
    return "\n".join(lines)


async def _add_evidence(
    memory: PosteriorMemory, lineage: Lineage, apply: Apply, evidence: Evidence, guard: Guard | None
) -> None:
    """Try once to append a version with the evidence. Nothing is appended if the posterior has changed meanwhile."""
    head, number = lineage.head, lineage.next_number
    text = await _applied(apply, head, evidence)
    dropped = tuple(guard(head.text, text)) if guard else ()
    if guard and dropped:
        second_text = await _applied(apply, head, replace(evidence, must_keep=dropped))
        still_dropped = tuple(guard(head.text, second_text))
        if len(still_dropped) <= len(dropped):
            text, dropped = second_text, still_dropped
    version = Version(text, "evidence", head.id, number, evidence, dropped)
    if await memory.append(version) and dropped:
        log(
            _log,
            logging.WARNING,
            "posterior.dropped",
            "the update of episode %(episode)s dropped known statements, even on a second try: %(dropped)s (%(diff)s)",
            episode=evidence.episode,
            dropped="; ".join(dropped),
            diff=diff(head, version),
        )


async def _applied(apply: Apply, head: Version, evidence: Evidence) -> str:
    try:
        text = await apply(head.text, evidence)
    except Exception as error:
        raise UpdateError(head.number, evidence.episode, excerpt(f"{type(error).__name__}: {error}", 150)) from error
    if not isinstance(text, str) or not text.strip():
        raise UpdateError(head.number, evidence.episode, f"expected the new posterior as a text, got {quoted(text)}")
    return text


async def _add_by_owner(memory: PosteriorMemory, version: Version) -> Version:
    while True:
        version = replace(version, number=(await memory.lineage()).next_number)
        if await memory.append(version):
            break
    history = await memory.history()
    if version.id not in {used.id for used in history}:
        other = next(used for used in reversed(history) if used.by_owner)
        raise PosteriorError(
            f"version {other.number} ({other.id}) was written by the owner after {version.parent}, which your text is "
            f"based on. Yours is kept as version {version.number} ({version.id}) and is not in use: compare the two, "
            "and edit the head"
        )
    return version


@dataclass(frozen=True)
class Learning:
    """Settings of posterior updates."""

    update: Literal["trajectory", "step"] = "trajectory"
    """When to call the updater: once at the end of an episode, or after each step, which costs more and makes fewer
    mistakes (appendix B.1)."""
    guard: Guard | None = dropped_statements
    """Finds statements that an update dropped; None for an updater that follows Bayes' rule exactly."""
    on_update_error: Literal["raise", "keep"] = "raise"
    """If an update fails, "keep" logs the failure and continues with the old posterior. In both cases the observations
    are stored and applied at the start of the next episode."""
    rewards: bool = True
    """Show each step's reward to the updater."""


@dataclass
class EpisodeProgress:
    """Number of steps of an episode that are stored as evidence."""

    episode: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Unique name of the episode. Evidence of the same name is applied once."""
    n_recorded: int = 0
    """Steps stored as evidence so far."""


class Learner:
    """Records evidence and updates one posterior.

    Args:
        memory: where the posterior is stored.
        updater: writes the new posterior.
        learning: settings of the updates.
    """

    def __init__(self, memory: PosteriorMemory, updater: Updater, learning: Learning) -> None:
        self.memory, self._updater, self._learning = memory, updater, learning
        self._guard = learning.guard
        self.failures: list[str] = []
        """Messages of the failed updates that were skipped."""

    async def catch_up(self, world: str) -> Version:
        """Apply all pending evidence and return the posterior.

        Raises:
            UpdateError: an update failed, and `on_update_error` is "raise".
        """
        try:
            return await apply_pending(self.memory, self._apply(world), self._guard)
        except UpdateError as error:
            return await self._after_failure(error)

    async def keep(self, progress: EpisodeProgress, steps: Sequence[Step], context: str = "") -> Evidence | None:
        """Store the new steps of an episode as evidence, without an update.

        Args:
            progress: the episode's progress, which is advanced.
            steps: all steps of the episode so far.
            context: text about the episode that precedes the steps.

        Returns:
            The evidence, or None if no step is new.
        """
        first, n_steps = progress.n_recorded, len(steps)
        if n_steps <= first:
            return None
        text = experience(steps[first:], first=first, rewards=self._learning.rewards)
        text = f"{context}\n\n{text}" if context else text
        evidence = Evidence(progress.episode, text, f"{progress.episode}/{first}-{n_steps}")
        await self.memory.record(evidence)
        progress.n_recorded = n_steps
        return evidence

    async def learn(self, world: str, evidence: Evidence) -> Version:
        """Apply stored evidence and return the posterior.

        Raises:
            UpdateError: the update failed, and `on_update_error` is "raise".
        """
        try:
            return await update_posterior(self.memory, self._apply(world), evidence, self._guard)
        except UpdateError as error:
            return await self._after_failure(error)

    def _apply(self, world: str) -> Any:
        async def apply(posterior: str, evidence: Evidence) -> str:
            return await self._updater.update(world, posterior, evidence.observation, evidence.must_keep)

        return apply

    async def _after_failure(self, error: UpdateError) -> Version:
        if self._learning.on_update_error == "raise":
            raise error
        log(_log, logging.WARNING, "posterior.kept", "%(text)s", text=error)
        self.failures.append(str(error))
        return await self.memory.head()
