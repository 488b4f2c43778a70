"""Nodes of an agent that are run again after a rate limit, when the gate of the run opens."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import RetryPolicy

from amc_agents.concurrency.rate_gate import current_gate
from amc_agents.runtime.contract import Agent
from amc_agents.runtime.effects import parts_of


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
