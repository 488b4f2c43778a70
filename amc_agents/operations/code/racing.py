"""The race: an agent in each copy, the first whose changes pass the check wins, and the others are stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from amc_agents.envs.real.changes import FileChange
from amc_agents.errors import AmcError, ConfigurationError
from amc_agents.operations.code.checking import Check, check_untouched, former_versions, read_by_checks
from amc_agents.operations.code.copies import (
    Repository,
    changed_meanwhile,
    changes_in,
    make_base,
    make_copy,
    replace_with,
)
from amc_agents.operations.code.processes import Guard
from amc_agents.operations.code.run_state import CodeRun, CopyResult, new_run, state_folder
from amc_agents.operations.code.running import Place, free_ports, read_variables, run_command
from amc_agents.quoting import listed

OnChange = Callable[[CodeRun], object]


@dataclass(frozen=True, slots=True)
class CodeSettings:
    """How agents run."""

    n: int = 4
    """Number of copies."""
    include: tuple[str, ...] = ()
    """Git's path patterns of ignored files that the copies get, such as `.env` or `node_modules`."""
    env: tuple[str, ...] = ()
    """`NAME=VALUE`, or the NAME of a variable that looks like a secret and is passed nevertheless."""
    own_home: bool = False
    """Whether each agent has a HOME of its own."""
    max_seconds: float | None = None
    """Time limit of each agent."""
    trust_check: bool = False
    """Whether a check that does not react to broken files is accepted."""

    def __post_init__(self) -> None:
        if not 1 <= self.n <= 64:
            raise ConfigurationError(f"-n must be 1 to 64 copies, got {self.n}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ConfigurationError(f"--max-seconds must be positive, got {self.max_seconds}")


async def race(
    command: Sequence[str],
    check: Check,
    repository: Repository,
    settings: CodeSettings,
    on_change: OnChange = lambda run: None,
) -> CodeRun:
    """Run an agent in each copy until the changes of one pass the check. The repository is only read.

    A cancellation stops all agents; the run is then "interrupted".

    Args:
        command: the agent; {copy}, {out}, {home} and {port} are filled in.
        check: decides.
        repository: the repository.
        settings: how agents run.
        on_change: called with the run whenever the state of a copy has changed.

    Raises:
        ConfigurationError: the check cannot decide; see `check_untouched`. Or the command cannot be started.
        StorageError: the state folder cannot be written.
    """
    values, secrets = read_variables(settings.env)
    with new_run(state_folder(), repository) as folder, Guard(folder):
        copies = tuple(CopyResult(number) for number in range(1, settings.n + 1))
        run = CodeRun(folder.name, repository, tuple(command), check.command, copies, folder)
        run.save()
        racing = _Race(run, check, settings, on_change)
        try:
            await asyncio.to_thread(make_base, repository, run.base, settings.include)
            ports = free_ports(settings.n + 1)
            places = {}
            for number, port in enumerate(ports):
                place = Place(
                    folder / str(number), run.place(number), repository.inside, port, settings.own_home, values, secrets
                )
                place.state.mkdir()
                await asyncio.to_thread(make_copy, repository, run.base, place.copy)
                places[number] = place
            racing.note(*await check_untouched(check, places.pop(0), trusted=settings.trust_check))
            await racing.play(places)
        except asyncio.CancelledError:
            racing.end("interrupted")
            raise
        except BaseException:
            racing.end("failed")
            raise
        return racing.run


class _Race:
    """A run that goes on."""

    def __init__(self, run: CodeRun, check: Check, settings: CodeSettings, on_change: OnChange) -> None:
        self.run = run
        self._check, self._settings, self._on_change = check, settings, on_change

    def note(self, *notes: str) -> None:
        self.run = replace(self.run, notes=(*self.run.notes, *notes))

    def end(self, state: str) -> None:
        stopped = tuple(
            replace(copy, state="stopped") if copy.state in ("waiting", "running", "checking") else copy
            for copy in self.run.copies
        )
        self.run = replace(self.run, state=state, copies=stopped)
        self.run.save()
        self._on_change(self.run)

    async def play(self, places: dict[int, Place]) -> None:
        """Run all agents until one wins."""
        tasks = {asyncio.create_task(self._one_copy(number, place)): number for number, place in places.items()}
        try:
            for ended in asyncio.as_completed(tasks):
                number = await ended
                if number is not None:
                    self._win(number)
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        changed = await asyncio.to_thread(changed_meanwhile, self.run.repository, self.run.base)
        if changed:
            self.note(f"changed in the repository meanwhile, by you or by an agent outside its copy: {listed(changed)}")
        self.end("won" if self.run.winner is not None else "no winner")

    def _win(self, number: int) -> None:
        winner = self.run.copy(number)
        self.run = replace(self.run, winner=number)
        if tests := read_by_checks([change.path for change in winner.changes]):
            self.note(
                f"the winner changed {listed(tests)}, which the check may read: see `amc code diff`, and --protect"
            )
        if winner.left_out:
            self.note(f"the winner's changes to protected files were left out: {listed(winner.left_out)}")

    def _update(self, copy: CopyResult) -> None:
        self.run = self.run.with_copy(copy)
        self.run.save()
        self._on_change(self.run)

    async def _one_copy(self, number: int, place: Place) -> int | None:
        """Run an agent and the check; return the number of the copy if it passes."""
        copy = replace(self.run.copy(number), state="running")
        self._update(copy)
        began = time.monotonic()
        filled = [place.filled(argument) for argument in self.run.command]
        ended = await run_command(filled, place, "agent", seconds=self._settings.max_seconds)
        copy = replace(copy, state="checking", status=ended.status, seconds=round(time.monotonic() - began, 1))
        note = "stopped at the time limit" if ended.status is None else ""
        if ended.left:
            note += f"{'; ' if note else ''}{ended.left} processes that it left were ended"
        copy = replace(copy, note=note)
        self._update(copy)
        try:
            copy = await asyncio.to_thread(self._compared, copy, place)
            passed = bool(copy.changes) and (await self._check.run(place)).status == 0
        except (AmcError, OSError) as error:
            self._update(replace(copy, state="broken", note=str(error)))
            return None
        nothing = "" if copy.changes else "it changed nothing"
        self._update(replace(copy, state="passed" if passed else "failed", note=copy.note or nothing))
        return number if passed else None

    def _compared(self, copy: CopyResult, place: Place) -> CopyResult:
        """Find the changes of a copy, and give protected files the user's version."""
        changes = changes_in(self.run.repository, self.run.base, place.copy)
        protected = self._check.protected({change.path for change in changes})
        replace_with(protected, self.run.base, place.copy, former_versions(place))
        kept = tuple(change for change in changes if change.path not in protected)
        return replace(
            copy,
            changes=kept,
            lines=self._lines(kept, copy.number),
            left_out=tuple(change.path for change in changes if change.path in protected),
        )

    def _lines(self, changes: Sequence[FileChange], number: int) -> int:
        three_way = self.run.three_way(number)
        lines = [line for change in changes for line in three_way.diff(change.path).splitlines()]
        return sum(line.startswith(("+", "-")) and not line.startswith(("+++", "---")) for line in lines)


def apply_winner(run: CodeRun, number: int | None = None) -> CodeRun:
    """Write the changes of a copy, by default the winner's, to the working tree; return the run that says so.

    Raises:
        Conflict: the user changed the same places meanwhile. Nothing was written.
        ConfigurationError: there is no winner, or the copy changed nothing.
        StorageError: the working tree cannot be written.
    """
    chosen = run.chosen(number)
    changes = run.copy(chosen).changes
    if not changes:
        raise ConfigurationError(f"copy {chosen} of run {run.id} has no changes to take")
    run.three_way(chosen).apply(changes)
    applied = replace(run, winner=chosen, applied="working tree")
    with suppress(OSError):  # The changes are there, whatever the record says.
        applied.save()
    return applied
