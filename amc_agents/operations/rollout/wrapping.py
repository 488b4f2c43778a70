"""Wrap a compiled graph in a graph with the same schemas that delegates its calls."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel

Agent = CompiledStateGraph[Any, Any, Any, Any]

_OF_CALLS = ("cache", "checkpointer", "config", "store")
"""Fields of a graph that do not depend on its nodes."""
_ACCEPTED = {*signature(CompiledStateGraph.__init__).parameters, *signature(Pregel.__init__).parameters}


def fields_of(agent: Agent) -> dict[str, Any]:
    """Return the fields with which a compiled graph is created again, without those that a subclass adds."""
    return {name: value for name, value in agent.__dict__.items() if name in _ACCEPTED}


def updated(agent: Agent, update: Mapping[str, Any] | None) -> Agent:
    """Copy an agent with the fields of an update that do not depend on its nodes."""
    return agent.copy({name: value for name, value in (update or {}).items() if name in _OF_CALLS})
