"""`--watch`: animations of runs in progress, in place on a terminal and as plain lines elsewhere."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from amc_agents import smc
from amc_agents.population.features.watchers import watching
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem
from amc_agents.quoting import excerpt
from amc_agents.run import WeighingPoint

_PER_SECOND = 4
_BAR = 10
"""Width of the bar of a weight, in characters."""
_LAST_POINTS = 3
_LEAST_ROWS = 3
_OTHER_LINES = 10
"""Lines of a view that are no rows of its table."""
_COLUMNS = {
    "slot": 4, "step": 4, "state": 8, "return": 6, "value": 8, "weight": 6, "": _BAR, "last action": None,
}  # fmt: skip
"""Name and width of each column; the last takes the rest."""
_NUMBERS = ("slot", "step", "return", "value", "weight")


@contextmanager
def watched(console: Console, *, above: RenderableType | None = None, several: bool = False) -> Iterator[None]:
    """Show the runs of a block: in place, or as lines if the output is no terminal that can do that.

    Args:
        console: where to show them.
        above: shown above the runs on a terminal, such as a progress bar.
        several: whether the block makes many runs.
    """
    if not draws_in_place(console):
        lines = LinesView(console, named=several)
        with watching(lines), lines.following():
            yield
        return
    view = LiveView(console, above, several=several)
    with Live(get_renderable=view.drawn, console=console, refresh_per_second=_PER_SECOND), watching(view):
        yield


def draws_in_place(console: Console) -> bool:
    """Whether the console is a terminal that moves its cursor, and the user has not asked for plain text."""
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("NO_COLOR")


class _Runs:
    """The runs in progress; a run may begin and end in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, tuple[str, ParticleSystem]] = {}

    def begin(self, name: str, system: ParticleSystem) -> None:
        """Add a run."""
        with self._lock:
            self._running[id(system)] = name, system

    def end(self, system: ParticleSystem) -> None:
        """Remove a run."""
        with self._lock:
            self._running.pop(id(system), None)

    def _now(self) -> list[tuple[str, ParticleSystem]]:
        with self._lock:
            return [*self._running.values()]


class LiveView(_Runs):
    """Draws the runs in progress; at the end, the last one stays."""

    def __init__(self, console: Console, above: RenderableType | None = None, *, several: bool = False) -> None:
        super().__init__()
        self._console, self._above, self._several = console, above, several
        self._last: RenderableType = "no run has begun"

    def end(self, system: ParticleSystem) -> None:
        """Draw a run for the last time, before it is removed."""
        self._draw()
        super().end(system)

    def drawn(self) -> RenderableType:
        """Return the current picture."""
        self._draw()
        return self._last if self._above is None else Group(self._above, self._last)

    def _draw(self) -> None:
        height = self._console.height
        runs = [snapshot(name, system) for name, system in self._now()]
        if self._several:
            self._last = several_runs(runs, height)
        elif runs:
            self._last = one_run(runs[-1], height)


