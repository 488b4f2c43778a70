"""A state of a search tree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage

from amc_agents.types import Environment, Trajectory


@dataclass(eq=False)
class Node:
    """A state, with the statistics that MCTS keeps on it."""

    trajectory: Trajectory
    messages: tuple[BaseMessage, ...]
    """The agent's dialogue up to this state."""
    world: Environment | None
    """The world in this state; None after the expansion, or at an end."""
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    value: float = 0.0
    """The critic's prediction of the whole return, later replaced by the mean of the returns that were backed up."""
    visits: int = 0
    """Number of returns that were backed up."""
    closed: bool = False
    """True if nothing below this state can be expanded any more."""

    def path(self) -> Iterator[Node]:
        """Iterate from this node up to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def uct(self, exploration: float) -> float:
        """Return the value plus w sqrt(ln N(parent) / N); a state that was never visited counts as visited once."""
        above = self.parent.visits if self.parent else 1
        return self.value + exploration * math.sqrt(math.log(max(above, 1)) / max(self.visits, 1))

    def back_up(self, reached: float) -> None:
        """Add a return to the mean of every state on the path to the root."""
        for node in self.path():
            node.visits += 1
            node.value = (node.value * (node.visits - 1) + reached) / node.visits

    def close(self) -> None:
        """Mark a state below which nothing is left, and the states above it to which the same applies."""
        self.closed = True
        for node in self.path():
            if node.children and all(child.closed for child in node.children):
                node.closed = True
