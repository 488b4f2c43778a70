"""Where a run's rewards come from: the worlds, a function of the agent's state, both, or nowhere."""

from __future__ import annotations

from typing import Literal, get_args

from amc_agents.errors import ConfigurationError

RewardSource = Literal["world", "function", "both"]
"""The worlds' own rewards, those of `reward=`, or their sum."""


def reward_source(
    given: RewardSource | Literal[False] | None, *, has_world: bool, has_function: bool
) -> RewardSource | None:
    """The source that counts; None: there are no rewards.

    Args:
        given: `rewards=` of `amc`; None: the only source there is.
        has_world: the agent acts in worlds.
        has_function: `reward=` was given.

    Raises:
        ConfigurationError: two sources and nobody said which counts, or one that was named and is not there.
    """
    if given is None:
        if has_world and has_function:
            raise ConfigurationError(
                'environment= and reward= may both give rewards: say which count by rewards="world", "function" or '
                '"both" (their sum)'
            )
        return "world" if has_world else "function" if has_function else None
    if given is not False and given not in get_args(RewardSource):
        raise ConfigurationError(f'rewards must be "world", "function", "both" or False, got {given!r}')
    if given is False:
        if has_function:
            raise ConfigurationError("rewards=False says that there are none: leave reward= out")
        return None
    if given != "function" and not has_world:
        raise ConfigurationError(f'rewards="{given}" needs worlds that give them: give environment=')
    if given != "world" and not has_function:
        raise ConfigurationError(f'rewards="{given}" needs a function that gives them: give reward=')
    return given
