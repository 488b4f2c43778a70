"""What a classic agent knows of the kind of world that it is in: a prior, the exact update, and how to plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from amc_agents.psrl.exact.priors import Prior
from amc_agents.types import FloatArray, Step, Task, Trajectory

Policy = Callable[[Trajectory], str]
"""The action in the state that a trajectory has led to."""
PriorT = TypeVar("PriorT", bound=Prior)


class ExactModel(Protocol[PriorT]):
    """A class of worlds with a conjugate prior. Holds nothing that an agent has learnt."""

    def prior(self, task: Task) -> PriorT:
        """What is believed before anything was seen; of the task only what its instruction tells may be used."""
        ...

    def updated(self, posterior: PriorT, step: Step) -> PriorT:
        """What is believed after one more step, by Bayes' rule. A lost turn teaches nothing."""
        ...

    def policy(self, task: Task, hypothesis: Any) -> Policy:
        """The optimal policy where the hypothesis, drawn by `posterior.sample`, is the truth; ties go to the first."""
        ...


class Stakes(NamedTuple):
    """What each action costs and teaches in one state."""

    actions: tuple[str, ...]
    """`[A]`"""
    regrets: FloatArray
    """`[A]` E[V*_h(s) - Q*_h(s, a)] under the posterior."""
    gains: FloatArray
    """`[A]` I(optimal policy; what the step shows | a), in bits."""


class InformedModel(ExactModel[PriorT], Protocol[PriorT]):
    """A model for which regret and information are exact, too."""

    def stakes(self, posterior: PriorT, trajectory: Trajectory) -> Stakes:
        """Of all actions in the state that the trajectory has led to."""
        ...
