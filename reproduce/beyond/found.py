"""What the searches of this folder run on, and what they return.

A search runs on any model with steps and values; reproduce/tests/test_beyond.py runs them where the answer is known. It
returns weighted final states, whose weights are unbiased shares of Z = E_pi[exp(R_T / beta)].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from amc_agents.smc import log_sum_exp
from amc_agents.types import FloatArray


class StateLike(Protocol):
    """What a search knows of a state."""

    @property
    def finished(self) -> bool:
        """Whether the trajectory has ended."""
        ...


S = TypeVar("S", bound=StateLike)


class Model(Protocol[S]):
    """A policy in a world, and a critic."""

    async def begin(self, n: int) -> list[S]:
        """Return n particles before their first step."""
        ...

    async def step(self, states: Sequence[S]) -> list[S]:
        """Move unfinished states by one step."""
        ...

    async def values(self, states: Sequence[S]) -> FloatArray:
        """`[N]` the expected whole return of each state."""
        ...


@dataclass
class Found(Generic[S]):
    """The final states of a search."""

    states: list[S] = field(default_factory=list)
    log_weights: list[float] = field(default_factory=list)
    """Absolute log-weights."""
    values: list[float] = field(default_factory=list)
    """Final values: the pick without rewards."""

    def add(self, state: S, log_weight: float, value: float) -> None:
        """Store a final state."""
        self.states.append(state)
        self.log_weights.append(log_weight)
        self.values.append(value)

    @property
    def log_evidence(self) -> float:
        """Log of the estimate of Z."""
        return float(log_sum_exp(np.array(self.log_weights)))
