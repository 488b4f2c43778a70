"""LLM-IDS: information-directed sampling with estimates by language models (LLM-PSRL, section 6.2.2).

The information ratio is (expected regret)^2 / expected information gain. It is convex in the distribution over `A`
actions, and some minimum has at most two actions. The minimum over a pair has a closed form, so no grid search is
needed. Regret and information of each action are estimated by two concurrent questions.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.judge.style import plain_lines
from amc_agents.decisions import Answers
from amc_agents.errors import DecisionError
from amc_agents.psrl.roles import DECIMAL, Role, experience
from amc_agents.types import FloatArray, Trajectory


class Estimates(NamedTuple):
    """Estimates for the `A` actions in one state."""

    regrets: FloatArray
    """`[A]` expected regret, in the world's reward units."""
    gains: FloatArray
    """`[A]` expected information about optimal behaviour, in bits."""


class Estimator(Protocol):
    """Estimates the regret and the information of actions under a posterior."""

    async def estimates(self, world: str, posterior: str, trajectory: Trajectory, actions: Sequence[str]) -> Estimates:
        """Return the estimates for the actions in the trajectory's last state."""
        ...


KnownEstimates = OrderedDict[tuple[Any, ...], Estimates]
"""Cache of estimates, keyed by posterior and state."""
MOST_CACHED = 1000
"""Maximum number of cached estimates."""


