"""Agentic Monte Carlo over any LangGraph agent: a graph around a compiled graph.

    init -> propagate -> weigh -> (resample -> propagate -> weigh)* -> finalize

See docs/amc.md.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import wraps
from typing import Annotated, Any, Literal, cast

import numpy as np
from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.delta import DeltaChannel
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.config import get_stream_writer
from langgraph.errors import ParentCommand
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Checkpointer, Command, Overwrite
from typing_extensions import TypedDict, is_typeddict

from amc_agents.concurrency.background import read_in_thread, run_in_background
from amc_agents.config import ConfigLike, configured
from amc_agents.critics.adapting import CriticLike, connect
from amc_agents.critics.uses import for_amc
from amc_agents.errors import AgentContractError, ConfigurationError, CriticError, RunTimedOut
from amc_agents.messages import MessageReader
from amc_agents.population.containers import own_containers
from amc_agents.population.open_run import OpenRun
from amc_agents.population.particle import Particle, ParticleRunner, RewardFunction, State, TrajectoryFunction
from amc_agents.population.particle_events import event_listener
from amc_agents.population.population import ParticleSystem
from amc_agents.population.rewards import RewardSource, reward_source
from amc_agents.population.saver import ForkSaver
from amc_agents.population.settings import Settings
from amc_agents.population.store.view import ParticleStore
from amc_agents.population.streamed_run import StreamedRun
from amc_agents.population.time_limits import Deadline
from amc_agents.run import Run
from amc_agents.runtime import contract
from amc_agents.runtime.chosen_critic import CriticChoice
from amc_agents.runtime.effects import Effect, effect
from amc_agents.runtime.metering import PolicyMeter, policy_meter
from amc_agents.runtime.world import RecordingWorld, make_worlds
from amc_agents.settings import DEFAULTS, SETTING_NAMES, Finished, OnCriticError, Select
from amc_agents.smc import Schedule
from amc_agents.types import Task
from amc_agents.usage import Meter, metering

_log = logging.getLogger(__name__)

EnvironmentFunction = Callable[[State], Any]
"""(Environment, Task), or a `Forkable`, or an awaitable of it, from the state that the agent is given."""


class _RunState(TypedDict):
    """The channel that is ours: never checkpointed, never streamed, not in the agent's schemas."""

    amc_system: Annotated[ParticleSystem, UntrackedValue]


class _StateOfRun(ParticleSystem):
    """What `_RunState` holds. A server that streams the tasks of a graph encodes their inputs.

    Its encoder walks over the fields of a dataclass, here agents, worlds and clients; of a class below one it knows
    nothing, and says null.
    """


