"""The possible actions in a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amc_agents.envs.exploration import Instance
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Trajectory

Actions = Sequence[str] | Callable[[Trajectory], Sequence[str]]
"""All actions, or a function of the trajectory."""


def possible_actions(given: Actions | None, trajectory: Trajectory) -> Sequence[str]:
    """Return the possible actions in a trajectory's last state.

    Args:
        given: the actions, or a function that lists them; None for the actions that the task's world lists.
        trajectory: the trajectory.

    Raises:
        ConfigurationError: `given` is None and the task's world lists no actions.
    """
    if given is not None:
        return given(trajectory) if callable(given) else given
    if isinstance(trajectory.task.payload, Instance):
        return trajectory.task.payload.actions
    raise ConfigurationError(
        f"this method chooses among actions, and the world of task {quoted(trajectory.task.id)} does not list them: "
        "give actions="
    )
