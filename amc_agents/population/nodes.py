"""The nodes of the outer graph: the verbs of the loop, and what LangGraph adds to them.

| node | verb |
|---|---|
| init, restore | `start`, from the agent's input or from a durable point |
| propagate, weigh, resample | the verbs of these names |
| commit, ask | one particle acts in reality; a human is asked |
| finalize | `conclude`, and write the answer into the graph's channels |
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Annotated, Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.runtime import get_runtime
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict, override

from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import AgentContractError
from amc_agents.logs import log, room_logger
from amc_agents.population.loop import propagate, resample, rest, weigh
from amc_agents.population.open_run import OpenRun, StreamedRun
from amc_agents.population.particle import Particle
from amc_agents.population.settings import WrappedAgent
from amc_agents.population.start import overwriting, start
from amc_agents.population.system import ParticleSystem
from amc_agents.quoting import quoted
from amc_agents.runtime import calls

_log = room_logger(__name__)


class RunState(TypedDict):
    """The private channels of a run: never streamed, and not in the agent's schemas."""

    amc_system: Annotated[ParticleSystem, UntrackedValue]
    """Never checkpointed."""
    amc_point: dict[str, Any] | None
    """The durable point of the checkpoint; None: there is none yet."""
    amc_questions: dict[str, Any] | None
    """Questions of the selected particle to a human, by id."""
    amc_answers: dict[str, Any] | None
    """The answers to them."""
    amc_edit: dict[str, Any] | None
    """What else the human's command says: `update` and `goto` for the agent."""
    amc_given: dict[str, Any] | None
    """The run's input, while a question shows what the particle that asks has computed."""
    amc_world: dict[str, Any]
    """The saved world of a conversation, as of `ConversationWorld`."""


NODES = {"conclude": "finalize"}
"""Verbs whose node has another name."""


