"""Estimates of regret and information for LLM-IDS: two concurrent questions per action."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.judge.style import plain_lines
from amc_agents.decisions.asking import Answers
from amc_agents.psrl.experience import experience
from amc_agents.psrl.roles import DECIMAL, Role
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
