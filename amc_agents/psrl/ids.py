"""LLM-IDS: information-directed sampling with estimates by language models (section 6.2.2)."""

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
from amc_agents.quoting import quoted
from amc_agents.types import Step, Task, Trajectory

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


class LlmInformationDirected(LearningAgent):
    """Draws each action by its regret and its information, and learns after every step.

    Args:
        memory: where the posterior is stored, with its prior.
        estimator: estimates regret and information.
        updater: writes the new posterior.
        actions: all actions, or a function of the trajectory. None for the actions that the task's world lists.
        learning: settings of the updates. Default: an update after each step, as in the paper.
        world: the rules, for all roles; None for the instruction of the episode's task.
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
        """The last decision."""
        self._estimator, self._actions = estimator, actions
        self._choice: InformationDirectedChoice | None = None

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Apply pending evidence. Nothing is drawn before the first step."""
        await super().begin(task, rng)
        if self._choice is None:
            self._choice = InformationDirectedChoice(_estimator(self._estimator, task))

    async def act(self, trajectory: Trajectory) -> Step:
        """Draw an action.

        Raises:
            RoleError: an estimate failed. The steps so far are stored.
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
            f"the world of task {quoted(task.id)} has no exact regret and information: give an estimator"
        )
    return ExactEstimator(model)
