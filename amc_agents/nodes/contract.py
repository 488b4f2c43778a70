"""What `amc` asks of the agent that it wraps, and how the outer run's settings reach its particles."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, NotRequired

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from pydantic import BaseModel
from typing_extensions import TypedDict

from amc_agents.errors import AgentContractError, ConfigurationError

Agent = CompiledStateGraph[Any, Any, Any, Any]


def check_agent(agent: Any, *, has_world: bool, stateless_tools: bool, gives_trajectory: bool) -> None:
    """Refuse, by name, an agent that cannot be run as particles.

    Raises:
        AgentContractError: says what to declare or change.
    """
    if not isinstance(agent, CompiledStateGraph):
        raise AgentContractError(
            f"amc() wraps a compiled graph, got {type(agent).__name__}: pass create_agent(...) or builder.compile()"
        )
    if agent.interrupt_before_nodes or agent.interrupt_after_nodes:
        raise AgentContractError(
            "the agent was compiled with interrupt_before or interrupt_after, whose pauses amc() needs for its own: "
            "compile it without, and interrupt in the graph around it"
        )
    if not gives_trajectory and "messages" not in agent.channels:
        raise AgentContractError(
            f"the agent's state has no `messages` (it has {', '.join(sorted(_state_channels(agent)))}): give "
            "trajectory=, a function from its state to a Trajectory"
        )
    tools = sorted(_tool_names(agent))
    if tools and not has_world and not stateless_tools:
        raise AgentContractError(
            f"the agent has tools ({', '.join(tools)}), and every particle would run them for real, N times over. "
            "Give environment= if they act on a world that can be forked, or stateless_tools=True if they may be "
            "repeated without harm"
        )


def pausing_nodes(agent: Agent, step_after: str | Sequence[str] | None) -> tuple[str, ...]:
    """The nodes after which the agent pauses: one pause is one step.

    Raises:
        AgentContractError: where there is none, which would be a silent Best-of-N, or a name is unknown.
    """
    known = [name for name in agent.nodes if name != "__start__"]
    if step_after is None:
        found = [name for name in known if name == "tools" or isinstance(agent.nodes[name].bound, ToolNode)]
    else:
        found = [step_after] if isinstance(step_after, str) else list(step_after)
        unknown = sorted(set(found) - set(known))
        if unknown:
            raise AgentContractError(f"step_after names {', '.join(unknown)}; the agent's nodes are {', '.join(known)}")
    if not found:
        raise AgentContractError(
            "no node of the agent ends a step: none holds a ToolNode or is named `tools` at the top level, and "
            f"without pauses nothing can be resampled. Name some by step_after=[...]; its nodes: {', '.join(known)}"
        )
    return tuple(found)


def as_mapping(state: Any) -> dict[str, Any]:
    """A graph's state as a dictionary, whatever its schema: TypedDict, pydantic or dataclass."""
    if isinstance(state, Mapping):
        return dict(state)
    if isinstance(state, BaseModel):
        return {name: getattr(state, name) for name in type(state).model_fields}
    if is_dataclass(state):
        return {field.name: getattr(state, field.name) for field in fields(state)}
    raise AgentContractError(f"the agent's state is a {type(state).__name__}; amc() needs one with named channels")


class AmcContext(TypedDict):
    """The run-time context of a graph whose agent has no context schema of its own."""

    critic: NotRequired[str]
    """A critic's string, for this call alone."""


def check_context(schema: Any, context: Any) -> None:
    """Refuse what a call's context says and nobody would read.

    Args:
        schema: the graph's context schema: the agent's own, or `AmcContext`.
        context: what was given for this call.

    Raises:
        ConfigurationError: an unknown key, where the agent has no schema of its own; or a critic, where the agent's
            schema is a class that has no place for it.
    """
    if schema is AmcContext:
        if context is not None and not isinstance(context, Mapping):
            raise ConfigurationError(
                f"context= is a {type(context).__name__}, and the agent has no context schema: give the agent one "
                '(context_schema=...), or a dictionary with a "critic"'
            )
        unknown = next((key for key in context or () if key != "critic"), None)
        if unknown is not None:
            meant = ", did you mean 'critic'?" if _means_critic(unknown) else ""
            raise ConfigurationError(
                f"context= has no key {unknown!r}{meant}: the agent has no context schema, so a call can name its "
                '"critic" alone. Give the agent a schema (context_schema=...) for keys of its own'
            )
    elif isinstance(context, Mapping) and "critic" in context and not _has_place(schema, "critic"):
        raise ConfigurationError(
            f"the agent's context schema {schema.__name__} has no field `critic`: name the critic of a call by "
            'config={"configurable": {"critic": ...}}'
        )


