"""The nodes of the outer graph: init, propagate, weigh, resample and finalize."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.errors import ParentCommand
from langgraph.runtime import get_runtime
from langgraph.types import Command
from typing_extensions import TypedDict, override

from amc_agents.concurrency.background import run_in_background
from amc_agents.population.conclusion import conclude
from amc_agents.population.open_run import OpenRun
from amc_agents.population.population import ParticleSystem
from amc_agents.population.start import WrappedAgent, overwriting, start
from amc_agents.population.streamed_run import StreamedRun
from amc_agents.runtime import calls

_log = logging.getLogger(__name__)


class RunState(TypedDict):
    """The private channel of a run: never checkpointed or streamed, and not in the agent's schemas."""

    amc_system: Annotated[ParticleSystem, UntrackedValue]


class Nodes:
    """The nodes, each written once as an async function.

    A node names its successor by a `Command`. A conditional edge would apply the node's writes to a copy of all
    channels.
    """

    def __init__(self, wrapped: WrappedAgent) -> None:
        self._wrapped = wrapped

    async def init(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        """Create the particles."""
        return {"amc_system": await start(self._wrapped, state, config, get_runtime())}

    async def propagate(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Run the particles to the next weighing point."""
        await state["amc_system"].propagate(calls.particle_config(config))
        return Command(goto="weigh")

    async def weigh(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Call the critic and update the weights."""
        system = state["amc_system"]
        await system.weigh()
        if system.concluded:
            return Command(goto="finalize")
        return Command(goto="resample" if system.due else "propagate")

    async def resample(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Resample the particles."""
        await state["amc_system"].resample()
        return Command(goto="propagate")

    async def finalize(self, state: RunState, config: RunnableConfig) -> dict[str, Any]:
        """Write the winner's state into this graph's channels, and repeat its hand-off if it ended by one.

        Channels are overwritten: the winner's values are reduced already.
        """
        system = state["amc_system"]
        await OpenRun.of(config).aclose()
        run, winner = conclude(system)
        if winner.store is not None:
            run = replace(run, notes=(*run.notes, *await winner.store.flush()))
        system.emit({"type": "amc.run", "run": StreamedRun.of(run)})
        agent = self._wrapped.agent
        output = {key: value for key, value in run.best_output.items() if key in agent.channels}
        await _stream_messages(output.get("messages"), config)
        if winner.hand_off is not None:
            raise ParentCommand(winner.hand_off)
        return {key: overwriting(agent, key, value) for key, value in output.items()}


class BothWays(Runnable[Any, Any]):
    """An async function as a node of sync and async graphs.

    LangGraph traces every node. Unlike a `RunnableLambda`, this runnable does not trace the call a second time.
    """

    def __init__(self, work: Callable[[Any, RunnableConfig], Awaitable[Any]], n_workers: int) -> None:
        self._work = work
        self._n_workers = n_workers

    @override
    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        return run_in_background(self.ainvoke(input, config), n_workers=self._n_workers)

    @override
    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        return await self._work(input, config or {})


def restarting(work: Any) -> Any:
    """Wrap a node so that it goes to `init` if the run's particles are lost.

    Particles are never checkpointed. A thread whose run failed or was interrupted can resume after `init`; its run then
    restarts from the agent's input, which is in the checkpoint.
    """

    @wraps(work)
    async def work_or_restart(state: RunState, config: RunnableConfig) -> Any:
        if "amc_system" in state:
            return await work(state, config)
        _log.warning("a thread's run broke off before %r and restarts: particles are not checkpointed", work.__name__)
        return Command(goto="init")

    return work_or_restart


async def _stream_messages(messages: Any, config: RunnableConfig) -> None:
    """Send the winner's messages to `stream_mode="messages"`, which reads the outputs of runnables."""
    callbacks = config.get("callbacks")
    has_listener = not isinstance(callbacks, BaseCallbackManager) or bool(callbacks.handlers)
    if isinstance(messages, list) and has_listener:
        answer: RunnableLambda[Any, Any] = RunnableLambda(lambda _: messages, name="finalize")
        await answer.ainvoke({}, config)
