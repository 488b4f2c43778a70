"""Serve a randomised share of calls by a better agent, and stop where it is worse."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import override

from amc_agents.errors import AgentContractError, ConfigurationError
from amc_agents.logs import log, room_logger
from amc_agents.operations.rollout.call_records import Agent, Measured, Records, Writer, fields_of, updated, with_run_id
from amc_agents.operations.rollout.canary_comparison import Design
from amc_agents.operations.rollout.canary_report import KIND, CanaryReport, design_of, read_report
from amc_agents.prices import Rates
from amc_agents.quoting import quoted

KeyFunction = Callable[[Any, RunnableConfig], str | None]
"""Returns the key of a call from its input and config; None: the call has no key."""

_log = room_logger(__name__)


def canary(
    plain: Agent,
    better: Agent,
    share: float = 0.1,
    *,
    folder: str | Path,
    key: str | KeyFunction = "thread_id",
    outcomes: tuple[float, float] = (0.0, 1.0),
    window: float = 86_400.0,
    floor: float | None = None,
    watch: int = 200,
    salt: str | None = None,
    prices: Mapping[str, Rates] | None = None,
) -> CanaryGraph:
    """Serve a randomised share of the keys by `better`, and all other keys by `plain`.

    The returned graph is called like `plain`. Outcomes join later (`graph.outcome`, or `amc canary report FOLDER
    --outcomes outcomes.csv`), and `graph.report()` compares the arms as often as you like. When `better` is worse, or
    its newest outcomes fall below the bound, `plain` answers every call. See docs/rollout.md.

    Args:
        plain: the agent in production.
        better: the agent to compare: an `amc()` graph, or any compiled graph with the same input and output.
        share: probability that a key is served by `better`, above 0. With 1 there is no comparison, only the watch.
        folder: of the records, on a local disk; processes of one machine share it. A new experiment needs a new folder.
        key: what is randomised: a field of `configurable`, or a function of input and config. A key is always served by
            the same agent; a call without a key is randomised on its own.
        outcomes: smallest and largest possible outcome.
        window: seconds after a key's first call during which its calls count for the comparison.
        floor: smallest acceptable mean outcome of the newest calls of `better`. None: the lower end of the confidence
            sequence of `plain`.
        watch: number of newest outcomes for calibration, over-optimisation and `floor`.
        salt: of the randomisation; machines with the same salt assign a key alike. None: the folder's own, drawn at
            random.
        prices: dollars by model, as for `amc_agents.prices.cost`.

    Raises:
        ConfigurationError: a setting is invalid, or differs from the folder's.
        CheckpointError: the folder cannot be used.
    """
    for name, agent in (("plain", plain), ("better", better)):
        if not isinstance(agent, CompiledStateGraph):
            raise AgentContractError(f"canary() takes two compiled graphs, got {type(agent).__name__} as {name}")
    if not 0.0 < share <= 1.0:
        raise ConfigurationError(f"share must lie above 0 and at most at 1, got {quoted(share)}")
    if not outcomes[0] < outcomes[1] or window < 0 or watch < 1:
        raise ConfigurationError(
            f"expected outcomes=(low, high) with low < high, window >= 0 and watch >= 1, got {outcomes}, {window}, "
            f"{watch}"
        )
    records = _records(folder, Design((float(outcomes[0]), float(outcomes[1])), float(window)))
    records.set_fact("settings", {"share": share, "floor": floor, "watch": watch})
    rollout = Canary(records, share, key, _salt(records, salt), prices)
    return CanaryGraph(rollout=rollout, plain=plain, better=better, **fields_of(plain))


def _records(folder: str | Path, design: Design) -> Records:
    records = Records(folder, KIND)
    records.fact_or("design", asdict(design))
    if design_of(records) != design:
        raise ConfigurationError(
            f"{folder} belongs to a canary with {design_of(records)}, got {design}: the intervals depend on it. Keep "
            "it, or start again in a new folder"
        )
    return records


def _salt(records: Records, given: str | None) -> str:
    """Return the salt of a folder, which never changes: the same key must always have the same arm."""
    salt = str(records.fact_or("salt", given or uuid.uuid4().hex))
    if given is not None and given != salt:
        raise ConfigurationError(
            f"{records.folder} belongs to a canary with another salt: keep that one, or start again in a new folder"
        )
    return salt


class Assignment(NamedTuple):
    """Who serves a call."""

    run_id: uuid.UUID
    key: str
    sticky: bool
    """Whether the call had a key of its own."""
    arm: str
    """The arm of the key: "plain" or "better"."""
    served: str
    """The agent that serves the call: "plain" also where the canary has stopped."""
    thread: str


@dataclass
class Canary:
    """The state of a canary in this process."""

    records: Records
    share: float
    key: str | KeyFunction
    salt: str
    prices: Mapping[str, Rates] | None = None

    def __post_init__(self) -> None:
        """Read whether the canary has stopped."""
        self.writer = Writer()
        self._stopped = self.records.fact("stopped") is not None
        self._n_outcomes = self._n_evaluated = len(self.records.outcomes())

    def assign(self, input: Any, config: RunnableConfig | None) -> Assignment:
        """Choose the agent of a call."""
        configurable = (config or {}).get("configurable", {})
        run_id = uuid.UUID(str((config or {}).get("run_id") or uuid.uuid4()))
        named = self.key(input, config or {}) if callable(self.key) else configurable.get(self.key)
        key = str(run_id) if named is None else str(named)
        arm = "better" if _uniform(self.salt, key) < self.share else "plain"
        served = "plain" if self._stopped else arm
        thread = configurable.get("thread_id")
        return Assignment(run_id, key, named is not None, arm, served, "" if thread is None else str(thread))

    def record(self, call: Assignment, measured: Measured) -> None:
        """Record a call that has ended."""
        body = {**call._asdict(), "share": self.share, **measured.as_record()}
        del body["run_id"]
        self.writer.submit(lambda: self._write(str(call.run_id), measured.started, body))

    def outcome(self, name: str, value: float) -> None:
        """Join an outcome, and evaluate the canary where enough outcomes are new."""
        self.writer.submit(lambda: self._join(name, value))

    def report(self) -> CanaryReport:
        """Evaluate the canary now."""
        self.writer.flush()
        report = read_report(self.records)
        self._notice(report.stopped)
        return replace(report, dropped=self.writer.dropped)

    def _write(self, run_id: str, started: float, body: Mapping[str, Any]) -> None:
        self.records.add_call(run_id, started, body)
        if not self._stopped and (stopped := self.records.fact("stopped")) is not None:
            self._notice(stopped["why"])  # Another process has stopped the canary.

    def _join(self, name: str, value: float) -> None:
        self.records.add_outcomes({name: value})
        self._n_outcomes += 1
        # An evaluation reads all records: their number grows by a hundredth between two of them.
        if self._n_outcomes > 1.01 * self._n_evaluated and not self._stopped:
            self._n_evaluated = self._n_outcomes
            self._notice(read_report(self.records).stopped)

    def _notice(self, why: str | None) -> None:
        if why is not None and not self._stopped:
            self._stopped = True
            log(
                _log,
                logging.WARNING,
                "canary.stopped",
                "the canary has stopped, and the plain agent answers every call: %(why)s",
                why=why,
            )


class CanaryGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """The graph that `canary` returns: the plain agent's graph, with `outcome`, `report` and `close`."""

    def __init__(self, *, rollout: Canary, plain: Agent, better: Agent, **options: Any) -> None:
        super().__init__(**options)
        self.rollout, self.plain, self.better = rollout, plain, better

    @override
    def copy(self, update: dict[str, Any] | None = None) -> Self:
        """Copy the graph; a checkpointer, store, cache or config applies to both agents."""
        agents = {"plain": updated(self.plain, update), "better": updated(self.better, update)}
        return super().copy({**(update or {}), **agents})

    @override
    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        call, measured = self.rollout.assign(input, config), Measured(self.rollout.prices)
        agent = self.better if call.served == "better" else self.plain
        try:
            yield from measured.stream(agent.stream(input, with_run_id(config, call.run_id), **kwargs))
        finally:
            self.rollout.record(call, measured)

    @override
    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        call, measured = self.rollout.assign(input, config), Measured(self.rollout.prices)
        agent = self.better if call.served == "better" else self.plain
        stream = agent.astream(input, with_run_id(config, call.run_id), **kwargs)
        try:
            async with aclosing(measured.astream(stream)) as events:
                async for event in events:
                    yield event
        finally:
            self.rollout.record(call, measured)

    def outcome(self, id: str, value: float) -> None:
        """Join the outcome of a run or a thread; a later outcome replaces it until its key is counted.

        Args:
            id: the `run_id` of the call's config, or the thread's id.
            value: the outcome, within the range of `canary(outcomes=)`.

        Raises:
            ConfigurationError: the outcome is outside of the range.
        """
        self.rollout.records.check_outcomes({id: value}, design_of(self.rollout.records).outcomes)
        self.rollout.outcome(id, value)

    def report(self) -> CanaryReport:
        """Compare the arms now. Looking often is safe: the interval holds at all times at once."""
        return self.rollout.report()

    def close(self) -> None:
        """Wait until all records are written."""
        self.rollout.writer.flush()


def _uniform(salt: str, key: str) -> float:
    """Return a number in [0, 1) that depends only on the salt and the key."""
    return int.from_bytes(hashlib.sha256(f"{salt}\0{key}".encode()).digest()[:7], "big") / 2.0**56
