"""What `amc` asks of the agent that it wraps, and how the outer run's settings reach its particles."""

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
    """Refuse, by name, an agent that cannot be run as particles.

    Raises:
        AgentContractError: says what to declare or change.
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
            "the agent was compiled with interrupt_before or interrupt_after, whose pauses amc() needs for its own: "
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
    """Refuse tools and pausing nodes (and one named `tools`) of which nobody has said what they do.

    The most specific declaration holds: of `tools` by the tool's name, at the tool, of `tools` by the node's name,
    at last `stateless_tools`.

    Raises:
        AgentContractError: names them and the ways to declare them.
        ConfigurationError: for an effect that is not known.
    """
    if not isinstance(tools, Mapping):
        raise ConfigurationError(f'tools= says what each tool does, as {{"search": "read"}}, got {tools!r:.100}')
    for declared in tools.values():
        check_effect(declared)
    names = set(agent.nodes)
    undeclared: dict[str, str] = {}
    of_the_world: set[str] = set()
    for node, pregel_node in agent.nodes.items():
        for part in parts_of(pregel_node.bound):
            if part.name is None and part.effect is None and node not in (*step_after, "tools"):
                continue
            name = part.name or node
            names.add(name)
            said = tools.get(name) or part.effect or tools.get(node)
            if part.store and said != "read":
                what = f"{'node' if part.name is None else 'tool'} {name}"
                raise AgentContractError(_OWN_STORE.format(what=what, store=part.store, name=name))
            kind = said or ("read" if stateless_tools else None)
            if kind is None:
                undeclared[name] = f"{'node' if part.name is None else 'tool'} {name}"
            elif kind == "world":
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
            f"every particle would run {_listed(undeclared.values())} for real, N times over. Declare what they do: "
            f'amc(..., tools={{"{first}": "read"}}), or @effect("read") at the function or tool ("read": may be '
            'repeated without harm; "world": acts on the particle\'s own world), or stateless_tools=True: all "read"'
        )
    if of_the_world and not has_world:
        raise AgentContractError(
            f'declared as "world", acting on the particle\'s own world: {_listed(sorted(of_the_world))}. Those need '
            "environment=, a function of the agent's input that gives (Environment, Task)"
        )


_OWN_STORE = (
    "{what} holds a store ({store}): all particles would write to it, and read each other's writes. Let it use the "
    "agent's store, which each particle sees in its own way: an argument `runtime: ToolRuntime` (runtime.store), or "
    'get_store(), and create_agent(..., store=store). If it only reads, say so: amc(..., tools={{"{name}": "read"}})'
)


def pausing_nodes(agent: Agent, step_after: str | Sequence[str] | None) -> tuple[str, ...]:
    """The nodes after which the agent pauses: one pause is one step.

    Raises:
        AgentContractError: where there is none, which would be a silent Best-of-N, or a name is unknown.
    """
    known = [name for name in agent.nodes if name != "__start__"]
    if step_after is None:
        found = [name for name in known if name == "tools" or has_tool_node(agent.nodes[name].bound)]
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
                f"context= is of type {type(context).__name__}, and the agent has no context schema: give it one "
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
    misspelt = [key for key in _own_keys(config) if named is None and _means_critic(key)]
    notes = tuple(f"configurable has {key!r}, which amc does not read: did you mean 'critic'?" for key in misspelt)
    return Call(context, named, source, notes)


def particle_config(config: RunnableConfig) -> RunnableConfig:
    """What particles inherit of the outer run's config: tracing, tags and the user's own `configurable`.

    Left out: everything that ties a run to its thread and checkpoint, and the handlers that stream (tokens and
    events of all N particles would reach the user's stream).
    """
    manager = AsyncCallbackManager.configure(inheritable_callbacks=config.get("callbacks"))
    for handler in [*manager.handlers]:
        if hasattr(handler, "tap_output_aiter"):
            manager.remove_handler(handler)
    inherited = {key: value for key, value in _own_keys(config).items() if key not in ("thread_id", "critic")}
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


def _own_keys(config: RunnableConfig) -> dict[str, Any]:
    """What the user put into `configurable`; LangGraph adds keys of its own."""
    return {
        key: value for key, value in config.get("configurable", {}).items() if not key.startswith(("__", "checkpoint"))
    }


def _state_channels(agent: Agent) -> list[str]:
    return [name for name in agent.channels if not name.startswith(("__", "branch:"))]


def _listed(names: Iterable[str], most: int = 6) -> str:
    ordered = list(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more