class Nodes:
    """The nodes, each written once as an async function.

    A node names its successor by a `Command`. A conditional edge would apply the node's writes to a copy of all
    channels.

    Args:
        wrapped: the agent and its settings.
        ends_at_door: end the run where no particle can go on without a commit call or an answer.
    """

    def __init__(self, wrapped: WrappedAgent, *, ends_at_door: bool = False) -> None:
        self.wrapped, self._ends_at_door = wrapped, ends_at_door

    async def init(self, state: Any, config: RunnableConfig) -> Command[str]:
        """Create the particles; or restore those of a run whose commit calls would be repeated."""
        if not _may_be_durable(config):
            return _first(await start(self.wrapped, state, config, get_runtime()))
        from amc_agents.population.features.durable.lifecycle import new_population, read_unfinished

        recorded = await read_unfinished(config)
        system = await start(self.wrapped, state, config, get_runtime(), recorded)
        if recorded is not None:
            return _first(system, recorded.then)
        await new_population(system, config)
        return _first(system, amc_point=None, amc_given=None)

    async def restore(self, state: Any, config: RunnableConfig) -> Command[str]:
        """Restore the particles from the last durable point, after a crash or to replay from there."""
        from amc_agents.population.features.durable.lifecycle import read_population

        owner = OpenRun.of(config)
        if owner.checkpoint is None:
            # The process was killed before this node: a node that reads the private channels comes first.
            return Command(goto="propagate")
        recorded = await read_population(owner.checkpoint.get("amc_point"), config)
        given = owner.checkpoint.get("amc_given")
        if recorded is None:
            return Command(goto="init", update=self._overwriting(given or {}))
        return _first(await start(self.wrapped, given or state, config, get_runtime(), recorded), recorded.then)

    async def propagate(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Run the particles to the next weighing point."""
        system = state["amc_system"]
        return _then(system, await propagate(system, calls.particle_config(config)))

    async def weigh(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Call the critic and update the weights."""
        system = state["amc_system"]
        return _then(system, await weigh(system))

    async def resample(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Resample the particles."""
        system = state["amc_system"]
        return _then(system, await resample(system))

    async def commit(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Select a particle among those that wait, let it act alone, and continue it in all slots."""
        system = state["amc_system"]
        commits = system.features.require("commits")
        if self._ends_at_door:
            commits.end_at_door(system)
            return _then(system, "conclude")
        answers, edit = state.get("amc_answers"), state.get("amc_edit")
        then, resumes_at, questions = await commits.pass_door(system, calls.particle_config(config), answers, edit)
        if then != "conclude":  # The point of a run that ends here was made before.
            await rest(system, resumes_at)
        if questions and "amc_point" not in system.outlet.channels:
            raise AgentContractError(_CANNOT_ASK.format(quoted(next(iter(questions.values())))))
        shown = await self._shown(state, commits.acting(system), config) if questions else {}
        return _then(system, then, **shown, amc_questions=questions, amc_answers=None, amc_edit=None)

    async def _shown(self, state: RunState, particle: Particle, config: RunnableConfig) -> dict[str, Any]:
        """Return the update that shows beside a question what its particle has computed, and keeps the run's input."""
        await _stream(state["amc_system"], particle, config)
        computed = particle.state
        given = state.get("amc_given") or config["configurable"]["__pregel_read"](list(computed))
        return {**self._overwriting(computed), "amc_given": given}

    def _overwriting(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the update that sets the agent's channels: the values of a particle are reduced already."""
        agent = self.wrapped.agent
        return {key: overwriting(agent, key, value) for key, value in values.items() if key in agent.channels}

    async def ask(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Ask a human by this graph's own interrupt. A resumed call starts here, without the particles."""
        owner = OpenRun.of(config)
        owner.questions = questions = state["amc_questions"] or {}
        if owner.unread:
            questions = {name: {**question, "unread": _UNREAD} for name, question in questions.items()}
        answers = {name: interrupt(question) for name, question in questions.items()}
        owner.questions = {}
        update = {"amc_answers": answers, "amc_questions": None, "amc_edit": owner.edit}
        return Command(goto="commit", update=update)

    async def finalize(self, state: RunState, config: RunnableConfig) -> dict[str, Any]:
        """Write the winner's state into this graph's channels, and repeat its hand-off if it ended by one."""
        system, owner = state["amc_system"], OpenRun.of(config)
        run, winner = await owner.conclude(system)
        system.emit("amc.run", run=StreamedRun.of(run))
        await _stream(system, winner, config)
        owner.finished = True
        if winner.past.hand_off is not None:
            await owner.afinish()
            raise ParentCommand(winner.past.hand_off)
        return {**self._overwriting(run.best_output), "amc_given": None, **system.outlet.channels}


def _may_be_durable(config: RunnableConfig) -> bool:
    """Whether the graph has a checkpointer, in which the run may have left durable points."""
    return OpenRun.of(config).checkpointed and config["configurable"].get("__pregel_checkpointer") is not None


def _first(system: ParticleSystem, then: str = "propagate", **channels: Any) -> Command[str]:
    """Go to the first verb of a population in this process."""
    return _then(system, then, amc_system=system, **channels)


def _then(system: ParticleSystem, then: str, **channels: Any) -> Command[str]:
    """Go to the node of a verb, and write what features have left for the channels."""
    left, system.outlet.channels = system.outlet.channels, {}
    return Command(goto=NODES.get(then, then), update={**left, **channels} or None)


_CANNOT_ASK = (
    "the agent asked for human input ({}), but the run cannot wait for the answer: give amc() a checkpointer, "
    "and call it with a thread_id, worlds that can be saved (docs/amc.md) and another durability than 'exit', or ask "
    "in the graph around amc()"
)
_UNREAD = "The input of this call was not read: send it again when this run has ended."


class BothWays(Runnable[Any, Any]):
    """An async function as a node of sync and async graphs.

    LangGraph traces every node. Unlike a `RunnableLambda`, this runnable does not trace the call a second time.
    """

    def __init__(self, work: Callable[[Any, RunnableConfig], Awaitable[Any]], n_workers: int) -> None:
        self.work = work
        self._n_workers = n_workers

    @override
    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        return run_in_background(self.ainvoke(input, config), n_workers=self._n_workers)

    @override
    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        return await self.work(input, config or {})


def restarting(work: Any) -> Any:
    """Wrap a node so that it goes to `restore` if the run's particles are lost.

    A thread whose run failed, was interrupted or killed can resume after `init`. The particles are not in its
    checkpoint: they come from the last durable point, or start again from the agent's input.
    """

    @wraps(work)
    async def work_or_restart(state: RunState, config: RunnableConfig) -> Any:
        if (system := state.get("amc_system")) is not None:
            try:
                return await work(state, config)
            except GraphBubbleUp:
                raise
            except Exception as error:
                for on_error in system.features.on_error:
                    on_error(system, error)
                raise
        if state.get("amc_answers") is None:  # A run that asked a human ended as intended.
            log(
                _log,
                logging.WARNING,
                "run.broke_off",
                "a thread's run broke off before '%(node)s': its last durable point, if any, is restored",
                node=work.__name__,
            )
        OpenRun.of(config).checkpoint = state
        return Command(goto="restore")

    return work_or_restart


async def _stream(system: ParticleSystem, particle: Particle, config: RunnableConfig) -> None:
    """Send a particle's events to their readers, and its messages to `stream_mode="messages"`.

    The latter reads the outputs of runnables that have a node's name, and shows each message once.
    """
    for on_answer in system.features.on_answer:
        await on_answer(particle)
    messages = particle.state.get("messages")
    callbacks = config.get("callbacks")
    has_listener = not isinstance(callbacks, BaseCallbackManager) or bool(callbacks.handlers)
    if isinstance(messages, list) and has_listener:
        answer: RunnableLambda[Any, Any] = RunnableLambda(lambda _: messages, name=config["metadata"]["langgraph_node"])
        await answer.ainvoke({}, config)
