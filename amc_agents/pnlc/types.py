"""Inputs and outputs of a PNLC decision. `G` goals, `K` sampled thoughts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from amc_agents.decisions import Actor, Sample, require_returns
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.settings import OnCriticError, require_literal
from amc_agents.types import Trajectory

Basis = Literal["goals", "value", "self"]
BASES = ("goals", "value", "self")


@runtime_checkable
class Thinker(Actor, Protocol):
    """The agent at the state of the decision. Its answers are not executed."""

    async def answer(self, prompt: str) -> str:
        """Answer a question about the decision as text, without calling a tool."""
        ...

    async def act(self, thought: str) -> Sample:
        """Return the turn that follows from a thought."""
        ...


class Proposed(NamedTuple):
    """Proposed goals."""

    positive: tuple[str, ...]
    """Good outcomes for the task."""
    negative: tuple[str, ...]
    """Bad outcomes for the task."""
    round_trips: int = 1
    """Number of sequential model calls: 2 if an answer had to be requested again."""


class Proposer(Protocol):
    """Proposes outcomes of a thought."""

    async def propose(self, trajectory: Trajectory, thought: str, n_positive: int, n_negative: int) -> Proposed:
        """Return the given numbers of goals for the newest state; an empty thought stands for any thought.

        Raises:
            DecisionError: the answer could not be parsed.
            CriticError: the model failed.
        """
        ...


@runtime_checkable
class PreparedCritic(Protocol):
    """A goal critic that can process a state before a thought exists."""

    async def prepare(self, trajectory: Trajectory) -> None:
        """Do the work that does not depend on the thought; runs concurrently with the policy."""
        ...


@dataclass(frozen=True)
class PnlcSettings:
    """Settings of a decision. The defaults are the paper's; `docs/pnlc.md` lists its ablations.

    Raises:
        ConfigurationError: a value is out of range.
    """

    n_positive: int = 2
    """Number of good outcomes proposed per thought; n = 4 goals in all."""
    n_negative: int = 2
    """Number of bad outcomes proposed per thought."""
    m: int = 2
    """Maximum number of thoughts, the first included; 1: the agent alone, without critique."""
    refine: bool = True
    """If False, take the best of `k` sampled thoughts, for policies that cannot read a critique."""
    k: int = 5
    """K, number of sampled thoughts if `refine` is False."""
    critique: Basis = "goals"
    """Basis of the critique: "goals": likelihoods of goals by a goal critic; "value": the likelihood of success by any
    critic that LAC takes; "self": likelihoods by the model itself, without a critic."""
    returns: tuple[float, float] = (0.0, 1.0)
    """Returns of failure and success; a value between them is read as a probability. For `critique="value"`."""
    on_critic_error: OnCriticError = "raise"
    """"uniform": if the proposer or the critic fails or cannot be parsed, the thought is kept, with a note."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if min(self.n_positive, self.n_negative) < 0 or self.n_positive + self.n_negative < 1:
            raise ConfigurationError(
                f"expected at least 1 goal, got n_positive={self.n_positive} and n_negative={self.n_negative}"
            )
        if self.m < 1:
            raise ConfigurationError(f"m must be a number of thoughts of at least 1, got {self.m}")
        if self.k < 1:
            raise ConfigurationError(f"k must be a number of thoughts of at least 1, got {self.k}")
        if self.critique not in BASES:
            raise ConfigurationError(f"critique must be one of {', '.join(BASES)}, got {quoted(self.critique)}")
        require_returns(self.returns)
        require_literal("on_critic_error", self.on_critic_error, OnCriticError)

    @property
    def needs_critic(self) -> bool:
        """True if the settings require a critic."""
        return self.critique != "self" and (self.m > 1 or not self.refine)

    @property
    def needs_proposer(self) -> bool:
        """True if the settings require a goal proposer."""
        if not self.refine:
            return self.critique == "goals"
        return self.critique != "value" and self.m > 1


@dataclass(frozen=True, slots=True)
class Goal:
    """A possible outcome of a thought."""

    text: str
    positive: bool
    """True if it is good for the task."""
    likelihood: float
    """Likelihood that it is reached, in [0, 1]; a probability if the critic is calibrated."""


@dataclass(frozen=True, slots=True)
class Considered:
    """A thought and its judgement."""

    thought: str
    """The thought as the agent wrote it; its action if it wrote no thought."""
    goals: tuple[Goal, ...] = ()
    """`[G]` good goals first; empty if the thought was not judged by goals."""
    score: float | None = None
    """Likelihood of success; with goals, the mean likelihood of the good goals minus that of the bad goals. None: not
    judged."""
    critique: str = ""
    """The critique in words, as the agent read it."""
    answer: str = ""
    """The agent's answer to the critique."""


@dataclass(frozen=True, slots=True)
class PnlcDecision:
    """The decision and how it was made."""

    thoughts: tuple[Considered, ...]
    """The thoughts in order; of sampled thoughts, each distinct turn once."""
    chosen: int
    """Index of the thought that leads to the turn."""
    sample: Sample
    """The agent's turn."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader: an answer that could not be parsed, a critic that failed."""
    round_trips: int = 0
    """Number of sequential calls; those of a critic count too if it computes in this process."""
    seconds: float = 0.0
    """Duration in seconds."""

    def as_plain(self) -> dict[str, Any]:
        """Return JSON values, for a graph's state, an event or a trace."""
        return {
            "thought": self.thoughts[self.chosen].thought,
            "action": self.sample.action,
            "chosen": self.chosen,
            "thoughts": [
                {**asdict(thought), "goals": [asdict(goal) for goal in thought.goals]} for thought in self.thoughts
            ],
            "round_trips": self.round_trips,
            "notes": list(self.notes),
            "seconds": self.seconds,
        }
