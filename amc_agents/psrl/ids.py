"""LLM-IDS: information-directed sampling, with language models that say what actions cost and teach (section 6.2.2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from amc_agents.errors import ConfigurationError, DecisionError
from amc_agents.models.seeding import use_rng
from amc_agents.psrl.estimates import Estimates, Estimator, ExactEstimator
from amc_agents.psrl.exact.known import exact_model
from amc_agents.psrl.experience import experience
from amc_agents.psrl.information_ratio import least_information_ratio
from amc_agents.psrl.learning import Exact, Learning, LearningAgent
from amc_agents.psrl.possible_actions import Actions, possible_actions
from amc_agents.psrl.posterior.updates import PosteriorMemory
from amc_agents.psrl.roles import Updater
from amc_agents.types import Step, Task, Trajectory

KnownEstimates = OrderedDict[tuple[Any, ...], Estimates]
"""Estimates by posterior and state."""
MOST_CACHED = 1000
"""States whose estimates are kept."""


@dataclass(frozen=True)
class IdsDecision:
    """What was done, and why. `A` actions."""

    action: str
    """What was drawn."""
    actions: tuple[str, ...]
    """`[A]` those there were."""
    regrets: tuple[float, ...]
    """`[A]` expected regret of each."""
    gains: tuple[float, ...]
    """`[A]` expected information of each, in bits."""
    probabilities: tuple[float, ...]
    """`[A]` what it was drawn from; at most two are above 0."""
    ratio: float
    """Expected regret squared per bit; inf where there is something to lose and nothing to learn."""
    cached: bool
    """The estimates were known from before."""

    def as_plain(self) -> dict[str, Any]:
        """For events and traces."""
        return {key: list(one) if isinstance(one, tuple) else one for key, one in asdict(self).items()}


class InformationDirectedChoice:
    """Draws actions from the distribution with the least information ratio.

    Two actions at most have a chance. Where an action costs nothing, the most instructive of those is taken; where none
    teaches anything, the one that costs least.

    Args:
        estimator: says what they cost and teach. It is asked once for a state and a posterior.
        known: what it has said; made here where it is not shared with others.
    """

    def __init__(self, estimator: Estimator, known: KnownEstimates | None = None) -> None:
        self._estimator, self._known = estimator, OrderedDict() if known is None else known

    async def choose(
        self, world: str, posterior: str, trajectory: Trajectory, actions: Sequence[str], rng: np.random.Generator
    ) -> IdsDecision:
        """One decision.

        Args:
            world: its rules.
            posterior: what is believed.
            trajectory: what led to the state.
            actions: `[A]` what can be done there.
            rng: draws the action.

        Raises:
            RoleError: an estimate could not be had.
            DecisionError: there is no action, or one is listed twice.
        """
        listed = tuple(actions)
        if not listed or len(set(listed)) < len(listed):
            raise DecisionError(f"expected different actions to choose from, got {list(listed)}")
        state = (world, posterior, trajectory.task.instruction, experience(trajectory.steps), listed)
        found = self._known.get(state)
        cached = found is not None
        if found is None:
            found = self._known[state] = await self._estimator.estimates(world, posterior, trajectory, listed)
            if len(self._known) > MOST_CACHED:
                self._known.popitem(last=False)
        regrets, gains = found
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


class LlmInformationDirected(LearningAgent):
    """Draws each action by what it costs and what it teaches, and learns after every step.

    Args:
        memory: where the posterior is kept, with its prior.
        estimator: says what actions cost and teach.
        updater: writes the posterior anew.
        actions: what can be done: all that there is, or a function of the state. None: what the task's world lists.
        learning: when the posterior is updated. Default: after each step, as in the paper.
        world: the rules, for all roles; None: the instruction of the episode's task.
    """

    def __init__(
        self,
        memory: PosteriorMemory,
        estimator: Estimator | Exact,
        updater: Updater | Exact,
        *,
        actions: Actions | None = None,
        learning: Learning | None = None,
        world: str | None = None,
    ) -> None:
        super().__init__(memory, updater, learning or Learning(update="step"), world)
        self.decision: IdsDecision | None = None
        """The newest one."""
        self._estimator, self._actions = estimator, actions
        self._choice: InformationDirectedChoice | None = None

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """As `LearningAgent`; nothing is drawn before a step."""
        await super().begin(task, rng)
        if self._choice is None:
            self._choice = InformationDirectedChoice(_estimator(self._estimator, task))

    async def act(self, trajectory: Trajectory) -> Step:
        """Draw an action.

        Raises:
            RoleError: an estimate could not be had. What was seen until now is kept.
        """
        assert self._choice is not None
        with use_rng(self._rng):
            self.decision = await self._choice.choose(
                self._world, self._posterior, trajectory, possible_actions(self._actions, trajectory), self._rng
            )
        return Step(self.decision.action)


def _estimator(given: Estimator | Exact, task: Task) -> Estimator:
    if given != "exact":
        return given
    model: Any = exact_model(task)
    if not hasattr(model, "stakes"):
        raise ConfigurationError(
            f"for the world of {task.id!r} there is no exact regret and information: give an estimator of your own"
        )
    return ExactEstimator(model)
