"""What goes into a LAC decision, and what comes out of it.

`K` samples, `A` distinct candidate actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from amc_agents.decisions.samples import Sample
from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray, Step, Trajectory

BoolArray = npt.NDArray[np.bool_]

Prior = Literal["frequency", "likelihood", "thoughts"]
PRIORS = ("frequency", "likelihood", "thoughts")
MAX_DEPTH = 4
"""Steps imagined at most (LAC, appendix B)."""


class Rescorer(Protocol):
    """Scores given texts by the policy."""

    async def log_likelihoods(self, thoughts: Sequence[str], actions: Sequence[str]) -> FloatArray:
        """`[K, A]` log pi(action a | thought k): whole strings, end token included, at the sampling temperature."""
        ...


class Imagination(Protocol):
    """A forward model: what may come after an action."""

    async def imagine(self, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """`[A]` the trajectories, whose last step has no observation yet, continued in the mind.

        The last step gets its imagined observation (and reflection, up to just before the verdict), and further steps
        follow. All advance together, one round trip per depth; one that has its verdict stops.
        """
        ...


@dataclass(frozen=True)
class LacSettings:
    """How a decision is made.

    The defaults are not the paper's method: without rollouts and reflections they are its ablation "w/o rollout, w/o
    reflection", which needs two round trips a decision instead of seven. `LacSettings.paper()` is the method with both;
    `docs/lac.md` has the other ablations.
    """

    k: int = 5
    """K, samples of the policy."""
    alpha: float = 1.0
    """Weight of the critic; 0 is a vote by the prior, infinity the critic alone."""
    prior: Prior = "frequency"
    """How the policy's own opinion is measured; see `amc_agents.lac.improvement`."""
    greedy: bool = False
    """The policy's turn at temperature 0 is made a candidate too."""
    sample: bool = False
    """The action is drawn from the improved policy; otherwise its likeliest is taken."""
    returns: tuple[float, float] = (0.0, 1.0)
    """Returns of failure and success, between which a value is a probability of success."""
    use_critic: bool = True
    """Off: neither critic nor forward model is asked."""
    depth: int = 0
    """Steps imagined after each candidate, at most 4; 0: Q is read at the action itself."""
    reflect: bool = False
    """Past and imagined steps get a reflection. The past ones are written by whoever calls, before the decision."""
    on_critic_error: Literal["raise", "uniform"] = "raise"
    """"uniform": where the critic fails, Q = 0 for all and a note says so."""

    @classmethod
    def paper(cls, **changes: Any) -> LacSettings:
        """The method of the paper: four imagined steps, and reflections on past and imagined steps.

        The faces take the same as `depth=4, reflect=True`.

        Args:
            changes: other settings, as the constructor takes them. The paper tunes `alpha`.
        """
        return cls(**{"depth": MAX_DEPTH, "reflect": True, **changes})

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.k < 1:
            raise ConfigurationError(f"k is a number of samples, at least 1, got {self.k}")
        if not self.alpha >= 0:
            raise ConfigurationError(f"alpha must be at least 0, got {self.alpha}")
        if self.prior not in PRIORS:
            raise ConfigurationError(f"prior is one of {', '.join(PRIORS)}, got {self.prior!r}")
        if not 0 <= self.depth <= MAX_DEPTH:
            raise ConfigurationError(f"depth is 0 to {MAX_DEPTH} imagined steps, got {self.depth}")
        low, high = self.returns
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigurationError(f"returns are those of failure and success, in order, got {self.returns}")
        if self.on_critic_error not in ("raise", "uniform"):
            raise ConfigurationError(f'on_critic_error is "raise" or "uniform", got {self.on_critic_error!r}')


@dataclass(frozen=True, slots=True)
class Candidate:
    """One distinct action, and what is known of it."""

    thought: str
    """Of the greedy turn where it does this, else of the first sample that does."""
    action: str
    n: int
    """Samples that do this; 0 for one that only the greedy turn brought, or that the world listed."""
    log_prior: float
    """Log-probability among the candidates."""
    q: float
    """Log-odds of success, 0 where no critic was asked."""
    probability: float
    """By the improved policy."""
    imagined: tuple[Step, ...] = ()
    """The rollout: this action with its imagined observation, then the imagined steps after it."""
    flagged: bool = False
    """The critic says that its Q is a bound or a stand-in."""
    p_good: float | None = None
    """Probability of the word for success, of which Q was made; None: the critic reads no words."""
    p_bad: float | None = None
    """Probability of the word for failure."""
    greedy: bool = False
    """The greedy turn does this."""

    @property
    def mass(self) -> float | None:
        """Probability of both words together; where it is small, the model was not answering."""
        return None if self.p_good is None or self.p_bad is None else self.p_good + self.p_bad


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen, and why."""

    candidates: tuple[Candidate, ...]
    """`[A]` in the order in which they were first sampled."""
    chosen: int
    """Index of the choice."""
    prior: str
    """The prior that was used: "frequency", "likelihood", "thoughts", or "list" over a world's list of actions."""
    alpha: float
    """The weight that the critic had; 0 where it was not asked."""
    sample: Sample
    """The greedy turn where it does the chosen action, else the first sample that does."""
    notes: tuple[str, ...] = ()
    """What a reader has to know: samples dropped, answers not to be trusted."""
    round_trips: int = 0
    """Model calls that had to wait for one another; a last imagined step that could not be read is not in it."""
    seconds: float = 0.0
    """Time that it took."""

    def as_plain(self) -> dict[str, Any]:
        """As JSON values, for a graph's state, an event or a trace."""
        candidates = [
            {**asdict(one), "mass": one.mass, "imagined": [_plain(step) for step in one.imagined]}
            for one in self.candidates
        ]
        for one in candidates:
            # JSON has no infinity.
            one["log_prior"] = one["log_prior"] if math.isfinite(one["log_prior"]) else None
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
