"""Inputs and outputs of a LAC decision. `K` samples, `A` distinct candidate actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from amc_agents.decisions import Sample, require_returns
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.settings import OnCriticError, require_literal
from amc_agents.types import FloatArray, Step, Trajectory

BoolArray = npt.NDArray[np.bool_]

Prior = Literal["frequency", "likelihood", "thoughts"]
PRIORS = ("frequency", "likelihood", "thoughts")
MAX_DEPTH = 4
"""Maximum number of imagined steps (LAC, appendix B)."""


class Rescorer(Protocol):
    """Scores actions under the policy."""

    async def log_likelihoods(self, thoughts: Sequence[str], actions: Sequence[str]) -> FloatArray:
        """Return `[K, A]` log pi(action a | thought k) of whole strings, end token included.

        The temperature is the sampling temperature.
        """
        ...


class Imagination(Protocol):
    """A forward model: predicts what follows an action."""

    async def imagine(self, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Return `[A]` the trajectories, continued by imagined observations and steps.

        The last step of each input has no observation yet. It gets an imagined observation and reflection, cut before
        the verdict, and further steps follow. All trajectories advance together, one round trip per step; a trajectory
        stops at its verdict.
        """
        ...


@dataclass(frozen=True)
class LacSettings:
    """Settings of a decision.

    The defaults are the paper's ablation "w/o rollout, w/o reflection", which needs two round trips per decision
    instead of seven. `LacSettings.paper()` is the full method; `docs/lac.md` lists the other ablations.

    Raises:
        ConfigurationError: a value is out of range.
    """

    k: int = 5
    """K, number of samples of the policy."""
    alpha: float = 1.0
    """Weight of the critic; 0: a vote by the prior, infinity: the critic alone."""
    prior: Prior = "frequency"
    """Estimate of the policy's own preference; see `amc_agents.lac.improvement`."""
    greedy: bool = False
    """Add the policy's turn at temperature 0 to the candidates."""
    sample: bool = False
    """Draw the action from the improved policy; if False, take its most likely action."""
    returns: tuple[float, float] = (0.0, 1.0)
    """Returns of failure and success; a value between them is read as a probability of success."""
    use_critic: bool = True
    """If False, neither the critic nor the forward model is called."""
    depth: int = 0
    """Number of steps imagined after each candidate, at most 4; 0: Q is read at the action itself."""
    reflect: bool = False
    """Add reflections to past and imagined steps. The caller writes those on past steps, before the decision."""
    on_critic_error: OnCriticError = "raise"
    """"uniform": if the critic fails, Q = 0 for all candidates, so the prior decides; if the world model fails to
    reflect, the decision continues without the reflection. Notes say so."""

    @classmethod
    def paper(cls, **changes: Any) -> LacSettings:
        """Return the settings of the paper: four imagined steps, and reflections on past and imagined steps.

        For the middleware, the model and the node these are `depth=4, reflect=True`.

        Args:
            changes: other settings of the constructor. The paper tunes `alpha`.
        """
        return cls(**{"depth": MAX_DEPTH, "reflect": True, **changes})

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.k < 1:
            raise ConfigurationError(f"k must be a number of samples of at least 1, got {self.k}")
        if not self.alpha >= 0:
            raise ConfigurationError(f"alpha must be at least 0, got {self.alpha}")
        if self.prior not in PRIORS:
            raise ConfigurationError(f"prior must be one of {', '.join(PRIORS)}, got {quoted(self.prior)}")
        if not 0 <= self.depth <= MAX_DEPTH:
            raise ConfigurationError(f"depth must be 0 to {MAX_DEPTH} imagined steps, got {self.depth}")
        require_returns(self.returns)
        require_literal("on_critic_error", self.on_critic_error, OnCriticError)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A distinct action with its statistics."""

    thought: str
    """The thought of the greedy turn if it takes this action, else of the first sample that does."""
    action: str
    n: int
    """Number of samples that take this action; 0 if only the greedy turn or the world's list contains it."""
    log_prior: float
    """Log-probability among the candidates."""
    q: float
    """Log-odds of success; 0 without a critic."""
    probability: float
    """Probability under the improved policy."""
    imagined: tuple[Step, ...] = ()
    """The rollout: this action with its imagined observation, then further imagined steps."""
    flagged: bool = False
    """True if the critic marks its Q as a bound or a substitute value."""
    p_good: float | None = None
    """Probability of the word for success, from which Q is computed; None: the critic reads no words."""
    p_bad: float | None = None
    """Probability of the word for failure."""
    greedy: bool = False
    """True if the greedy turn takes this action."""

    @property
    def mass(self) -> float | None:
        """Probability of both words together; if it is small, the model did not answer the question."""
        return None if self.p_good is None or self.p_bad is None else self.p_good + self.p_bad


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen action and how it was chosen."""

    candidates: tuple[Candidate, ...]
    """`[A]` in the order of their first sample."""
    chosen: int
    """Index of the chosen candidate."""
    prior: str
    """The prior: "frequency", "likelihood", "thoughts", or "list" over a world's list of actions."""
    alpha: float
    """Weight of the critic; 0 if it was not called."""
    sample: Sample
    """The greedy turn if it takes the chosen action, else the first sample that does."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader: dropped samples, unreliable answers."""
    round_trips: int = 0
    """Number of sequential model calls; a last imagined step that could not be parsed is not counted."""
    seconds: float = 0.0
    """Duration in seconds."""

    def as_plain(self) -> dict[str, Any]:
        """Return JSON values, for a graph's state, an event or a trace."""
        candidates = [
            {**asdict(candidate), "mass": candidate.mass, "imagined": [_plain(step) for step in candidate.imagined]}
            for candidate in self.candidates
        ]
        for candidate in candidates:
            # JSON has no infinity.
            candidate["log_prior"] = candidate["log_prior"] if math.isfinite(candidate["log_prior"]) else None
        return {
            "action": self.sample.action,
            "chosen": self.chosen,
            "prior": self.prior,
            "alpha": self.alpha if math.isfinite(self.alpha) else "infinity",
            "candidates": candidates,
            "round_trips": self.round_trips,
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def _plain(step: Step) -> dict[str, str]:
    return {"thought": step.thought, "action": step.action, "observation": step.observation}