def _means_critic(key: Any) -> bool:
    return key != "critic" and bool(difflib.get_close_matches(str(key).lower(), ["critic"], cutoff=0.8))


def _has_place(schema: Any, name: str) -> bool:
    """Whether a context may have this key: a mapping any, a class its fields."""
    if is_dataclass(schema):
        return name in {field.name for field in fields(schema)}
    return not (isinstance(schema, type) and issubclass(schema, BaseModel)) or name in schema.model_fields


class Call(NamedTuple):
    """What one call brings along."""

    context: Any
    """The agent's own run-time context."""
    critic: Any
    """The critic for this call, a string or an object; None: it names none."""
    critic_from: str
    """"context", or else "configurable"."""
    notes: tuple[str, ...] = ()
    """What the run's notes say of it."""


def read_call(agent: Agent, context: Any, config: RunnableConfig) -> Call:
    """Take the critic out of a call's context: the context goes first, then `configurable`."""
    named, source = None, "context"
    if isinstance(context, Mapping) and "critic" in context:
        named = context["critic"]
        context = {key: value for key, value in context.items() if key != "critic"}
    if isinstance(context, Mapping) and not context and agent.builder.context_schema is None:
        context = None
    if named is None:
        named, source = config.get("configurable", {}).get("critic"), "configurable"
    # Keys of `configurable` may be anybody's, so none is refused.
    misspelt = [key for key in config.get("configurable", {}) if named is None and _means_critic(key)]
    notes = tuple(f"configurable has {key!r}, which amc does not read: did you mean 'critic'?" for key in misspelt)
    return Call(context, named, source, notes)


def particle_config(config: RunnableConfig, *handlers: BaseCallbackHandler) -> RunnableConfig:
    """What particles inherit of the outer run's config: tracing, tags and the user's own `configurable`.

    Left out: everything that ties a run to its thread and checkpoint, and the handlers that stream (tokens and
    events of all N particles would reach the user's stream).
    """
    manager = AsyncCallbackManager.configure(inheritable_callbacks=config.get("callbacks"))
    for handler in [*manager.handlers]:
        if hasattr(handler, "tap_output_aiter"):
            manager.remove_handler(handler)
    for handler in handlers:
        manager.add_handler(handler)
    inherited = {
        key: value
        for key, value in config.get("configurable", {}).items()
        if not key.startswith(("__pregel", "checkpoint")) and key not in ("thread_id", "critic")
    }
    found: RunnableConfig = {"callbacks": manager, "configurable": inherited}
    # A node sees LangChain's default where the user gave none; LangGraph's own, far higher, then holds.
    if config.get("recursion_limit", DEFAULT_RECURSION_LIMIT) != DEFAULT_RECURSION_LIMIT:
        found["recursion_limit"] = config["recursion_limit"]
    if config.get("tags"):
        found["tags"] = [tag for tag in config["tags"] if not tag.startswith(("graph:", "seq:"))]
    if config.get("metadata"):
        found["metadata"] = {
            key: value for key, value in config["metadata"].items() if not key.startswith(("langgraph_", "checkpoint"))
        }
    return found


def _state_channels(agent: Agent) -> list[str]:
    return [name for name in agent.channels if not name.startswith(("__", "branch:"))]


def _tool_names(agent: Agent) -> set[str]:
    subgraphs = [subgraph for _, subgraph in agent.get_subgraphs(recurse=True)]
    return {
        name
        for graph in [agent, *subgraphs]
        if isinstance(graph, Pregel)
        for node in graph.nodes.values()
        if isinstance(node.bound, ToolNode)
        for name in node.bound.tools_by_name
    }
