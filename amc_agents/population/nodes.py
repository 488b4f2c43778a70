"""The nodes of the outer graph: init, restore, propagate, weigh, resample, commit, ask and finalize."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.errors import ParentCommand
from langgraph.runtime import get_runtime
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict, override

from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import AgentContractError
from amc_agents.logs import log, room_logger
from amc_agents.population.features.committing import CANNOT_ASK, naming_commits, pass_door
from amc_agents.population.features.conversation_world import ConversationWorld
from amc_agents.population.features.durable.lifecycle import new_population, read_population, read_unfinished, saved
from amc_agents.population.open_run import OpenRun, StreamedRun
from amc_agents.population.particle import Particle
from amc_agents.population.propagation import propagate
from amc_agents.population.resampling import begin_again
from amc_agents.population.settings import WrappedAgent
from amc_agents.population.start import overwriting, start
from amc_agents.population.system import ParticleSystem
from amc_agents.population.traced_nodes import traced_resample, traced_weigh
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


class Nodes:
    """The nodes, each written once as an async function.

    A node names its successor by a `Command`. A conditional edge would apply the node's writes to a copy of all
    channels.
    """

    def __init__(self, wrapped: WrappedAgent) -> None:
        self.wrapped = wrapped

    async def init(self, state: Any, config: RunnableConfig) -> Command[str]:
        """Create the particles; or restore those of a run whose commit calls would be repeated."""
        recorded = await read_unfinished(config)
        system = await start(self.wrapped, state, config, get_runtime(), recorded)
        if recorded is not None:
            return Command(goto=recorded.then, update={"amc_system": system})
        system.durable = await new_population(system, config)
        return Command(goto="propagate", update={"amc_system": system, "amc_point": None, "amc_given": None})

    async def restore(self, state: Any, config: RunnableConfig) -> Command[str]:
        """Restore the particles from the last durable point, after a crash or to replay from there."""
        owner = OpenRun.of(config)
        if owner.checkpoint is None:
            # The process was killed before this node: a node that reads the private channels comes first.
            return Command(goto="propagate")
        recorded = await read_population(owner.checkpoint.get("amc_point"), config)
        given = owner.checkpoint.get("amc_given")
        if recorded is None:
            return Command(goto="init", update=self._overwriting(given or {}))
        system = await start(self.wrapped, given or state, config, get_runtime(), recorded)
        return Command(goto=recorded.then, update={"amc_system": system})

    async def propagate(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Run the particles to the next weighing point."""
        system = state["amc_system"]
        if system.runner.streams.settled is not None:
            system.runner.streams.settled.begin(config)
        await propagate(system, calls.particle_config(config))
        if system.at_pause:
            return Command(goto="propagate", update=await saved(system, "propagate"))
        return Command(goto="weigh")

    async def weigh(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Call the critic and update the weights."""
        system = state["amc_system"]
        await traced_weigh(system)
        if system.concluded and await begin_again(system):
            return Command(goto="propagate")  # Particles that have not started yet make no durable point.
        then = system.next_node
        if then == "resample":  # The point is made after the resampling.
            return Command(goto=then)
        return Command(goto=then, update=await saved(system, then))

    async def resample(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Resample the particles."""
        system = state["amc_system"]
        await traced_resample(system)
        return Command(goto="propagate", update=await saved(system, "propagate"))

    async def commit(self, state: RunState, config: RunnableConfig) -> Command[str]:
        """Select a particle among those that wait, let it act alone, and continue it in all slots."""
        system = state["amc_system"]
        answers, edit = state.get("amc_answers"), state.get("amc_edit")
        passed = await pass_door(system, calls.particle_config(config), answers, edit)
        # The point of a run that ends here was made before; one that asks goes on with its answers.
        point = {} if passed.then == "finalize" else await saved(system, passed.resumes_at)
        if passed.questions and not point:
            raise AgentContractError(CANNOT_ASK.format(quoted(next(iter(passed.questions.values())))))
        asked = {"amc_questions": passed.questions, "amc_answers": None, "amc_edit": None}
        shown = await self._shown(state, config) if passed.questions else {}
        return Command(goto=passed.then, update={**shown, **point, **asked})

    async def _shown(self, state: RunState, config: RunnableConfig) -> dict[str, Any]:
        """Return the update that shows beside a question what its particle has computed, and keeps the run's input."""
        system = state["amc_system"]
        assert system.selected is not None
        particle = system.particles[system.selected]
        await _stream(system, particle, config)
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
        system = state["amc_system"]
        owner = OpenRun.of(config)
        conversation = ConversationWorld(config)
        run, winner = await owner.conclude(conversation)
        if winner.store is not None:
            run = replace(run, notes=(*run.notes, *await winner.store.flush()))
        system.emit({"type": "amc.run", "run": StreamedRun.of(run)})
        await _stream(system, winner, config)
        owner.finished = True
        if winner.hand_off is not None:
            await owner.afinish()
            raise ParentCommand(winner.hand_off)
        return {**self._overwriting(run.best_output), "amc_given": None, **conversation.update}


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
        if "amc_system" in state:
            with naming_commits(state["amc_system"]):
                return await work(state, config)
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
    if system.runner.streams.events is not None:
        await system.runner.streams.events.show(particle.events)
    messages = particle.state.get("messages")
    callbacks = config.get("callbacks")
    has_listener = not isinstance(callbacks, BaseCallbackManager) or bool(callbacks.handlers)
    if isinstance(messages, list) and has_listener:
        answer: RunnableLambda[Any, Any] = RunnableLambda(lambda _: messages, name=config["metadata"]["langgraph_node"])
        await answer.ainvoke({}, config)