@dataclass(frozen=True)
class IdsDecision:
    """A decision with its estimates, for `A` actions."""

    action: str
    """The action drawn."""
    actions: tuple[str, ...]
    """`[A]` the possible actions."""
    regrets: tuple[float, ...]
    """`[A]` expected regret."""
    gains: tuple[float, ...]
    """`[A]` expected information in bits."""
    probabilities: tuple[float, ...]
    """`[A]` distribution of the draw; at most two are positive."""
    ratio: float
    """Squared expected regret per bit; inf if some regret is expected but no information."""
    cached: bool
    """True if the estimates came from the cache."""

    def as_plain(self) -> dict[str, Any]:
        """Return a dictionary of plain values, for events and traces."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


class InformationDirectedChoice:
    """Draws actions from the distribution with the least information ratio.

    At most two actions have positive probability. If actions without regret exist, the most informative of them is
    taken. If no action is informative, the action with the least regret is taken.

    Args:
        estimator: estimates regret and information, once per state and posterior.
        known: cache of its estimates; None for a cache of its own.
    """

    def __init__(self, estimator: Estimator, known: KnownEstimates | None = None) -> None:
        self._estimator, self._known = estimator, OrderedDict() if known is None else known

    async def choose(
        self, world: str, posterior: str, trajectory: Trajectory, actions: Sequence[str], rng: np.random.Generator
    ) -> IdsDecision:
        """Draw an action.

        Args:
            world: the rules of the world.
            posterior: the posterior's text.
            trajectory: the steps that led to the current state.
            actions: `[A]` the possible actions.
            rng: generator for the draw.

        Raises:
            RoleError: an estimate failed.
            DecisionError: `actions` is empty or has a duplicate.
        """
        listed = tuple(actions)
        if not listed or len(set(listed)) < len(listed):
            raise DecisionError(f"expected different actions to choose from, got {list(listed)}")
        state = (world, posterior, trajectory.task.instruction, experience(trajectory.steps), listed)
        estimates = self._known.get(state)
        cached = estimates is not None
        if estimates is None:
            estimates = self._known[state] = await self._estimator.estimates(world, posterior, trajectory, listed)
            if len(self._known) > MOST_CACHED:
                self._known.popitem(last=False)
        regrets, gains = estimates
        best = least_information_ratio(regrets, gains)
        drawn = int(rng.choice(len(listed), p=best.probabilities))
        return IdsDecision(
            action=listed[drawn],
            actions=listed,
            regrets=tuple(regrets.tolist()),
            gains=tuple(gains.tolist()),
            probabilities=tuple(best.probabilities.tolist()),
            ratio=best.ratio,
            cached=cached,
        )


_BETTER = 1e-12
"""Relative margin by which a mixture must improve on the best single action."""


class InformationDirected(NamedTuple):
    """A distribution over actions and its information ratio."""

    probabilities: FloatArray
    """`[A]` probabilities of the actions; at most two are positive."""
    ratio: float
    """Squared regret per unit of information; inf if some regret is expected but no information."""


def least_information_ratio(regrets: npt.ArrayLike, gains: npt.ArrayLike) -> InformationDirected:
    """Minimise (E regret)^2 / E gain exactly.

    Degenerate cases: an action without regret has ratio 0 for any gain, and among several the one with the largest gain
    is taken. If no action has a gain, the action with the least regret is taken. Ties go to the first action.

    Args:
        regrets: `[A]` expected regret of each action, at least 0.
        gains: `[A]` expected information about optimal behaviour, at least 0, in any unit.

    Raises:
        DecisionError: the shapes differ, there is no action, or a number is negative or not finite.

    >>> least_information_ratio([0.2, 0.6], [0.1, 1.0]).probabilities.round(3).tolist()
    [0.722, 0.278]
    """
    regret, gain = _checked(regrets, gains)
    single = _ratio(regret, gain)
    # Ties in the ratio are broken by regret, then by gain.
    best = int(np.lexsort((-gain, regret, single))[0])
    probabilities = np.zeros(len(regret))
    probabilities[best] = 1.0
    ratio = float(single[best])
    first, second = np.triu_indices(len(regret), k=1)
    if len(first):
        share = _best_share(regret[first], regret[second], gain[first], gain[second])
        mixed = _ratio(_mean(share, regret, first, second), _mean(share, gain, first, second))
        pair = int(np.argmin(mixed))
        if mixed[pair] < ratio * (1 - _BETTER):
            probabilities[:] = 0.0
            probabilities[first[pair]], probabilities[second[pair]] = share[pair], 1 - share[pair]
            ratio = float(mixed[pair])
    return InformationDirected(probabilities, ratio)


def _best_share(regret_1: FloatArray, regret_2: FloatArray, gain_1: FloatArray, gain_2: FloatArray) -> FloatArray:
    # The stationary point of the ratio. If one action is better in both respects it is not a minimum, and if regrets or
    # gains are equal it does not exist. In these cases an endpoint is optimal, which the single actions cover.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = regret_2 / (regret_1 - regret_2) - 2 * gain_2 / (gain_1 - gain_2)
    return np.clip(np.nan_to_num(share, nan=1.0, posinf=1.0, neginf=0.0), 0.0, 1.0)


def _mean(
    share: FloatArray, numbers: FloatArray, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> FloatArray:
    return share * numbers[first] + (1 - share) * numbers[second]


def _ratio(regret: FloatArray, gain: FloatArray) -> FloatArray:
    ratio = np.full(np.shape(regret), np.inf)
    with np.errstate(over="ignore"):  # A gain near 0 may give inf, which is correct.
        np.divide(regret**2, gain, out=ratio, where=gain > 0)
    return np.where(regret > 0, ratio, 0.0)


def _checked(regrets: npt.ArrayLike, gains: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    regret, gain = np.asarray(regrets, dtype=np.float64), np.asarray(gains, dtype=np.float64)
    if regret.ndim != 1 or regret.shape != gain.shape or not len(regret):
        raise DecisionError(
            f"expected a regret and a gain for each action, got shapes {regret.shape} and {gain.shape}: give both"
        )
    for name, numbers in (("regret", regret), ("information gain", gain)):
        if not (np.isfinite(numbers).all() and (numbers >= 0).all()):
            raise DecisionError(
                f"expected every {name} to be finite and at least 0, got {numbers.tolist()}: correct the estimator"
            )
    return regret, gain


class ChatEstimator:
    """Estimates by two language models, one for regret and one for information, with 2A concurrent requests.

    Args:
        regret: sends prompts to the model that estimates the expected regret or, with `best_return`, the return.
        information: sends prompts to the model that estimates the expected information.
        best_return: return of an optimal policy, if known (1 for the lock). The model then estimates the return of each
            action, which is easier, and the regret is the difference.
        regret_prompt: a template with {world}, {posterior}, {episode} and {action}.
        information_prompt: a template with the same fields.
        timeout: time limit for each question; see `amc_agents.psrl.roles.Role`.
    """

    def __init__(
        self,
        regret: Answers,
        information: Answers,
        *,
        best_return: float | None = None,
        regret_prompt: str | None = None,
        information_prompt: str | None = None,
        timeout: float | None = None,
    ) -> None:
        default = REGRET if best_return is None else RETURN
        self._regret = Role("regret estimator", regret, regret_prompt or default, _FIELDS, timeout, marked=True)
        self._information = Role(
            "information estimator", information, information_prompt or INFORMATION, _FIELDS, timeout, marked=True
        )
        self._best_return = best_return

    async def estimates(self, world: str, posterior: str, trajectory: Trajectory, actions: Sequence[str]) -> Estimates:
        """Return the estimates. Raises `RoleError` if a model gives no number."""
        state = {"world": world, "posterior": posterior, "episode": experience(trajectory.steps)}
        rows = [{**state, "action": action} for action in actions]
        mark = REGRET_IS if self._best_return is None else RETURN_IS
        # A return may be negative or exceed `best_return`.
        least = 0.0 if self._best_return is None else -math.inf
        costs, gains = await side_by_side(
            self._regret.ask_all(_number_after(mark, least), rows),
            self._information.ask_all(_number_after(GAIN_IS, 0.0), rows),
        )
        regrets = np.array(costs)
        if self._best_return is not None:
            regrets = np.maximum(self._best_return - regrets, 0.0)
        return Estimates(regrets, np.array(gains))


def _number_after(mark: str, least: float) -> Callable[[str], float | None]:
    number = re.compile(rf"\s?({DECIMAL})\D*")

    def read(text: str) -> float | None:
        # The last mark counts: a model that reasons aloud may use it earlier.
        _, found, rest = "\n".join(plain_lines(text)).casefold().rpartition(mark.casefold())
        match = number.fullmatch(rest) if found else None
        value = float(match[1]) if match else math.nan
        return value if math.isfinite(value) and value >= least else None

    return read


_FIELDS = ("world", "posterior", "episode", "action")
REGRET_IS, RETURN_IS, GAIN_IS = "Expected regret:", "Expected return:", "Information gain:"
"""Marks that introduce the numbers."""

_STATE = """\
An agent explores a world over many episodes. These are the rules that it was told:

