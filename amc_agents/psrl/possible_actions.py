"""What can be done in a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amc_agents.envs.exploration import Instance
from amc_agents.errors import ConfigurationError
from amc_agents.types import Trajectory

Actions = Sequence[str] | Callable[[Trajectory], Sequence[str]]
"""All that there is, or a function of the state."""


def possible_actions(given: Actions | None, trajectory: Trajectory) -> Sequence[str]:
    """The actions in the state that a trajectory has led to.

    Args:
        given: says so; None: the world of the trajectory's task lists them.
        trajectory: what led to the state.

    Raises:
        ConfigurationError: nobody lists them.
    """
    if given is not None:
        return given(trajectory) if callable(given) else given
    if isinstance(trajectory.task.payload, Instance):
        return trajectory.task.payload.actions
    raise ConfigurationError(
        f"this method chooses among actions, and the world of task {trajectory.task.id!r} does not list them: give "
        "actions="
    )
