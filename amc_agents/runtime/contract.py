"""Check the agent that `amc` wraps, and pass the settings of a call on to its particles."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, NotRequired

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from pydantic import BaseModel
from typing_extensions import TypedDict

from amc_agents.critics.options import near
from amc_agents.errors import AgentContractError, ConfigurationError
from amc_agents.runtime.effects import Effect, check_effect, has_tool_node, parts_of

Agent = CompiledStateGraph[Any, Any, Any, Any]


def check_agent(agent: Any, *, gives_trajectory: bool) -> None:
    """Check that an agent can run as particles.

    Args:
        agent: the agent.
        gives_trajectory: whether `trajectory=` is given, so that the state needs no `messages`.

    Raises:
        AgentContractError: it cannot; the message states what to declare or change.
    """
    if isinstance(agent, Pregel) and not isinstance(agent, CompiledStateGraph):
        raise AgentContractError(
            "amc() wraps a compiled StateGraph, got an @entrypoint workflow, whose loop cannot pause: "
            "make the loop's body a node of a StateGraph and its condition an edge, with "
            'step_after=["that node"] (docs/amc.md, "Workflows of the functional API")'
        )
    if not isinstance(agent, CompiledStateGraph):
        raise AgentContractError(
            f"amc() wraps a compiled graph, got {type(agent).__name__}: pass create_agent(...) or builder.compile()"
        )
    if agent.interrupt_before_nodes or agent.interrupt_after_nodes:
        raise AgentContractError(
            "the agent was compiled with interrupt_before or interrupt_after, and amc() uses these pauses itself: "
            "compile it without, and interrupt in the graph around it"
        )
    if not gives_trajectory and "messages" not in agent.channels:
        raise AgentContractError(
            f"the agent's state has no `messages` (it has {', '.join(sorted(_state_channels(agent)))}): give "
            "trajectory=, a function from its state to a Trajectory"
        )


def check_effects(
    agent: Agent,
    step_after: tuple[str, ...],
    tools: Mapping[str, Effect],
    *,
    stateless_tools: bool,
    has_world: bool,
) -> None:
    """Check that every tool and every pausing node (also a node named `tools`) has a declared effect.

    Declarations by precedence: `tools` by the tool's name, `@effect` at the tool, `tools` by the node's name,
    `stateless_tools`.

    Args:
        agent: the agent.
        step_after: the pausing nodes.
        tools: name -> effect.
        stateless_tools: undeclared tools and nodes are "read".
        has_world: whether the run has worlds.

    Raises:
        AgentContractError: an effect is missing or impossible.
        ConfigurationError: an effect or a name is unknown.
    """
    if not isinstance(tools, Mapping):
        raise ConfigurationError(f'tools= must map names to effects, as {{"search": "read"}}, got {tools!r:.100}')
    for kind in tools.values():
        check_effect(kind)
    names = set(agent.nodes)
    undeclared: dict[str, str] = {}
    of_the_world: set[str] = set()
    for node, pregel_node in agent.nodes.items():
        for part in parts_of(pregel_node.bound):
            if part.name is None and part.effect is None and node not in (*step_after, "tools"):
                continue
            name = part.name or node
            names.add(name)
            declared = tools.get(name) or part.effect or tools.get(node)
            label = f"{'node' if part.name is None else 'tool'} {name}"
            if part.store and declared != "read":
                raise AgentContractError(_PRIVATE_STORE.format(label=label, store=part.store, name=name))
            resolved = declared or ("read" if stateless_tools else None)
            if resolved is None:
                undeclared[name] = label
            elif resolved == "world":
                of_the_world.add(name)
    unknown = sorted(set(tools) - names)
    if unknown:
        known = sorted(names - {"__start__"})
        raise AgentContractError(
            f"tools= names {unknown[0]!r}, which is neither a tool nor a node of the agent{near(unknown[0], known)}. "
            f"It has {_listed(known)}"
        )
    if undeclared:
        first = next(iter(undeclared))
        raise AgentContractError(
            f"every particle would run {_listed(undeclared.values())} for real, N times over. Declare their effects: "
            f'amc(..., tools={{"{first}": "read"}}), or @effect("read") at the function or tool ("read": may be '
            'repeated without harm; "world": acts on the particle\'s own world), or stateless_tools=True: all "read"'
        )
    if of_the_world and not has_world:
        raise AgentContractError(
            f'declared as "world", acting on the particle\'s own world: {_listed(sorted(of_the_world))}. They need '
            "environment=, a function of the agent's input that returns (Environment, Task)"
        )


_PRIVATE_STORE = (
    "{label} holds a store ({store}): all particles would write to it and read each other's writes. Use the agent's "
    "store, of which each particle has its own view: an argument `runtime: ToolRuntime` (runtime.store), or "
    "get_store(), and create_agent(..., store=store). If it only reads, declare it: "
    'amc(..., tools={{"{name}": "read"}})'
)


def pausing_nodes(agent: Agent, step_after: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the nodes after which the agent pauses. A pause ends a step.

    Args:
        agent: the agent.
        step_after: names of the nodes; None: the nodes that hold a ToolNode or are named "tools".

    Raises:
        AgentContractError: no node would pause, so nothing could be resampled; or a name is unknown.
    """
    known = [name for name in agent.nodes if name != "__start__"]
    if step_after is None:
        pausing = [name for name in known if name == "tools" or has_tool_node(agent.nodes[name].bound)]
    else:
        pausing = [step_after] if isinstance(step_after, str) else list(step_after)
        unknown = sorted(set(pausing) - set(known))
        if unknown:
            raise AgentContractError(f"step_after names {', '.join(unknown)}; the agent's nodes are {', '.join(known)}")
    if not pausing:
        raise AgentContractError(
            "no node of the agent ends a step: none holds a ToolNode or is named `tools` at the top level, and "
            "without pauses nothing can be resampled. Name such nodes in step_after=[...]; the agent has: "
            f"{', '.join(known)}"
        )
    return tuple(pausing)


