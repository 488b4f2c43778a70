"""The settings of a tree search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amc_agents.errors import ConfigurationError


@dataclass(frozen=True)
class TreeSettings:
    """Settings of a tree search. The policy proposes actions, and a critic evaluates the states that they lead to."""

    kind: Literal["beam", "mcts"]
    """"beam": Tree of Thoughts, breadth first. "mcts": LATS, without its reflections."""
    samples: int
    """K: turns sampled at each expanded state; equal turns become a single child."""
    width: int = 1
    """Beam only: states that are kept after each step."""
    max_calls: int = 200
    """MCTS only: no state is expanded if the policy's calls would exceed this number."""
    exploration: float = 1.0
    """MCTS only: w, the weight of the exploration term of UCT."""

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        if self.kind not in ("beam", "mcts") or min(self.samples, self.width) < 1 or self.exploration < 0:
            raise ConfigurationError(
                f"expected kind beam or mcts, samples and width of at least 1 and exploration of at least 0, got {self}"
            )
        if self.kind == "mcts" and self.max_calls < self.samples:
            raise ConfigurationError(
                f"max_calls={self.max_calls} does not allow a single expansion of {self.samples} samples: raise it"
            )
