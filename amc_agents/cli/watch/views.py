"""The two views of `--watch`: in place on a terminal, and a line for each weighing elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live

from amc_agents.cli.watch.drawing import one_run, point_text, several_runs, summary
from amc_agents.cli.watch.snapshot import snapshot
from amc_agents.population.features.watchers import watching
from amc_agents.population.system import ParticleSystem
from amc_agents.quoting import excerpt

_PER_SECOND = 4


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
