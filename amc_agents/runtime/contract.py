"""Check the agent that `amc` wraps (graph, pausing nodes, tools), and let its nodes wait after rate limits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import RetryPolicy
from pydantic import BaseModel

from amc_agents.concurrency.gather import current_gate
from amc_agents.critics.spec import near
from amc_agents.errors import AgentContractError, ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.runtime.effects import Deferred, Effect, attempts_of, check_effect, has_tool_node, parts_of

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
) -> Effects:
    """Check that every tool and every pausing node (also a node named `tools`) has a declared effect, and return them.

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
        raise ConfigurationError(f'tools= must map names to effects, as {{"search": "read"}}, got {quoted(tools, 100)}')
    for effect in tools.values():
        check_effect(effect)
    uses = list(_uses(agent, step_after, tools))
    for use in uses:
        if use.store and use.effect != "read":
            raise AgentContractError(_PRIVATE_STORE.format(label=use.label, store=use.store, name=use.name))
    _check_names(tools, {*agent.nodes, *(use.name for use in uses)})
    for use in uses:
        _check_commit(use)
    undeclared = {use.name: use.label for use in uses if use.effect is None and not use.inner}
    if undeclared and not stateless_tools:
        first = next(iter(undeclared))
        raise AgentContractError(
            f"every particle would run {_listed(undeclared.values())} for real, N times over. Declare their effects: "
            f'amc(..., tools={{"{first}": "read"}}), or @effect("read") at the function or tool ("read": may be '
            'repeated without harm; "world": acts on the particle\'s own world), or stateless_tools=True: all "read"'
        )
    of_the_world = {use.name for use in uses if use.effect == "world" and not use.inner}
    if of_the_world and not has_world:
        raise AgentContractError(
            f'declared as "world", acting on the particle\'s own world: {_listed(sorted(of_the_world))}. They need '
            "environment=, a function of the agent's input that returns (Environment, Task)"
        )
    return Effects(
        {use.name: use.effect for use in uses if use.effect is not None and use.tool},
        {use.name: use.effect for use in uses if use.effect is not None and attempts_of(use.effect) and not use.tool},
    )


class Effects(NamedTuple):
    """The declared effects of an agent."""

    tools: Mapping[str, Effect] = {}
    """Effect of each tool by name."""
    commit_nodes: Mapping[str, Effect] = {}
    """Effect of each node whose own code is a commit."""

    @property
    def has_doors(self) -> bool:
        """Whether particles may have to wait before a call."""
        return bool(self.commit_nodes) or any(effect not in ("read", "world") for effect in self.tools.values())


class _Use(NamedTuple):
    """A tool or a node's own code, as particles run it."""

    name: str
    label: str
    """The name with its kind, for errors."""
    effect: Effect | None
    store: str | None
    """Class of a store that it holds."""
    tool: bool
    """Whether it is a tool."""
    inner: bool
    """Whether only another tool calls it."""
    runs_here: bool
    """Whether this process runs it, and not the model's provider."""
    restarts: bool
    """Whether it is in a subgraph without memory, which runs again from its start after an interrupt."""


def _uses(agent: Agent, step_after: tuple[str, ...], tools: Mapping[str, Effect]) -> Iterator[_Use]:
    for node, pregel_node in agent.nodes.items():
        for part in parts_of(pregel_node.bound):
            if part.name is None and part.effect is None and node not in (*step_after, "tools"):
                continue
            name = part.name or node
            label = f"{'node' if part.name is None else 'tool'} {name}"
            # The declaration of a node covers its tools, but not those that its tools call.
            effect = tools.get(name) or part.effect or (None if part.inner else tools.get(node))
            is_tool = part.name is not None
            yield _Use(name, label, effect, part.store, is_tool, part.inner, part.runs_here, part.restarts)


def _check_commit(use: _Use) -> None:
    if isinstance(use.effect, Deferred) and not use.tool:
        raise AgentContractError(
            f"{use.label} is declared Deferred(...), which only a tool can be: move its action into a tool, or declare "
            'it "commit"'
        )
    if (attempts_of(use.effect) or isinstance(use.effect, Deferred)) and not use.runs_here:
        raise AgentContractError(
            f"{use.label} is declared {quoted(use.effect)}, but the model's provider runs it while it answers, so that "
            "no particle can wait before it: use a tool that this process runs"
        )
    if attempts_of(use.effect) and use.restarts:
        raise AgentContractError(
            f"{use.label} is declared {quoted(use.effect)} in a subgraph compiled with checkpointer=False, which runs "
            "again from its start after a pause: compile the subgraph without checkpointer="
        )


def _check_names(tools: Mapping[str, Effect], names: set[str]) -> None:
    known = sorted(names - {"__start__"})
    unknown = min(set(tools) - names, default=None)
    if unknown is not None:
        raise AgentContractError(
            f"tools= names {quoted(unknown)}, which is neither a tool nor a node of the agent{near(unknown, known)}. "
            f"It has {_listed(known)}"
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


def as_state(agent: Agent, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of channels as the agent's nodes see them: validated, and with the defaults of its state."""
    schema = agent.builder.state_schema
    if not (is_dataclass(schema) or issubclass(schema, BaseModel)):
        return dict(values)
    return as_mapping(schema(**{key: values[key] for key in agent.builder.schemas[schema] if key in values}))


def _state_channels(agent: Agent) -> list[str]:
    return [name for name in agent.channels if not name.startswith(("__", "branch:"))]


def _listed(names: Iterable[str], most: int = 6) -> str:
    ordered = list(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more


class _Patience(RetryPolicy):
    """LangGraph's retry policy with the pause of the context's gate, which is known only after the refusal."""

    @property
    def initial_interval(self) -> float:
        """Seconds before the node is run again."""
        gate = current_gate()
        return 0.0 if gate is None else gate.wait_s


def _is_refusal(error: Exception) -> bool:
    gate = current_gate()
    return gate is not None and gate.refused(error)


_PATIENCE = _Patience(
    backoff_factor=1.0, max_interval=float("inf"), max_attempts=1_000_000, jitter=False, retry_on=_is_refusal
)


def patient(agent: Agent, acting: Collection[str]) -> Agent:
    """Return an agent whose nodes are run again after a rate limit, except those that act on a world or in reality.

    Args:
        agent: the agent.
        acting: names of tools and nodes that act.
    """
    nodes = {name: _patient_node(name, node, acting) for name, node in agent.nodes.items()}
    return agent.copy(update={"nodes": nodes})


def _patient_node(name: str, node: Any, acting: Collection[str]) -> Any:
    if isinstance(node.bound, Pregel) and type(node.bound) is not CompiledStateGraph:
        return node  # A graph of this library or of a server, which handles its own rate limits.
    if isinstance(node.bound, CompiledStateGraph):
        # Only the node of the subgraph in which the request was refused is run again.
        nodes = {inner: _patient_node(inner, below, acting) for inner, below in node.bound.nodes.items()}
        bound = node.bound.copy(update={"nodes": nodes})
        return node.copy({"bound": bound, "subgraphs": [bound]})
    if name in acting or any(part.name in acting or part.effect not in (None, "read") for part in parts_of(node.bound)):
        return node
    return node.copy({"retry_policy": [_PATIENCE, *(node.retry_policy or ())]})
