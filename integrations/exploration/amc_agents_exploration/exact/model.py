"""The protocol of exact models: a prior, the exact update, and the optimal policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from amc_agents.psrl.posterior.priors import Prior
from amc_agents.types import FloatArray, Step, Task, Trajectory

Policy = Callable[[Trajectory], str]
"""Maps a trajectory to the action in its last state."""
PriorT = TypeVar("PriorT", bound=Prior)


class ExactModel(Protocol[PriorT]):
    """A class of worlds with a conjugate prior. The model is stateless."""

    def prior(self, task: Task) -> PriorT:
        """Return the belief before any observation. It may use only the facts in the task's instruction."""
        ...

    def updated(self, posterior: PriorT, step: Step) -> PriorT:
        """Return the posterior after a step, by Bayes' rule. A lost turn changes nothing."""
        ...

    def policy(self, task: Task, hypothesis: Any) -> Policy:
        """Return the optimal policy if the hypothesis, drawn by `posterior.sample`, is true. Ties go to the first."""
        ...


class Stakes(NamedTuple):
    """Regret and information of each action in one state."""

    actions: tuple[str, ...]
    """`[A]` the possible actions."""
    regrets: FloatArray
    """`[A]` E[V*_h(s) - Q*_h(s, a)] under the posterior."""
    gains: FloatArray
    """`[A]` I(optimal policy; observation | a), in bits."""


class InformedModel(ExactModel[PriorT], Protocol[PriorT]):
    """A model with exact regret and information."""

    def stakes(self, posterior: PriorT, trajectory: Trajectory) -> Stakes:
        """Return the stakes of all actions in the trajectory's last state."""
        ...
