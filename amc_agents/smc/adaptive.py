"""How many particles a run has, and when it may stop: the arithmetic of `n_particles=Adaptive(...)`.

The size of a population may change at a resampling: M offspring of N weighted particles get 1/M of their total weight
each, so every expectation stays unchanged if M depends only on what is known before the draw (`filter.resample`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Self

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted

_FORM = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class Adaptive:
    """A number of particles that follows the difficulty of the task: `n_particles=Adaptive(start=4, most=32)`.

    A run starts with few particles, draws more offspring at each resampling point where the answer is undecided, and
    ends when the answer is decided. If all particles have ended and the answer is undecided, another round of new
    particles begins.
    """

    start: int = 4
    """Number of particles at the start, and the minimum later."""
    most: int = 32
    """Maximum number of particles side by side, those of earlier rounds included."""
    confidence: float = 0.95
    """The run ends when the probability that another particle would overtake the answer is at most 1 - confidence."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, size in (("start", self.start), ("most", self.most)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ConfigurationError(f"Adaptive: {name} must be a whole number of at least 1, got {quoted(size)}")
        if self.start > self.most:
            raise ConfigurationError(f"Adaptive: start={self.start} must not exceed most={self.most}")
        if not 0.5 < self.confidence <= 1.0:
            raise ConfigurationError(f"Adaptive: confidence must lie in (0.5, 1], got {quoted(self.confidence)}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the form of configuration files and of the command line, such as "4..32".

        Raises:
            ConfigurationError: `text` has another form.
        """
        sizes = _FORM.fullmatch(text.strip())
        if sizes is None:
            raise ConfigurationError(
                f'expected a number of particles, or "start..most" such as "4..32", got {quoted(text)}'
            )
        return cls(int(sizes[1]), int(sizes[2]))

    def __str__(self) -> str:
        """The form of configuration files, with the confidence if it is not the default."""
        default = type(self).confidence
        return f"{self.start}..{self.most}" + ("" if self.confidence == default else f" at {self.confidence:g}")

    def decides(self, overtaking: float) -> bool:
        """Return whether the answer is decided.

        Args:
            overtaking: probability that another particle would overtake the answer.
        """
        return overtaking <= 1.0 - self.confidence + 1e-12

    def next_round(self, earlier: int) -> int:
        """Return the number of new particles after rounds that ended undecided: as many again; 0 at the maximum.

        Args:
            earlier: number of particles of the earlier rounds.
        """
        return max(0, min(earlier, self.most - earlier))

    def next_size(self, size: int, success: float, earlier: int = 0) -> int:
        """Return the number of offspring to draw at a resampling point where the answer is undecided.

        It suffices for at least one success with probability `confidence`. If the probability of success is unknown,
        the population doubles. It never shrinks.

        Args:
            size: N, the current number of particles.
            success: mean probability of success of the offspring; NaN if it is unknown.
            earlier: number of particles of the earlier rounds.

        >>> [Adaptive(4, 32).next_size(4, success) for success in (0.9, 0.3, 0.0, math.nan)]
        [4, 9, 32, 8]
        """
        if math.isnan(success):
            wanted = 2.0 * size
        elif success <= 0.0:
            wanted = math.inf
        elif success >= 1.0 or self.confidence == 1.0:
            wanted = 1.0 if success >= 1.0 else math.inf
        else:
            wanted = math.ceil(math.log(1.0 - self.confidence) / math.log1p(-success))
        return max(size, int(min(wanted, self.most - earlier)))


def overtaking_by_value(answer: float, success: float, most: int) -> float:
    """Bound the probability that another particle succeeds while the answer does not.

    It is at most the probability that the answer fails, and at most the expected number of successes if the largest
    population continued from the present states (union bound). Both hold for a calibrated critic and dependent
    particles.

    Args:
        answer: probability that the answer is a success: 0 or 1 if rewards are seen, else the critic's.
        success: largest probability of success of an unfinished particle; NaN if it is unknown.
        most: maximum number of particles.

    >>> overtaking_by_value(0.97, math.nan, 32)
    0.030000000000000027
    >>> overtaking_by_value(0.0, 0.001, 32)
    0.032
    """
    others = 1.0 if math.isnan(success) else most * success
    return min(1.0 - answer, others, 1.0)


def overtaking_by_agreement(votes: int, rival_votes: int) -> float:
    """Compute the probability that a rival answer is in truth the more frequent of the two.

    The share of the answer among the two has a uniform prior; given the votes it is Beta(votes + 1, rival_votes + 1),
    and the probability that it is below 1/2 is a binomial tail. Votes count as independent, which copies of one
    ancestor are not.

    Args:
        votes: number of finished particles with the answer.
        rival_votes: the largest number of finished particles with another answer.

    >>> [overtaking_by_agreement(votes, 0) for votes in (3, 4)]
    [0.0625, 0.03125]
    >>> overtaking_by_agreement(2, 2)
    0.5
    """
    n_draws = votes + rival_votes + 1
    return sum(math.comb(n_draws, k) for k in range(votes + 1, n_draws + 1)) / float(2**n_draws)