<world>
{world}
</world>

This is what is known about the world by now, and how uncertain it is:

<posterior>
{posterior}
</posterior>

This is what happened in the episode until now:

<episode>
{episode}
</episode>

The agent considers this action:

<action>
{action}
</action>

"""

REGRET = (
    _STATE
    + """\
How much would it lose? The regret of an action is what the best policy would earn from here on, less what is earned \
by this action followed by the best policy. Take the expectation over everything that may be true by what is known, \
each possibility as often as it is likely. Rather say too much than too little. Show the calculation in short, then \
end with one line of this form, a decimal number of at least 0:

Expected regret: <number>\
"""
)

RETURN = (
    _STATE
    + """\
How much would be earned over the rest of the episode by this action, if the best policy, one that knows the world, \
chooses every later one? It cannot undo this action. Take the expectation over everything that may be true by what is \
known, each possibility as often as it is likely. Rather say too little than too much. Show the calculation in short, \
then end with one line of this form, a decimal number:

Expected return: <number>\
"""
)

INFORMATION = (
    _STATE
    + """\
How much would the agent learn about how to act best by seeing what comes of it? That is the mutual information, in \
bits, between the best policy and the outcome: how much less uncertain the best policy is expected to be afterwards. \
A poor action may teach much; where the best policy is known already, no action teaches anything. Rather say too \
little than too much. Show the calculation in short, then end with one line of this form, a decimal number of at least \
0:

Information gain: <number>\
"""
)