def as_mapping(state: Any) -> dict[str, Any]:
    """Convert a graph's state to a dictionary; its schema is a TypedDict, a pydantic model or a dataclass."""
    if isinstance(state, Mapping):
        return dict(state)
    if isinstance(state, BaseModel):
        return {name: getattr(state, name) for name in type(state).model_fields}
    if is_dataclass(state):
        return {field.name: getattr(state, field.name) for field in fields(state)}
    raise AgentContractError(f"the agent's state is a {type(state).__name__}; amc() needs one with named channels")


class AmcContext(TypedDict):
    """The run-time context of a graph whose agent has no context schema."""

    critic: NotRequired[str]
    """The critic's string for this call."""


def check_context(schema: Any, context: Any) -> None:
    """Check that every key of a call's context is read.

    Args:
        schema: the graph's context schema: the agent's own, or `AmcContext`.
        context: the context of the call.

    Raises:
        ConfigurationError: an unknown key, if the agent has no schema; or a critic, if the agent's schema has no
            field for it.
    """
    if schema is AmcContext:
        if context is not None and not isinstance(context, Mapping):
            raise ConfigurationError(
                f"context= is of type {type(context).__name__}, and the agent has no context schema: give it one "
                '(context_schema=...), or a dictionary with a "critic"'
            )
        unknown = next((key for key in context or () if key != "critic"), None)
        if unknown is not None:
            meant = ", did you mean 'critic'?" if _means_critic(unknown) else ""
            raise ConfigurationError(
                f"context= has no key {unknown!r}{meant}: the agent has no context schema, so a call can only name its "
                '"critic". Give the agent a schema (context_schema=...) for further keys'
            )
    elif isinstance(context, Mapping) and "critic" in context and not _has_place(schema, "critic"):
        raise ConfigurationError(
            f"the agent's context schema {schema.__name__} has no field `critic`: name the critic of a call by "
            'config={"configurable": {"critic": ...}}'
        )


def _means_critic(key: Any) -> bool:
    return key != "critic" and bool(difflib.get_close_matches(str(key).lower(), ["critic"], cutoff=0.8))


def _has_place(schema: Any, name: str) -> bool:
    """Whether a context may have this key: a mapping may have any key, a class its fields."""
    if is_dataclass(schema):
        return name in {field.name for field in fields(schema)}
    return not (isinstance(schema, type) and issubclass(schema, BaseModel)) or name in schema.model_fields


class Call(NamedTuple):
    """The context, critic and notes of a call."""

    context: Any
    """The agent's own run-time context."""
    critic: Any
    """The critic of this call, a string or an object; None: not named."""
    critic_from: str
    """Place of the critic: "context" or "configurable"."""
    notes: tuple[str, ...] = ()
    """Notes for the run."""


def read_call(agent: Agent, context: Any, config: RunnableConfig) -> Call:
    """Take the critic out of a call's context, or else read it from `configurable`."""
    named, source = None, "context"
    if isinstance(context, Mapping) and "critic" in context:
        named = context["critic"]
        context = {key: value for key, value in context.items() if key != "critic"}
    if isinstance(context, Mapping) and not context and agent.builder.context_schema is None:
        context = None
    if named is None:
        named, source = config.get("configurable", {}).get("critic"), "configurable"
    # Any library may add keys to `configurable`, so unknown keys are not refused.
    misspelt = [key for key in _own_keys(config) if named is None and _means_critic(key)]
    notes = tuple(f"configurable has {key!r}, which amc does not read: did you mean 'critic'?" for key in misspelt)
    return Call(context, named, source, notes)


def particle_config(config: RunnableConfig) -> RunnableConfig:
    """Return the config of particles: tracing, tags and the user's `configurable` of the outer run.

    It omits the keys that tie a run to its thread and checkpoint, and the handlers that stream: tokens and events of
    all N particles would reach the user's stream.
    """
    manager = AsyncCallbackManager.configure(inheritable_callbacks=config.get("callbacks"))
    for handler in [*manager.handlers]:
        if hasattr(handler, "tap_output_aiter"):
            manager.remove_handler(handler)
    inherited = {key: value for key, value in _own_keys(config).items() if key not in ("thread_id", "critic")}
    inner: RunnableConfig = {"callbacks": manager, "configurable": inherited}
    # Without a user's limit a node sees LangChain's default; leaving it out applies LangGraph's, which is far higher.
    if config.get("recursion_limit", DEFAULT_RECURSION_LIMIT) != DEFAULT_RECURSION_LIMIT:
        inner["recursion_limit"] = config["recursion_limit"]
    if config.get("tags"):
        inner["tags"] = [tag for tag in config["tags"] if not tag.startswith(("graph:", "seq:"))]
    if config.get("metadata"):
        inner["metadata"] = {
            key: value for key, value in config["metadata"].items() if not key.startswith(("langgraph_", "checkpoint"))
        }
    return inner


def _own_keys(config: RunnableConfig) -> dict[str, Any]:
    """Return the user's keys of `configurable`, without those that LangGraph adds."""
    return {
        key: value for key, value in config.get("configurable", {}).items() if not key.startswith(("__", "checkpoint"))
    }


def _state_channels(agent: Agent) -> list[str]:
    return [name for name in agent.channels if not name.startswith(("__", "branch:"))]


def _listed(names: Iterable[str], most: int = 6) -> str:
    ordered = list(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more
