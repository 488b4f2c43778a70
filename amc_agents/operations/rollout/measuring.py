"""Measure a call of a graph while its events are read: duration, requests, tokens, dollars, and the result of amc()."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from langgraph.errors import GraphBubbleUp

from amc_agents.context import change_context
from amc_agents.population.features.watchers import ignore_runs, listening
from amc_agents.prices import Rates, cost
from amc_agents.run import Run
from amc_agents.runtime.metering import PolicyMeter, count_requests, counting_requests, policy_meter
from amc_agents.usage import Meter, Usage, metering


class Measured:
    """The measurements of one call.

    Args:
        prices: dollars by model; they precede those of the library.
    """

    def __init__(self, prices: Mapping[str, Rates] | None = None) -> None:
        self._prices = prices
        self._meter = Meter()
        self._policy = PolicyMeter(self._meter, around=policy_meter())
        self.started = time.time()
        """Unix time."""
        self._since = time.perf_counter()
        self.seconds = 0.0
        """Duration until the end of the stream."""
        self.run: Run | None = None
        """The last run of `amc()` inside the call."""
        self.failed: str | None = None
        """Type and text of the error that ended the call."""
        self.last: Any = None
        """The last event that was read."""

    def stream(self, events: Iterator[Any]) -> Generator[Any, None, None]:
        """Yield the events of a stream, and measure until its end."""
        try:
            with self._timing():
                while True:
                    with self._counting():
                        event = next(events, self)
                    if event is self:
                        return
                    self.last = event
                    yield event
        finally:
            if isinstance(events, Generator):
                events.close()

    async def astream(self, events: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """Yield the events of a stream, and measure until its end."""
        try:
            with self._timing():
                while True:
                    with self._counting():
                        event = await anext(events, self)
                    if event is self:
                        return
                    self.last = event
                    yield event
        finally:
            if isinstance(events, AsyncGenerator):
                with suppress(RuntimeError):  # The event loop may be closing an abandoned stream already.
                    await events.aclose()

    def as_record(self) -> dict[str, Any]:
        """Return what a record keeps of the call."""
        run = self.run
        return {
            "seconds": self.seconds,
            "failed": self.failed,
            "value": None if run is None or run.best_index < 0 else float(run.population.values[run.best_index]),
            "n_particles": None if run is None else _size(run),
            **spending(self._meter.by_model() if run is None else run.usage_by_model, self._prices),
        }

    @contextmanager
    def _timing(self) -> Iterator[None]:
        try:
            yield
        except GraphBubbleUp:  # A hand-off or an interrupt of a surrounding graph is no failure.
            raise
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"[:300]
            raise
        finally:
            self.seconds = time.perf_counter() - self._since

    @contextmanager
    def _counting(self) -> Iterator[None]:
        # Around each event, and not around the stream: the context between two events is the caller's.
        with ExitStack() as stack:
            stack.enter_context(counting_requests(self._policy))
            stack.enter_context(metering(self._meter))
            stack.enter_context(listening(self._keep))
            yield

    def _keep(self, run: Run) -> None:
        self.run = run


def _size(run: Run) -> int:
    """Return N; of an adaptive run, the number of particles that it had."""
    size = run.config["n_particles"]
    return size if isinstance(size, int) else len(run.population.trajectories)


def spending(
    usage: Mapping[str, Mapping[str, Usage]], prices: Mapping[str, Rates] | None
) -> dict[str, float | int | None]:
    """Return {"requests", "tokens", "dollars"} of a usage by role and model; dollars are None if they are not known."""
    used = [each for models in usage.values() for each in models.values()]
    dollars = cost(usage, prices)
    return {
        "requests": sum(each.calls for each in used),
        "tokens": sum(each.tokens for each in used),
        "dollars": None if dollars.is_lower_bound else dollars.total,
    }


def forget_measuring() -> None:
    """Leave the measurements that surround this context."""
    count_requests(None)
    change_context(meter=None)
    ignore_runs()