class LinesView(_Runs):
    """Prints each weighing of each run as a line.

    Args:
        console: where to print.
        named: whether a line begins with the name of its run.
    """

    def __init__(self, console: Console, *, named: bool) -> None:
        super().__init__()
        self._console, self._named = console, named
        self._printing, self._n_printed = threading.Lock(), dict[int, int]()

    def end(self, system: ParticleSystem) -> None:
        """Print what is not printed yet, and a summary."""
        name = next((name for name, running in self._now() if running is system), "")
        super().end(system)
        self._print(name, system, ended=True)
        with self._printing:
            self._n_printed.pop(id(system), None)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Print from time to time during a block."""
        done = threading.Event()

        def follow() -> None:
            while not done.wait(1 / _PER_SECOND):
                for name, system in self._now():
                    self._print(name, system)

        thread = threading.Thread(target=follow, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _print(self, name: str, system: ParticleSystem, *, ended: bool = False) -> None:
        prefix = f"{excerpt(name)}: " if self._named else ""
        with self._printing:
            if not ended and all(running is not system for _, running in self._now()):
                return  # Its end was printed in the meantime.
            points = [*system.history]
            # The newest weighing is complete when the next begins, the particles were resampled, or the run has ended.
            if points and not ended and points[-1].ancestors is None:
                points.pop()
            for point in points[self._n_printed.get(id(system), 0) :]:
                self._console.print(f"{prefix}{point_text(point)}", soft_wrap=True, highlight=False)
            self._n_printed[id(system)] = len(points)
            if ended:
                text = f"{prefix}ended: {summary(snapshot(name, system))}"
                self._console.print(text, soft_wrap=True, highlight=False)


def one_run(shown: Snapshot, height: int) -> RenderableType:
    """Draw a run with its particles.

    Args:
        shown: the run.
        height: lines of the terminal; particles of little weight are left out where it is too small.
    """
    table = Table(box=None, pad_edge=False, expand=True)
    for name, width in _COLUMNS.items():
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=True, overflow="ellipsis",
                         min_width=width, ratio=None if width else 1)  # fmt: skip
    most = max(_LEAST_ROWS, height - _OTHER_LINES)
    kept = sorted(sorted(shown.particles, key=lambda row: -row.share)[:most], key=lambda row: row.slot)
    for row in kept:
        table.add_row(*_cells(row))
    left_out = len(shown.particles) - len(kept)
    return Group(
        summary(shown),
        table,
        *([f"and {left_out} particles of less weight"] if left_out else []),
        *(point_text(point) for point in shown.points[-_LAST_POINTS:]),
    )


def several_runs(runs: Sequence[Snapshot], height: int) -> RenderableType:
    """Draw runs in progress, a line each."""
    table = Table(box=None, pad_edge=False)
    for name in ("run", "step", "running", "ended", "failed", "value", "ESS", "resampled", "calls", "tokens"):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True, overflow="ellipsis")
    most = max(_LEAST_ROWS, height - _OTHER_LINES)
    for shown in runs[:most]:
        ess = f"{shown.points[-1].ess:.1f}" if shown.points else ""
        ended = shown.number("finished", "cut") + shown.n_retired
        counts = (shown.number("runs", "waits", "queued"), ended, shown.number("failed"))
        best = max((row.value for row in shown.particles if not math.isnan(row.value)), default=math.nan)
        table.add_row(excerpt(shown.name), f"{shown.step}", *map(str, counts), _number(best), ess,
                      f"{shown.n_resampled}", f"{shown.calls:,}", f"{shown.tokens:,}")  # fmt: skip
    return Group(table, f"and {len(runs) - most} more runs") if len(runs) > most else table


def summary(shown: Snapshot) -> str:
    """Describe a run in a line."""
    parts = [
        f"step {shown.step}",
        f"{len(shown.particles)} particles",
        *([f"{shown.n_retired} retired"] if shown.n_retired else []),
        f"resampled {shown.n_resampled} times",
        f"{shown.calls:,} calls, {shown.tokens:,} tokens",
        *([f"rate limit: next request in {shown.held_back_s:.0f} s"] if shown.held_back_s else []),
        *(f"{name} {spent:,.4g} of {limit:,.4g}" for name, (spent, limit) in shown.budget.items()),
    ]
    return " | ".join(parts)


def point_text(point: WeighingPoint) -> str:
    """Describe a weighing and what followed."""
    n = len(point.values)
    known = point.values[~np.isnan(point.values)]
    values = f"values {known.min():.3g} to {known.max():.3g}" if known.size else "no values"
    text = f"step {point.step}: {values}, ESS {point.ess:.1f}"
    if point.selected is not None:
        return f"{text}; particle {point.selected} acted, and all continue it"
    if point.ancestors is None:
        return text
    retired = f", {len(point.retired)} retired" if point.retired else ""
    return f"{text}; resampled: {len(np.unique(point.ancestors))} of {n} have offspring{retired}"


def _cells(row: ParticleRow) -> tuple[str, ...]:
    bar = "#" * round(_BAR * row.share)
    numbers = (_number(row.return_), _number(row.value))
    return str(row.slot), str(row.steps), row.state, *numbers, f"{row.share:.0%}", bar, excerpt(row.action)


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


@dataclass(frozen=True)
class ParticleRow:
    """A live slot."""

    slot: int
    steps: int
    state: str
    return_: float
    value: float
    """At the last weighing; NaN before the first."""
    share: float
    """Its share of the weight of all particles, retired ones included."""
    action: str
    """Its last action."""


@dataclass(frozen=True)
class Snapshot:
    """A population at one moment."""

    name: str
    particles: tuple[ParticleRow, ...]
    n_retired: int
    points: tuple[WeighingPoint, ...]
    """The weighings so far."""
    calls: int
    tokens: int
    """Of all roles."""
    budget: Mapping[str, tuple[float, float]]
    """What is spent of each limit."""
    held_back_s: float = 0.0
    """Seconds for which a rate limit holds all requests back."""

    @property
    def step(self) -> int:
        """The largest number of steps."""
        return max((particle.steps for particle in self.particles), default=0)

    @property
    def n_resampled(self) -> int:
        """Number of resamplings."""
        return sum(point.ancestors is not None for point in self.points)

    def number(self, *states: str) -> int:
        """Return the number of particles in these states."""
        return sum(particle.state in states for particle in self.particles)


def snapshot(name: str, system: ParticleSystem) -> Snapshot:
    """Read a population. The run may change it meanwhile, so the lists may differ in length by some particles."""
    used = [usage for usage in system.outlet.meter.read().values()]
    budget = system.settings.budget
    spent = {} if budget is None else budget.spent
    rows = zip([*system.particles], system.values.tolist(), _shares(system), strict=False)
    return Snapshot(
        name,
        tuple(_row(particle, value, share) for particle, value, share in rows),
        len(system.retired),
        tuple(system.history),
        sum(usage.calls for usage in used),
        sum(usage.tokens for usage in used),
        {} if budget is None else {name: (spent[name], limit) for name, limit in budget.limits.items()},
        system.runner.gate.opens_in_s,
    )


def _shares(system: ParticleSystem) -> list[float]:
    log_weights = system.log_weights
    if not np.isfinite(log_weights).any():
        return [0.0] * len(log_weights)
    return [float(share) for share in smc.normalised(log_weights)]


def _row(particle: Particle, value: float, share: float) -> ParticleRow:
    steps = () if particle.reader is None else particle.reader.trajectory.steps
    action = steps[-1].action if steps else ""
    return ParticleRow(particle.index, particle.steps, _state_of(particle), particle.return_, value, share, action)


def _state_of(particle: Particle) -> str:
    if particle.error is not None:
        return "failed"
    if particle.finished:
        return "cut" if particle.past.at_horizon else "finished"
    if particle.held:
        return "waits"
    return "queued" if particle.queued else "runs"
