"""The compiled graph that `amc` returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, StateSnapshot, StateUpdate
from typing_extensions import override

from amc_agents.concurrency.background import close_connections_at_end, read_in_thread, run_in_background
from amc_agents.errors import AgentContractError, AnswerNeeded, ConfigurationError
from amc_agents.population.nodes import BothWays, Nodes, restarting
from amc_agents.population.open_run import OpenRun, StreamedRun
from amc_agents.population.settings import WrappedAgent
from amc_agents.run import Run
from amc_agents.runtime import calls
from amc_agents.runtime.effects import attempts_of, effect

if TYPE_CHECKING:
    from amc_agents.population.estimate import Estimate
    from amc_agents.population.features.durable.points import DurablePoint


@effect("read")
class AmcGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """A compiled graph with the wrapped agent's input and output schemas, and with `run` and `arun`.

    All other calls (`invoke`, `batch`, `astream_events`, a node of another graph) go through `stream` or `astream`.
    The worlds of a run are closed when its stream ends, is closed early, or fails; `run` and `arun` leave the winner's
    world to their caller. A context that the agent would not read is refused.
    """

    def __init__(self, *, wrapped: WrappedAgent, **options: Any) -> None:
        super().__init__(**options)
        self.wrapped = wrapped
        """The checked arguments of `amc`."""

    @override
    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        yield from self._stream(self._open_run(), input, config, **kwargs)

    @override
    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        async with aclosing(self._astream(self._open_run(asynchronous=True), input, config, **kwargs)) as events:
            async for event in events:
                yield event

    @override
    def __reduce__(self) -> Any:
        raise TypeError(
            "a graph of amc cannot be pickled, because it holds locks and clients (LangGraph's own graphs can be, but "
            "do not run afterwards): call the function that builds it in the worker, as a Ray actor's __init__ or the "
            "initializer of a process pool"
        )

    def run(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Run:
        """Like `invoke`, but return the `Run`: best trajectory, population, weights, log Z, usage and best world.

        The winner's world stays open as `run.best_world` until the run is closed: `with graph.run(input) as run:`.

        Raises:
            AnswerNeeded: the run waits for a human's answer: `run(Command(resume=answer), config)` goes on.
        """
        owner = self._open_run(wants_events=False, keeps_world=True)
        events = self._stream(owner, input, config, stream_mode="custom", **kwargs)
        try:
            run = _last_run([event for event in events if _is_run(event)], owner)
        except BaseException:
            if owner.kept is not None:
                owner.kept.close()
            raise
        return replace(run, world=owner.kept)

    async def arun(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Run:
        """Like `ainvoke`, but return the `Run`, as `run` does: `async with await graph.arun(input) as run:`."""
        owner = self._open_run(wants_events=False, asynchronous=True, keeps_world=True)
        events = self._astream(owner, input, config, stream_mode="custom", **kwargs)
        try:
            run = _last_run([event async for event in events if _is_run(event)], owner)
        except BaseException:
            if owner.kept is not None:
                await owner.kept.aclose()
            raise
        return replace(run, world=owner.kept)

    @override
    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        return _with_next(super().get_state(config, subgraphs=subgraphs))

    @override
    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        return _with_next(await super().aget_state(config, subgraphs=subgraphs))

    @override
    def bulk_update_state(self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]) -> RunnableConfig:
        from amc_agents.population.features.durable.admission import check_at_rest

        check_at_rest(self.get_state(config), supersteps)
        return super().bulk_update_state(config, supersteps)

    @override
    async def abulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        from amc_agents.population.features.durable.admission import check_at_rest

        check_at_rest(await self.aget_state(config), supersteps)
        return await super().abulk_update_state(config, supersteps)

    def points(self, config: RunnableConfig) -> list[DurablePoint]:
        """Return the durable points of a thread's last run, newest first.

        `invoke(None, point.config)` replays the run from a point, with another critic or seed if the call names it
        (`configurable` keys "critic" and "amc_seed").

        Raises:
            ConfigurationError: the graph has no checkpointer.
        """
        from amc_agents.population.features.durable.points import list_points

        return list_points(self._saver(), merge_configs(self.config, config))

    async def apoints(self, config: RunnableConfig) -> list[DurablePoint]:
        """Like `points`."""
        from amc_agents.population.features.durable.points import alist_points

        return await alist_points(self._saver(), merge_configs(self.config, config))

    def _saver(self) -> BaseCheckpointSaver[Any]:
        if not isinstance(self.checkpointer, BaseCheckpointSaver):
            raise ConfigurationError("the graph has no durable points: give amc() a checkpointer=")
        return self.checkpointer

    def _open_run(self, **options: bool) -> OpenRun:
        return OpenRun(checkpointed=self.checkpointer is not False, **options)

    def estimate(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Estimate:
        """Estimate the usage of a call from a plain run: one particle, in a world of its own, weighed by the critic.

        The run is real: its model and critic are called, and its tools run once. N times its usage is the estimate; the
        paths of particles differ in length, and a run that retires finished particles refills their slots. Of a race,
        it is an upper bound.
        """
        from amc_agents.population.estimate import Estimate

        race = self.wrapped.settings.race
        plain = None if race is None else replace(race, finish=1, stop=None)
        settings = replace(self.wrapped.settings, n_particles=1, quorum=None, stop_at=None, race=plain)
        with self.variant(replace(self.wrapped, settings=settings)).run(input, config, **kwargs) as run:
            return Estimate(self.wrapped.settings.largest_size, run.usage_by_model, is_race=race is not None)

    def variant(self, wrapped: WrappedAgent, *, ends_at_door: bool = False) -> AmcGraph:
        """Return a graph of the same form, without a checkpointer, that runs another agent or has other settings.

        Args:
            wrapped: the checked arguments, changed.
            ends_at_door: end where no particle can go on without a commit call or an answer: nothing is committed.
        """
        nodes, n_workers = Nodes(wrapped, ends_at_door=ends_at_door), wrapped.settings.largest_size
        changed = {"init": BothWays(nodes.init, n_workers), "commit": BothWays(restarting(nodes.commit), n_workers)}
        bound = {name: self.nodes[name].copy({"bound": node}) for name, node in changed.items()}
        return self.copy({"nodes": {**self.nodes, **bound}, "checkpointer": None, "wrapped": wrapped})

    def forget(self, config: RunnableConfig) -> None:
        """Delete the durable points of a thread, and the journal of its last run's commit calls.

        The thread's checkpoints stay (`checkpointer.delete_thread`). If the run has not ended, a new input starts anew
        although the run may have made commit calls.

        Raises:
            ConfigurationError: the graph has no checkpointer.
            ThreadHeld: a call runs the thread.
        """
        from amc_agents.population.features.durable.admission import forget

        run_in_background(forget(self._saver(), merge_configs(self.config, config), asynchronous=False), n_workers=1)

    async def aforget(self, config: RunnableConfig) -> None:
        """Like `forget`."""
        from amc_agents.population.features.durable.admission import forget

        await forget(self._saver(), merge_configs(self.config, config), asynchronous=True)

    def _is_checkpointed(self, config: RunnableConfig | None) -> bool:
        """Whether the graph, or the one around it, has a checkpointer."""
        return self.checkpointer is not False and (
            self.checkpointer is not None or "__pregel_checkpointer" in self._merged(config).get("configurable", {})
        )

    def _merged(self, config: RunnableConfig | None) -> RunnableConfig:
        return ensure_config(merge_configs(self.config, config))

    async def _admitted(
        self, owner: OpenRun, input: Any, config: RunnableConfig | None, options: Mapping[str, Any]
    ) -> Any:
        """Take the lease of the thread, and return the input with which the call goes on."""
        from amc_agents.population.features.durable.admission import NO_CHECKPOINTS, admit

        merged, effects = self._merged(config), self.wrapped.effects
        durability = options.get("durability") or merged.get("configurable", {}).get("__pregel_durability")
        return await admit(
            self,
            owner,
            input,
            merged,
            commits=any(map(attempts_of, effects.tools.values())) or bool(effects.commit_nodes),
            exits=durability == NO_CHECKPOINTS or options.get("checkpoint_during") is False,
        )

    def _stream(self, owner: OpenRun, input: Any, config: RunnableConfig | None, **kwargs: Any) -> Iterator[Any]:
        calls.check_context(self.builder.context_schema, kwargs.get("context"))
        with owner.traced(self.name, config):
            try:
                if self._is_checkpointed(config) or isinstance(input, Command):
                    input = run_in_background(self._admitted(owner, input, config, kwargs), n_workers=1)
                events = cast(Generator[Any, None, None], super().stream(input, owner.within(config), **kwargs))
                yield from read_in_thread(events) if _streams_while_nodes_run(kwargs) else events
                owner.finish()
            finally:
                owner.close()

    async def _astream(
        self, owner: OpenRun, input: Any, config: RunnableConfig | None, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        calls.check_context(self.builder.context_schema, kwargs.get("context"))
        await close_connections_at_end()
        with owner.traced(self.name, config):
            try:
                if self._is_checkpointed(config) or isinstance(input, Command):
                    input = await self._admitted(owner, input, config, kwargs)
                events = cast(AsyncGenerator[Any, None], super().astream(input, owner.within(config), **kwargs))
                async with aclosing(events):
                    async for event in events:
                        yield event
                await owner.afinish()
            finally:
                await owner.aclose()


def _streams_while_nodes_run(options: Mapping[str, Any]) -> bool:
    modes = options.get("stream_mode") or ()
    return bool(options.get("subgraphs")) or not {"custom", "messages"}.isdisjoint(
        [modes] if isinstance(modes, str) else modes
    )


def _is_run(event: Any) -> bool:
    return isinstance(event, dict) and event.get("type") == "amc.run"


def _with_next(state: StateSnapshot) -> StateSnapshot:
    """Name the nodes of a thread that broke off: LangGraph leaves out those whose writes are stored."""
    return state if state.next else state._replace(next=tuple(dict.fromkeys(task.name for task in state.tasks)))


def _last_run(events: list[Any], owner: OpenRun) -> Run:
    if not events and owner.questions:
        raise AnswerNeeded(owner.questions)
    if not events:
        raise AgentContractError(
            "the graph ended without a run: it was interrupted before its end (call it again to go on), or the run had "
            "already ended when its process was killed (get_state has the answer)"
        )
    streamed: StreamedRun = events[-1]["run"]
    return streamed.received()
