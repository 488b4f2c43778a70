"""Own the worlds and agents of a run, and close them however the run ends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp

from amc_agents.concurrency.background import on_background_loop, run_in_background, start_in_background
from amc_agents.concurrency.gather import to_its_end
from amc_agents.errors import AgentContractError
from amc_agents.population.conclusion import closing_notes, log_end
from amc_agents.population.feature import Features
from amc_agents.population.loop import conclude
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem
from amc_agents.run import Run
from amc_agents.runtime.tracing import NO_SPAN, RunSpan, begin_run
from amc_agents.runtime.world import KeptWorld, Worlds
from amc_agents.types import fields_of

_KEY = "__amc_open_run"


class OpenRun:
    """The worlds and paused agents of a run. The node `init` fills it, and the reader of the graph's stream closes it.

    Args:
        wants_events: whether the reader of the custom stream uses the events that agents write to it, which cost a
            tenth of a step.
        asynchronous: whether the graph is called by its async methods.
        checkpointed: whether the graph may have a checkpointer.
        keeps_world: whether the caller gets the winner's world, and closes it.
    """

    def __init__(
        self,
        *,
        wants_events: bool = True,
        asynchronous: bool = False,
        checkpointed: bool = True,
        keeps_world: bool = False,
    ) -> None:
        self.wants_events = wants_events
        self.asynchronous = asynchronous
        self.checkpointed = checkpointed
        self.replays = False
        """Whether the call names the checkpoint from which it goes on."""
        self.checkpoint: Mapping[str, Any] | None = None
        """The private channels of the checkpoint from which the call resumes, for the node `restore`."""
        self.lease: Any = None
        """The call's right to run its thread, until its end."""
        self.unread = False
        """Whether the call's input was set aside, because the thread's last run comes first."""
        self.questions: Mapping[str, Any] = {}
        """The questions to a human at which the call ends."""
        self.edit: dict[str, Any] | None = None
        """`update` and `goto` of the call's command, for the agent that asked."""
        self.finished = False
        """Whether the run has its result."""
        self.after_result: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Work for the end of the call, when the result is checkpointed."""
        self.keeps_world = keeps_world
        self.kept: KeptWorld | None = None
        """The winner's world, from the end of the run."""
        self.max_concurrency: int | None = None
        """Limit of the call for concurrent work; None: no limit."""
        self.worlds = Worlds()
        self.system: ParticleSystem | None = None
        self.features: Features | None = None
        """What the run does beside Algorithm 1, until the end of the call."""
        self.span: RunSpan = NO_SPAN
        """The span of the call."""

    @classmethod
    def of(cls, config: RunnableConfig) -> OpenRun:
        """Return the owner of the run to which a node belongs."""
        owner = config.get("configurable", {}).get(_KEY)
        if not isinstance(owner, cls):
            raise AgentContractError(
                "this graph was compiled again from the builder of an amc() graph, so nothing would close its worlds: "
                "run the graph that amc() returned; graph.copy(update={...}) gives it another checkpointer or store"
            )
        return owner

    def within(self, config: RunnableConfig | None) -> RunnableConfig:
        """Return the config of a call with this owner, for the nodes of the graph.

        `max_concurrency` is for the particles: a sync graph with a single thread would wait for its own stream.
        """
        config = RunnableConfig(**(config or {}))
        self.max_concurrency = config.pop("max_concurrency", None)
        self.replays = bool(config.get("configurable", {}).get("checkpoint_id"))
        return {**config, "configurable": {**config.get("configurable", {}), _KEY: self}}

    @contextmanager
    def traced(self, name: str, config: RunnableConfig | None) -> Iterator[None]:
        """Trace a call of the graph, from the start of its stream to its end."""
        thread_id = (config or {}).get("configurable", {}).get("thread_id")
        self.span = begin_run(name, None if thread_id is None else str(thread_id))
        failure: BaseException | None = None
        try:
            yield
        except (GeneratorExit, GraphBubbleUp):  # A reader who stops, and a hand-off, are no failures.
            raise
        except BaseException as error:
            failure = error
            raise
        finally:
            self.span.end(failure)

    def close(self) -> None:
        """Stop the agents and close the worlds; do nothing after a finished run."""
        if not self._is_open:
            return
        if on_background_loop():
            # The garbage collector closes an abandoned stream on this loop, which must not wait for itself.
            start_in_background(self._close())
        else:
            run_in_background(self._close(), n_workers=1)

    async def aclose(self) -> None:
        """Like `close`, and finish closing even if the caller is cancelled."""
        if not self._is_open:
            return
        await to_its_end(self._close())

    def finish(self) -> None:
        """Do the work that was left for the end of the call, if the run has its result."""
        if self.finished and (self.after_result is not None or self.lease is not None):
            run_in_background(self.afinish(), n_workers=1)

    async def afinish(self) -> None:
        """Like `finish`."""
        if self.finished and self.after_result is not None:
            await self.after_result()
        if self.finished and self.lease is not None:
            await self.lease.release(finished=True)
            self.lease = None

    async def conclude(self, system: ParticleSystem) -> tuple[Run, Particle]:
        """Conclude the run, and close all worlds but the winner's if the caller gets it; return run and winner."""
        return await to_its_end(self._conclude(system))

    async def _conclude(self, system: ParticleSystem) -> tuple[Run, Particle]:
        run, winner = await conclude(system)
        if self.keeps_world and winner.world is not None:
            self.kept = await self.worlds.keep(winner.world)
        else:
            await self.worlds.close_all()
        self.system = None
        run = replace(run, notes=(*run.notes, *closing_notes(self.worlds)))
        for on_result in system.features.on_result:
            on_result(run, winner)
        log_end(run, system.outlet.run_id)
        return run, winner

    @property
    def _is_open(self) -> bool:
        closes = self.features is not None and bool(self.features.on_close)
        return self.system is not None or closes or self.lease is not None or self.worlds.any_open

    async def _close(self) -> None:
        features, self.features = self.features, None
        for on_close in () if features is None else features.on_close:
            on_close()
        if self.system is not None:
            await self.system.runner.stop_all(self.system.everyone)
        await self.worlds.close_all()
        self.system = None
        if self.lease is not None:
            await self.lease.release(finished=False)
            self.lease = None


class StreamedRun(Run):
    """A `Run` that LangGraph's server can always encode.

    The server's encoder (orjson) walks through the fields of a dataclass itself, and a single value that JSON cannot
    represent (in a task's payload or an agent's state) would end the served run. For a subclass of a dataclass, the
    server calls `_asdict`.
    """

    __slots__ = ()

    @classmethod
    def of(cls, run: Run) -> StreamedRun:
        """Convert a run before it is streamed."""
        return cls(**fields_of(run))

    def _asdict(self) -> dict[str, Any]:
        return self.as_plain()

    def received(self) -> Run:
        """Convert back to a plain `Run`."""
        return Run(**fields_of(self))
