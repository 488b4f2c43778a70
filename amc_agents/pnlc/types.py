"""What goes into a PNLC decision, and what comes out of it.

`G` goals, `K` sampled thoughts.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from amc_agents.decisions.samples import Actor, Sample
from amc_agents.errors import ConfigurationError
from amc_agents.types import Trajectory

Basis = Literal["goals", "value", "self"]
BASES = ("goals", "value", "self")


@runtime_checkable
class Thinker(Actor, Protocol):
    """The agent at the state that is to be decided. Nothing that it is asked here is carried out."""

    async def answer(self, prompt: str) -> str:
        """What it says to a question about its own decision, in words: no tool is called."""
        ...

    async def act(self, thought: str) -> Sample:
        """The turn that it takes, having decided on a thought."""
        ...


class Proposed(NamedTuple):
    """Goals that were thought of."""

    positive: tuple[str, ...]
    """What would be good for the task."""
    negative: tuple[str, ...]
    """What would be bad for it."""
    round_trips: int = 1
    """Model calls that had to wait for one another: 2 where an answer had to be asked for again."""


class Proposer(Protocol):
    """Thinks of what may become of a thought."""

    async def propose(self, trajectory: Trajectory, thought: str, n_positive: int, n_negative: int) -> Proposed:
        """So many goals of each kind, for the newest state; for any thought where it is empty.

        Raises `DecisionError` where its answer cannot be read, `CriticError` where its model failed.
        """
        ...


@runtime_checkable
class PreparedCritic(Protocol):
    """A goal critic that can read a state before there is a thought to judge."""

    async def prepare(self, trajectory: Trajectory) -> None:
        """Do what needs no thought yet: it goes on beside the thinking."""
        ...


@dataclass(frozen=True)
class PnlcSettings:
    """How a decision is made. The defaults are the paper's; `docs/pnlc.md` has its ablations."""

    n_positive: int = 2
    """Good outcomes that are imagined for each thought; n = 4 goals in all."""
    n_negative: int = 2
    """Bad ones."""
    m: int = 2
    """Thoughts made at most, the first one included; 1: the agent as it is, and nothing is asked."""
    refine: bool = True
    """Off: the best of `k` sampled thoughts, for policies that cannot read a critique."""
    k: int = 5
    """K, thoughts sampled where `refine` is off."""
    critique: Basis = "goals"
    """What is said of a thought: likelihoods of "goals", by a goal critic; its "value" alone, the likelihood of success
    by a critic that LAC takes; or what the model says of it "self", without a critic."""
    returns: tuple[float, float] = (0.0, 1.0)
    """Returns of failure and success, between which a value is a probability; for `critique="value"`."""
    on_critic_error: Literal["raise", "uniform"] = "raise"
    """"uniform": where the proposer or the critic fails, the first thought stands and a note says so."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if min(self.n_positive, self.n_negative) < 0 or self.n_positive + self.n_negative < 1:
            raise ConfigurationError(
                f"at least one goal is needed, got n_positive={self.n_positive} and n_negative={self.n_negative}"
            )
        if self.m < 1:
            raise ConfigurationError(f"m is a number of thoughts, at least 1, got {self.m}")
        if self.k < 1:
            raise ConfigurationError(f"k is a number of thoughts, at least 1, got {self.k}")
        if self.critique not in BASES:
            raise ConfigurationError(f"critique is one of {', '.join(BASES)}, got {self.critique!r}")
        low, high = self.returns
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigurationError(f"returns are those of failure and success, in order, got {self.returns}")
        if self.on_critic_error not in ("raise", "uniform"):
            raise ConfigurationError(f'on_critic_error is "raise" or "uniform", got {self.on_critic_error!r}')

    @property
    def needs_critic(self) -> bool:
        """Whether a critic is asked."""
        return self.critique != "self" and (self.m > 1 or not self.refine)

    @property
    def needs_proposer(self) -> bool:
        """Whether goals are proposed."""
        if not self.refine:
            return self.critique == "goals"
        return self.critique != "value" and self.m > 1


@dataclass(frozen=True, slots=True)
class Goal:
    """A future that may come of a thought."""

    text: str
    positive: bool
    """Good for the task, or bad."""
    likelihood: float
    """How likely it is reached, in [0, 1]: a probability where the critic is calibrated."""


@dataclass(frozen=True, slots=True)
class Considered:
    """A thought, and what was said of it."""

    thought: str
    """As the agent wrote it; its action where it wrote none."""
    goals: tuple[Goal, ...] = ()
    """`[G]` the good ones first; none where it was not judged by goals."""
    score: float | None = None
    """Likelihood of success; with goals the mean likelihood of the good ones less that of the bad ones. None: the
    thought was not judged."""
    critique: str = ""
    """In words, as the agent was told."""
    answer: str = ""
    """What the agent said to it."""


@dataclass(frozen=True, slots=True)
class PnlcDecision:
    """What was decided, and why."""

    thoughts: tuple[Considered, ...]
    """In the order in which they were made; of sampled ones, each distinct turn once."""
    chosen: int
    """Index of the thought that is acted on."""
    sample: Sample
    """The turn."""
    notes: tuple[str, ...] = ()
    """What a reader has to know: an answer that could not be read, a critic that failed."""
    round_trips: int = 0
    """Calls that had to wait for one another, the critic's included where it computes in this process."""
    seconds: float = 0.0
    """Time that it took."""

    def as_plain(self) -> dict[str, Any]:
        """As JSON values, for a graph's state, an event or a trace."""
        return {
            "thought": self.thoughts[self.chosen].thought,
            "action": self.sample.action,
            "chosen": self.chosen,
            "thoughts": [{**asdict(one), "goals": [asdict(goal) for goal in one.goals]} for one in self.thoughts],
            "round_trips": self.round_trips,
            "notes": list(self.notes),
            "seconds": self.seconds,
        }
