"""Wrap a LangGraph agent in the graph of an AMC run.

    init -> propagate -> weigh -> (resample | commit -> propagate -> weigh)* -> finalize

A resumed run goes on at `restore`. See docs/amc.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Checkpointer

from amc_agents.budget import Budget
from amc_agents.config import configured
from amc_agents.critics.adapting import CriticLike
from amc_agents.critics.uses import for_amc
from amc_agents.errors import ConfigurationError
from amc_agents.population.graph import AmcGraph
from amc_agents.population.nodes import BothWays, Nodes, RunState, restarting
from amc_agents.population.settings import (
    EnvironmentFunction,
    RewardFunction,
    Settings,
    WrappedAgent,
    checked_proposals,
    reward_source,
)
from amc_agents.quoting import quoted
from amc_agents.runtime import calls, contract
from amc_agents.runtime.calls import CriticChoice, OfferedCritics
from amc_agents.runtime.contract import patient
from amc_agents.runtime.door import watch_tools
from amc_agents.runtime.effects import Effect
from amc_agents.runtime.metering import pass_caches_by
from amc_agents.settings import DEFAULTS, AmcSettings, Beta, Select
from amc_agents.smc import Adaptive, Never, Schedule

if TYPE_CHECKING:
    from amc_agents.population.race_settings import Race


def amc(
    agent: CompiledStateGraph[Any, Any, Any, Any],
    critic: str | CriticLike | None = None,
    *,
    critics: OfferedCritics | None = None,
    n_particles: int | Adaptive | None = None,
    resample: Schedule | None = None,
    beta: Beta | None = None,
    environment: EnvironmentFunction | None = None,
    reward: RewardFunction | None = None,
    select: Select | None = None,
    horizon: int | None = None,
    stop_at: float | None = None,
    step_timeout: float | None = None,
    budget: Budget | None = None,
    race: Race | None = None,
    seed: int | None = None,
    step_after: str | Sequence[str] | None = None,
    tools: Mapping[str, Effect] | None = None,
    stateless_tools: bool = False,
    checkpointer: Checkpointer = None,
    name: str | None = None,
    settings: AmcSettings | None = None,
) -> AmcGraph:
    """Run a compiled LangGraph agent as N particles, weighted and resampled by a critic (AMC, Algorithm 1).

    The returned graph has the agent's input and output schemas. `invoke` returns the best particle's output;
    `graph.run(input)` returns the whole `Run`.

    A setting that is not given comes from the configuration file (docs/configuration.md), or else has the default of
    `AmcSettings`. `help(amc)` lists the defaults at its end.

    Args:
        agent: a compiled graph, with or without tools.
        critic: predicts the future return: a string such as "hf:folder", an object with `values`, or a function of
            trajectories, async or sync (then called in a thread). Default: AMC_CRITIC, then the configuration file,
            then "uniform". A call can name another critic, which takes precedence: `context={"critic": ...}`, then
            `config={"configurable": {"critic": ...}}`. A run that sees no rewards needs a named critic; even "uniform"
            must then be named, because nothing else tells the particles apart.
        critics: name -> critic, the choice of a call: calls may then use these names and no other critic. `critic` may
            be such a name too. `AllowedCritics` also permits shipped models and listed servers. Served graphs need one
            of them: on LangGraph's server, a call cannot name a critic otherwise.
        n_particles: N, number of trajectories that run side by side. `Adaptive(start=4, most=32)` starts with few, adds
            more at each resampling point where the answer is undecided, and ends when it is decided.
        resample: when particles are weighed and resampled; `Never()` is Best-of-N.
        beta: temperature of the target pi* ~ pi exp(R / beta), in the agent's reward units. "auto": that of a critic
            trained for one (eq. 5); otherwise chosen at the first weighing where values differ by more than the
            critic's resolution, so that the effective sample size falls to half, and recorded as `run.beta`; log Z is
            then not known.
        environment: creates (Environment, Task) from the agent's input. Every particle gets its own world, which its
            tools reach by `current_environment()` and from which rewards come. A world that only keeps particles apart
            is a `Forkable`, alone or with a Task; the run then sees no rewards.
        reward: computes the return so far from the agent's state.
        select: criterion of the answer: the best "return", "value" (by the critic) or "weight" (as in the paper;
            retired particles compete with the absolute weight at which they were retired), or a "sample" from the
            weighted particles; or the "shortest" or "longest" text, or a "vote" of the last actions. None: "return" if
            rewards are seen, else "value".
        horizon: maximum number of steps of a particle; no future return is predicted there.
        stop_at: return at which the run may end early. None: never.
        step_timeout: time limit in seconds for a particle's step, `reward=` included: a particle that exceeds it has
            failed, and the run continues. It also limits a critic call, whose failure is handled by `on_critic_error`.
            None: no limit.
        budget: limits of tokens, dollars, calls and seconds for the policy, the critic and all other models, shared by
            all calls of the graph and by whatever else the `Budget` is given to. No request is made that could exceed
            it. At its end, the best finished trajectory is the answer, with a note and without log Z;
            `BudgetExhausted` is raised if no particle could finish. None: no limit.
        race: `Race()` makes the first particle that finishes the answer and cancels the others; without `resample=`,
            particles are then not resampled. A race needs neither a critic nor rewards. None: no race.
        seed: seed of resampling, of worlds, and of models that draw from the particle's random stream. None: drawn at
            random and recorded.
        step_after: the node or nodes after which the agent pauses; a pause ends a step. Default: the nodes that hold a
            ToolNode or are named "tools".
        tools: effects of tools and of hand-written pausing nodes, by name: "read" (may be repeated without harm),
            "world" (acts on the particle's own world, which `environment` creates), "commit" (must happen once, in
            reality: the particles wait before it, and only the selected one makes the call) or `Deferred(...)` (a
            commit that `run.commit` makes after the search). `@effect` declares the same at a tool.
        stateless_tools: treat all tools and nodes without a declared effect as "read".
        checkpointer: for the outer graph (a conversation's memory). Default: the agent's own. A `Restorable` world
            without `reset` then goes on: each turn starts from the previous winner's. A call whose `configurable` has
            `"amc_new_world": True` starts from a new world.
        name: name of the graph for supervisors, swarms and `as_tool()`. Default: the agent's own.
        settings: all other settings, such as `AmcSettings(run_timeout=60, finished="keep")`; an argument precedes a
            field of the same name.

    Raises:
        AgentContractError: the agent cannot be run as particles.
        ConfigurationError: a setting is invalid; also at the first call that has neither a critic nor rewards.
    """
    settings = AmcSettings() if settings is None else settings
    if not isinstance(settings, AmcSettings):
        raise ConfigurationError(
            f"settings= takes an AmcSettings, such as AmcSettings(run_timeout=60), got {quoted(settings)}"
        )
    arguments = {
        "n_particles": n_particles,
        "resample": Never() if race is not None and resample is None else resample,
        "beta": beta,
        "select": select,
        "horizon": horizon,
        "stop_at": stop_at,
        "step_timeout": step_timeout,
        "seed": seed,
    }
    contract.check_agent(agent, gives_trajectory=settings.trajectory is not None)
    pausing = contract.pausing_nodes(agent, step_after)
    effects = contract.check_effects(
        agent, pausing, tools or {}, stateless_tools=stateless_tools, has_world=environment is not None
    )
    config = configured(settings.config)
    chosen = Settings.chosen(
        config,
        arguments,
        settings,
        budget=budget,
        race=race,
        rewards=reward_source(settings.rewards, has_world=environment is not None, has_function=reward is not None),
    )
    chosen = replace(chosen, proposals=checked_proposals(settings.proposals, chosen.start_size))
    acting = {name for name, kind in {**effects.tools, **(tools or {})}.items() if kind != "read"}
    wrapped = WrappedAgent(
        agent=patient(agent, acting | effects.commit_nodes.keys()),
        settings=chosen,
        critics=CriticChoice(
            critic,
            config,
            lambda any_critic: for_amc(any_critic, beta=chosen.beta, success_reward=chosen.success_reward),
            critics,
        ),
        step_after=pausing,
        environment=environment,
        reward=reward,
        rewards_named=settings.rewards is not None,
        trajectory=settings.trajectory,
        effects=effects,
        prices=config.price_list(),
    )
    watch_tools()
    pass_caches_by(agent)
    return _assemble(wrapped, agent.checkpointer if checkpointer is None else checkpointer, name or agent.name)


amc.__doc__ = f"{(amc.__doc__ or '').rstrip()}\n\n    Defaults: {DEFAULTS}.\n"


def _assemble(wrapped: WrappedAgent, checkpointer: Checkpointer, name: str) -> AmcGraph:
    builder, nodes = wrapped.agent.builder, Nodes(wrapped)
    graph = StateGraph(
        builder.state_schema,
        context_schema=builder.context_schema or calls.AmcContext,
        input_schema=builder.input_schema,
        output_schema=builder.output_schema,
    )
    for schema in builder.schemas:  # Those of single nodes have channels too, which last as long as a conversation.
        graph._add_schema(schema)
    n_workers = wrapped.settings.largest_size
    resumed = ("propagate", "weigh", "resample", "commit", "finalize")
    graph.add_node("init", BothWays(nodes.init, n_workers), destinations=resumed)
    graph.add_node("restore", BothWays(nodes.restore, n_workers), destinations=("init", *resumed))
    for node, successors in (
        (nodes.propagate, ("weigh", "propagate")),
        (nodes.weigh, ("finalize", "resample", "propagate", "commit")),
        (nodes.commit, ("propagate", "weigh", "ask", "finalize")),
        (nodes.resample, ("propagate",)),
        (nodes.finalize, (END,)),
    ):
        graph.add_node(
            node.__name__,
            BothWays(restarting(node), n_workers),
            input_schema=RunState,
            destinations=(*successors, "restore"),
        )
    graph.add_node("ask", BothWays(nodes.ask, n_workers), input_schema=RunState, destinations=("commit",))
    graph.add_edge(START, "init")
    compiled = graph.compile(checkpointer=checkpointer, store=wrapped.agent.store, name=name)
    agent = wrapped.agent
    shown = [key for key in compiled.channels if key in agent.channels and key in agent.stream_channels_list]
    # As values of channels, because an object of the state's class also has the defaults of what was never written.
    raw = {"channels": shown, "mapper": None}
    first = {name: compiled.nodes[name].copy(raw) for name in ("init", "restore")}
    assembled = AmcGraph(
        **{**compiled.__dict__, "stream_channels": shown, "nodes": {**compiled.nodes, **first}, "wrapped": wrapped}
    )
    # `version="v2"` returns objects of the agent's classes by these.
    assembled._output_mapper, assembled._state_mapper = compiled._output_mapper, compiled._state_mapper
    return assembled
