"""The seam between the methods and a tracer such as OpenTelemetry, which is never imported here.

`integrations/telemetry` has the tracer and switches it on. Without it, all calls below go to objects that do
nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

from amc_agents.types import TimeStep

Kind = Literal["CHAIN", "EVALUATOR"]
"""OpenInference's name for a kind of work."""


class Place(Protocol):
    """The attributes of a particle that appear in its spans."""

    index: int
    ancestor: int | None

    @property
    def steps(self) -> int:
        """Number of steps so far."""


class WorkSpan(Protocol):
    """The span of a part of a method, such as a resampling or a decision."""

    def note(self, **attributes: Any) -> None:
        """Add attributes, without the prefix `amc.`."""

    def report(self, record: Mapping[str, Any]) -> None:
        """Add a record of plain values: its numbers, and its texts only if the tracer captures content."""


class AgentSpan(Protocol):
    """The span of a particle's agent from its start or restart to its stop."""

    @property
    def traceparent(self) -> str | None:
        """The span's context in W3C form, from which a later process can link to it; None: nothing is recorded."""

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """End the span; later calls do nothing."""


class RunSpan(Protocol):
    """The span of a run of `amc`."""

    @property
    def traceparent(self) -> str | None:
        """As for `AgentSpan`."""

    def agent(self, run_id: str, place: Place, after: AgentSpan) -> AgentSpan:
        """Begin a particle's span, and make it the parent of what runs in the current context.

        Args:
            run_id: identifies the population.
            place: the particle, whose steps are read as it goes on.
            after: the span that this one continues; `NO_SPAN`: the agent starts from its input.
        """

    def continues(self, traceparent: str) -> None:
        """Link to the run that this run resumes."""

    def work(self, name: str, kind: Kind = "CHAIN", **attributes: Any) -> AbstractContextManager[WorkSpan]:
        """Trace a block below the run; attributes are given without the prefix `amc.`."""

    def valued(self, critic: str, step: int, agents: Sequence[AgentSpan], values: Sequence[float]) -> None:
        """Record the critic's values of particles as evaluation results; NaN values are omitted."""

    def concluded(self, facts: Mapping[str, Any], winner: AgentSpan, notes: Sequence[str]) -> None:
        """Record the result of the run.

        Args:
            facts: plain attributes, without the prefix `amc.`.
            winner: the last span of the answer's particle.
            notes: texts, recorded only if the tracer captures content.
        """

    def end(self, error: BaseException | None = None) -> None:
        """End the span and all open spans of particles."""


class Tracer(Protocol):
    """Makes spans of runs, of parts of methods outside of runs, and of the steps of worlds."""

    def run(self, name: str, thread_id: str | None) -> RunSpan:
        """Begin the span of a run, below the caller's current span."""

    def work(self, name: str, kind: Kind = "CHAIN", **attributes: Any) -> AbstractContextManager[WorkSpan]:
        """Trace a block below the current span, with its requests to models."""

    async def world_step(self, step: Callable[[str], Awaitable[TimeStep]], action: str) -> TimeStep:
        """Trace a step of a world."""


_tracer: Tracer | None = None


def set_tracer(tracer: Tracer | None) -> None:
    """Trace all further runs of this process; None: none of them."""
    global _tracer
    _tracer = tracer


def begin_run(name: str, thread_id: str | None = None) -> RunSpan:
    """Begin the span of a run, as in `Tracer.run`."""
    return NO_SPAN if _tracer is None else _tracer.run(name, thread_id)


def traced_work(name: str, kind: Kind = "CHAIN", **attributes: Any) -> AbstractContextManager[WorkSpan]:
    """Trace a block below the current span, as in `Tracer.work`."""
    return NO_SPAN.work(name, kind) if _tracer is None else _tracer.work(name, kind, **attributes)


async def traced_step(step: Callable[[str], Awaitable[TimeStep]], action: str) -> TimeStep:
    """Make a step of a world, as in `Tracer.world_step`."""
    return await (step(action) if _tracer is None else _tracer.world_step(step, action))


class Untraced:
    """The span of anything while nothing is traced, or that another process has traced.

    Args:
        traceparent: of the span in the other process.
    """

    def __init__(self, traceparent: str | None = None) -> None:
        self._traceparent = traceparent

    @property
    def traceparent(self) -> str | None:
        """As for `AgentSpan`."""
        return self._traceparent

    def note(self, **_: Any) -> None:
        """Do nothing, as all methods below."""

    def report(self, record: Mapping[str, Any]) -> None: ...  # noqa: D102

    def agent(self, run_id: str, place: Place, after: AgentSpan) -> Untraced:  # noqa: D102
        return NO_SPAN

    def continues(self, traceparent: str) -> None: ...  # noqa: D102

    def work(self, name: str, kind: Kind = "CHAIN", **_: Any) -> AbstractContextManager[Untraced]:  # noqa: D102
        return nullcontext(self)

    def valued(self, critic: str, step: int, agents: Sequence[AgentSpan], values: Sequence[float]) -> None: ...  # noqa: D102

    def concluded(self, facts: Mapping[str, Any], winner: AgentSpan, notes: Sequence[str]) -> None: ...  # noqa: D102

    def end(self, *_: Any) -> None: ...  # noqa: D102


NO_SPAN = Untraced()