@effect("read")
class AmcGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """A compiled graph with the wrapped agent's input and output, that can also give its run as a value.

    Every other way to run it (`invoke`, `batch`, `astream_events`, as a node of another graph) reads one of the two
    streams below. Whoever stops reading, and why ever, the run's worlds are closed. A context that nobody would read is
    refused.
    """

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Stream as any compiled graph; at the end, every world is closed."""
        yield from self._stream(OpenRun(), input, config, **kwargs)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Stream as any compiled graph; at the end, every world is closed."""
        async with aclosing(self._astream(OpenRun(), input, config, **kwargs)) as events:
            async for event in events:
                yield event

    def _stream(self, owner: OpenRun, input: Any, config: RunnableConfig | None, **kwargs: Any) -> Iterator[Any]:
        contract.check_context(self.builder.context_schema, kwargs.get("context"))
        events = cast(Generator[Any, None, None], super().stream(input, owner.within(config), **kwargs))
        try:
            yield from read_in_thread(events) if _streams_while_nodes_run(kwargs) else events
        finally:
            owner.close()

    async def _astream(
        self, owner: OpenRun, input: Any, config: RunnableConfig | None, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        contract.check_context(self.builder.context_schema, kwargs.get("context"))
        events = cast(AsyncGenerator[Any, None], super().astream(input, owner.within(config), **kwargs))
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        finally:
            await owner.aclose()

    def run(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Run:
        """Like `invoke`, but returns the `Run`: best trajectory, population, weights, log Z, usage."""
        found: list[Run] = []
        for event in self._stream(OpenRun(wants_events=False), input, config, stream_mode="custom", **kwargs):
            found += _runs_in(event)
        return _only(found)

    async def arun(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Run:
        """Like `ainvoke`, but returns the `Run`."""
        found: list[Run] = []
        async for event in self._astream(OpenRun(wants_events=False), input, config, stream_mode="custom", **kwargs):
            found += _runs_in(event)
        return _only(found)


def amc(
    agent: CompiledStateGraph[Any, Any, Any, Any],
    critic: str | CriticLike | None = None,
    *,
    critics: Mapping[str, str | CriticLike] | None = None,
    n_particles: int | None = None,
    resample: Schedule | None = None,
    scheme: str | None = None,
    beta: float | None = None,
    success_reward: float | None = None,
    environment: EnvironmentFunction | None = None,
    reward: RewardFunction | None = None,
    rewards: RewardSource | Literal[False] | None = None,
    hide_rewards: bool = False,
    select: Select | None = None,
    finished: Finished | None = None,
    horizon: int | None = None,
    stop_at: float | None = None,
    quorum: int | None = None,
    step_timeout: float | None = None,
    run_timeout: float | None = None,
    seed: int | None = None,
    on_critic_error: OnCriticError | None = None,
    step_after: str | Sequence[str] | None = None,
    tools: Mapping[str, Effect] | None = None,
    stateless_tools: bool = False,
    trajectory: TrajectoryFunction | None = None,
    checkpointer: Checkpointer = None,
    name: str | None = None,
    config: ConfigLike | None = None,
) -> AmcGraph:
    """Run any compiled LangGraph agent as N particles, resampled by a critic (AMC, Algorithm 1).

    The graph that comes back has the agent's own input and output schema: `invoke` gives the best particle's
    output. `graph.run(input)` gives the whole `Run`.

    A setting that is left out comes from the configuration file (docs/configuration.md), else it has its default,
    which `amc_agents.settings.AmcSettings` states and `help(amc)` lists at its end.

    Args:
        agent: a compiled graph, with tools or without.
        critic: predicts the return still to come: a string such as "hf:folder", an object with `values`, or a function
            of trajectories, async or sync (then called in a thread). Left out: the one
            named by AMC_CRITIC, then the file's, then "uniform". One call can name another, which goes before all:
            `context={"critic": ...}`, then `config={"configurable": {"critic": ...}}`. A run that sees no rewards needs
            one; `"uniform"` has to be named there, since nothing is left then to choose a particle by.
        critics: what calls may choose among, by the names that they choose by: a call names one of these then and no
            other critic, and `critic` may be one of the names, too. The way to serve a graph: where LangGraph's server
            runs one without, calls cannot name a critic.
        n_particles: N, trajectories run side by side.
        resample: when particles are weighed and resampled; `Never()` is Best-of-N.
        scheme: "systematic", "stratified", "residual" or "multinomial" (the paper's).
        beta: temperature of the target pi* ~ pi exp(R / beta), in the agent's reward units.
        success_reward: says that the return is always 0 or this (success): what the critic predicts is then a
            probability of success, from which eq. 5 follows exactly, and small probabilities weigh by their ratio.
            None: any return may come.
        environment: gives (Environment, Task) for the agent's input; every particle gets a world of its own, which
            its tools reach by `current_environment()`. Rewards come from it. A world that only keeps particles apart is
            a `Forkable`, alone or with a Task: the run then sees no rewards.
        reward: the return so far, from the agent's state.
        rewards: which count where `environment` and `reward` are both given: "world", "function", or "both", their sum.
            False says that the worlds give none. Default: those of the only source there is.
        hide_rewards: make the run without looking at rewards: the pick is then one that could be deployed.
        select: the answer is the best by "return", by "value" (the critic's), by "weight" (as in the paper; retired
            particles compete with the absolute weight that they were stored with), or a "sample" from the weighted
            particles. None: "return" where rewards are seen, else "value".
        finished: "retire" puts finished particles away with their weight and gives their slots to live
            ones; "keep" resamples them with the rest.
        horizon: most steps of one particle; nothing is bootstrapped there.
        stop_at: a return at which the run may end early. None: never.
        quorum: least number of particles that must not fail. None: half of them.
        step_timeout: most seconds of one particle's step, `reward=` included: a particle that exceeds it has failed,
            and the run goes on. Also of one call of the critic, a failure for `on_critic_error`. None: no limit.
        run_timeout: most seconds of the whole run. Then the best finished trajectory is the answer, with a note and
            without log Z; `RunTimedOut` is raised if no particle has finished. None: no limit.
        seed: makes resampling and worlds reproducible, and models that draw from the particle's own stream.
            None: drawn, and recorded.
        on_critic_error: "raise" (default), or "uniform", which keeps the weights where the critic fails, whatever it
            raises or answers, and says so in the run's notes. Values are NaN there; `select="value"` takes the best of
            those that are known, and the largest weight where none is.
        step_after: the node or nodes after which the agent pauses, one pause being one step. Default: the nodes that
            hold a ToolNode or are named "tools".
        tools: what tools and hand-written pausing nodes do, by name: "read" (may be repeated without harm), or "world"
            (acts on the particle's own world, which `environment` makes). `@effect` says the same at a tool.
        stateless_tools: the tools and nodes of which nothing was declared are all "read".
        trajectory: what the critic sees of an agent's state, for agents whose state has no `messages`.
        checkpointer: for the outer graph (a conversation's memory); default: the agent's own.
        name: of the graph, by which supervisors, swarms and `as_tool()` know it. Default: the agent's own.
        config: the configuration file's path, or a `Config`. Default: the one that AMC_CONFIG names; `Config()` is
            none.

    Raises:
        AgentContractError: where the agent cannot be run as particles as it is.
        ConfigurationError: for settings that make no sense, by name; at the first call that sees neither a critic nor
            rewards, too.
    """
    arguments = locals()  # Before any other name is bound: what the caller gave.
    contract.check_agent(agent, gives_trajectory=trajectory is not None)
    pausing = contract.pausing_nodes(agent, step_after)
    contract.check_effects(
        agent, pausing, tools or {}, stateless_tools=stateless_tools, has_world=environment is not None
    )
    config = configured(config)
    settings = Settings.chosen(
        config,
        {name: arguments[name] for name in (*SETTING_NAMES, "on_critic_error")},
        rewards=reward_source(rewards, has_world=environment is not None, has_function=reward is not None),
        hide_rewards=hide_rewards,
    )
    nodes = _Nodes(
        agent=agent,
        settings=settings,
        critics=CriticChoice(
            critic,
            config,
            lambda found: for_amc(found, beta=settings.beta, success_reward=settings.success_reward),
            critics,
        ),
        step_after=pausing,
        environment=environment,
        reward=reward,
        rewards_named=rewards is not None,
        trajectory=trajectory,
    )
    return _assemble(nodes, agent.checkpointer if checkpointer is None else checkpointer, name or agent.name)


amc.__doc__ = f"{(amc.__doc__ or '').rstrip()}\n\n    Defaults: {DEFAULTS}.\n"


@dataclass(frozen=True)
class _Nodes:
    """The outer graph's nodes. Each is written once, async, and runs on the background loop when called in sync."""

    agent: CompiledStateGraph[Any, Any, Any, Any]
    settings: Settings
    critics: CriticChoice
    step_after: tuple[str, ...]
    environment: EnvironmentFunction | None
    reward: RewardFunction | None
    rewards_named: bool
    """Whoever wrapped the agent said which rewards count."""
    trajectory: TrajectoryFunction | None

    async def init(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        """Make the particles: one private thread, one world and one stream of luck each."""
        owner = OpenRun.of(config)
        given = contract.as_mapping(state)
        runtime: Runtime[Any] = get_runtime()
        seed = secrets.randbelow(2**63) if self.settings.seed is None else self.settings.seed
        worlds_rng, *rngs = np.random.default_rng([seed, 0]).spawn(self.settings.n_particles + 1)
        call = contract.read_call(self.agent, runtime.context, config)
        chosen = await self.critics.for_call(call.critic, call.critic_from)
        settings = replace(self.settings, critic=chosen.name, critic_from=chosen.source)
        settings.require_source_of_weights()
        meter = Meter()
        deadline = Deadline(settings.run_timeout)
        notes: list[str] = []
        worlds: Sequence[RecordingWorld | None] = [None] * self.settings.n_particles
        task: Task | None = None
        async with deadline.cutting():
            notes = await _connect(chosen.critic, settings, meter)
            if self.environment is not None:
                make = self.environment
                worlds, task = await make_worlds(lambda: make(given), len(rngs), worlds_rng, owner.worlds)
                known = self._of_worlds(settings, gives_rewards=worlds[0].gives_rewards)
                if not settings.may_ask_critic:
                    notes = await _connect(chosen.critic, known, meter)
                settings = known
        if deadline.passed:
            raise RunTimedOut(self.settings.run_timeout or 0.0)
        reader = MessageReader.start(given["messages"], task) if self.trajectory is None else None
        saver = ForkSaver()
        base = runtime.store or self.agent.store
        store = None if base is None else ParticleStore(base)
        emit = get_stream_writer()
        owner.system = system = _StateOfRun(
            worlds=owner.worlds,
            runner=ParticleRunner(
                agent=self.agent.copy(update={"checkpointer": saver}),
                saver=saver,
                step_after=frozenset(self.step_after),
                horizon=self.settings.horizon,
                meter=PolicyMeter(meter, around=policy_meter()),
                step_timeout=self.settings.step_timeout,
                agent_context=call.context,
                rewards=settings.rewards,
                reward=self.reward,
                trajectory=self.trajectory,
                on_event=event_listener(emit) if owner.wants_events else None,
                nested="|" in config["configurable"].get("checkpoint_ns", ""),
            ),
            settings=settings,
            critic=chosen.critic,
            seed=seed,
            meter=meter,
            emit=emit,
            deadline=deadline,
            notes=[*call.notes, *notes],
            particles=[
                Particle(
                    state=self._first_input(own_containers(given)),
                    rng=rng,
                    reader=reader,
                    world=world,
                    store=store.fork() if store else None,
                    index=index,
                )
                for index, (rng, world) in enumerate(zip(rngs, worlds, strict=True))
            ],
        )
        return {"amc_system": system}

    def _of_worlds(self, settings: Settings, *, gives_rewards: bool) -> Settings:
        """The settings, now that the worlds are known: without rewards where those that count are not there."""
        if gives_rewards or settings.rewards not in ("world", "both"):
            return settings
        if self.rewards_named:
            raise ConfigurationError(
                f'rewards="{settings.rewards}" counts those of the worlds, and environment= gave one without reset and '
                "step, which gives none: leave rewards= out, or return (Environment, Task)"
            )
        settings = replace(settings, rewards=None)
        settings.require_source_of_weights()
        return settings

    async def propagate(self, state: _RunState, config: RunnableConfig) -> Command[str]:
        """Let the particles run to the next weighing point."""
        await state["amc_system"].propagate(contract.particle_config(config))
        return Command(goto="weigh")

    async def weigh(self, state: _RunState, config: RunnableConfig) -> Command[str]:
        """Ask the critic, update the weights."""
        system = state["amc_system"]
        await system.weigh()
        if system.concluded:
            return Command(goto="finalize")
        return Command(goto="resample" if system.due else "propagate")

    async def resample(self, state: _RunState, config: RunnableConfig) -> Command[str]:
        """Draw who goes on."""
        await state["amc_system"].resample()
        return Command(goto="propagate")

    async def finalize(self, state: _RunState, config: RunnableConfig) -> dict[str, Any]:
        """Give the best particle's state as this graph's own: channels overwritten, not reduced again.

        Where it ended by handing off to another agent, hand off as it did.
        """
        system = state["amc_system"]
        await OpenRun.of(config).aclose()
        run = system.conclude()
        winner = system.winner
        if winner is not None and winner.store is not None:
            run = replace(run, notes=(*run.notes, *await winner.store.flush()))
        system.emit({"type": "amc.run", "run": StreamedRun.of(run)})
        output = {key: value for key, value in run.best_output.items() if key in self.agent.channels}
        await _stream_messages(output.get("messages"), config)
        if winner is not None and winner.hand_off is not None:
            raise ParentCommand(winner.hand_off)
        return {key: _overwriting(self.agent, key, value) for key, value in output.items()}

    def _first_input(self, given: Mapping[str, Any]) -> dict[str, Any]:
        # What the outer graph's channels hold is what the agent starts from: not to be reduced once more. Pydantic
        # and dataclass inputs are validated, and take no Overwrite.
        typed_dict = is_typeddict(self.agent.builder.input_schema)
        wanted = self.agent.builder.schemas[self.agent.builder.input_schema]
        return {
            key: _overwriting(self.agent, key, value) if typed_dict else value
            for key, value in given.items()
            if key in wanted
        }


def _assemble(nodes: _Nodes, checkpointer: Checkpointer, name: str) -> AmcGraph:
    builder = nodes.agent.builder
    graph = StateGraph(
        builder.state_schema,
        context_schema=builder.context_schema or contract.AmcContext,
        input_schema=builder.input_schema,
        output_schema=builder.output_schema,
    )
    n_workers = nodes.settings.n_particles
    graph.add_node("init", _BothWays(nodes.init, n_workers))
    following = {
        "propagate": ("weigh",),
        "weigh": ("finalize", "resample", "propagate"),
        "resample": ("propagate",),
        "finalize": (END,),
    }
    # Nodes say by a Command what follows: a conditional edge would apply each node's writes to a copy of all channels.
    for name_of_node, destinations in following.items():
        graph.add_node(
            name_of_node,
            _BothWays(_with_particles(getattr(nodes, name_of_node)), n_workers),
            input_schema=_RunState,
            destinations=(*destinations, "init"),
        )
    graph.add_edge(START, "init")
    graph.add_edge("init", "propagate")
    compiled = graph.compile(checkpointer=checkpointer, store=nodes.agent.store, name=name)
    shown = [
        key for key in compiled.channels if key in nodes.agent.channels and key in nodes.agent.stream_channels_list
    ]
    return AmcGraph(**{**compiled.__dict__, "stream_channels": shown})


def _with_particles(work: Any) -> Any:
    """A node that does nothing where its run's particles are gone: they are never checkpointed.

    Only a thread whose run broke off, or was paused within, comes there. Its run starts again at `init`, from the
    agent's input, which the thread does keep.
    """

    @wraps(work)
    async def work_if_there(state: _RunState, config: RunnableConfig) -> Any:
        if "amc_system" in state:
            return await work(state, config)
        _log.warning("this thread's run broke off before %r and starts again: particles are not kept", work.__name__)
        return Command(goto="init")

    return work_if_there


class _BothWays(Runnable[Any, Any]):
    """An async function as a node of sync and async graphs.

    LangGraph traces each node already, so this does not trace the call once more, as a RunnableLambda would.
    """

    def __init__(self, work: Callable[[Any, RunnableConfig], Awaitable[Any]], n_workers: int) -> None:
        self._work = work
        self._n_workers = n_workers

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        return run_in_background(self.ainvoke(input, config), n_workers=self._n_workers)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        return await self._work(input, config or {})


async def _connect(critic: Any, settings: Settings, meter: Meter) -> list[str]:
    """Let the critic find its server before the first call of the policy; gives what the run's notes say of it."""
    if not settings.may_ask_critic:
        return []
    try:
        with metering(meter):
            await connect(critic)
    except CriticError as error:
        if settings.on_critic_error == "raise":
            raise
        return [f"before the first step: the critic could not be connected, and is asked all the same ({error})"]
    return []


async def _stream_messages(messages: Any, config: RunnableConfig) -> None:
    """Show the winner's messages to `stream_mode="messages"`, which looks at the outputs of runnables."""
    callbacks = config.get("callbacks")
    nobody_listens = isinstance(callbacks, BaseCallbackManager) and not callbacks.handlers
    if isinstance(messages, list) and not nobody_listens:
        shown: RunnableLambda[Any, Any] = RunnableLambda(lambda _: messages, name="finalize")
        await shown.ainvoke({}, config)


def _overwriting(agent: CompiledStateGraph[Any, Any, Any, Any], key: str, value: Any) -> Any:
    channel = agent.channels.get(key)
    return Overwrite(value) if isinstance(channel, (BinaryOperatorAggregate, DeltaChannel)) else value


def _streams_while_nodes_run(options: Mapping[str, Any]) -> bool:
    modes = options.get("stream_mode") or ()
    return bool(options.get("subgraphs")) or not {"custom", "messages"}.isdisjoint(
        [modes] if isinstance(modes, str) else modes
    )


def _runs_in(event: Any) -> list[Run]:
    return [event["run"].received()] if isinstance(event, dict) and event.get("type") == "amc.run" else []


def _only(found: list[Run]) -> Run:
    if not found:
        raise AgentContractError("the graph ended without a run: was it interrupted before its end?")
    return found[-1]
