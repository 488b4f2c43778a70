"""Translate between an agent's texts and the actions and observations of a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium
from gymnasium import spaces
from gymnasium.utils import seeding

from amc_agents.errors import ConfigurationError

Env: TypeAlias = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class GymnasiumTask:
    """Payload of a `Task` for a `GymnasiumWorld`: the arguments of the environment's `reset`."""

    seed: int
    """Seed of the episode."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the reset."""


def seed_generator(env: Env, seed: int) -> None:
    """Replace the generator that Gymnasium gives every environment, `env.unwrapped.np_random`."""
    env.unwrapped.np_random, _ = seeding.np_random(seed)


@dataclass(frozen=True)
class TextInterface:
    """A Gymnasium environment, and how an agent acts and observes in it by text."""

    make: Callable[[], Env]
    """Creates the environment, for example `partial(gymnasium.make, "Blackjack-v1")`."""
    action: Callable[[str], Any] | Mapping[str, Any] | None = None
    """Text -> action. A function raises `ValueError` for a text that is no action; a mapping lists all actions by
    name. None: the action is the text itself, in a `Text` space."""
    observation: Callable[[Any, Mapping[str, Any], Env], str] | None = None
    """(observation, info, environment) -> text. None: the observation is text."""
    rules: str = ""
    """The first lines of each task's instruction."""
    seed_future: Callable[[Env, int], None] = seed_generator
    """Seeds the randomness of all further steps. Override it for an environment with generators of its own."""

    def action_of(self, env: Env, text: str) -> Any:
        """Translate an action. Raises `ValueError` with the reason for a text that is no action."""
        if callable(self.action):
            return self.action(text)
        if self.action is not None:
            return self._listed(self.action, text)
        if not isinstance(env.action_space, spaces.Text):
            raise ConfigurationError(
                f"the environment's actions are not text but {env.action_space}: pass action=, a function or a mapping"
            )
        if not env.action_space.contains(text):
            raise ValueError(f"an action is a text of {env.action_space}")
        return text

    def text_of(self, env: Env, observation: Any, info: Mapping[str, Any]) -> str:
        """Translate an observation. Raises `ConfigurationError` if the result is not text."""
        text = observation if self.observation is None else self.observation(observation, info, env)
        if not isinstance(text, str):
            raise ConfigurationError(
                f"an observation must become text, and became a {type(text).__name__}: pass observation=, a function "
                "of (observation, info, environment)"
            )
        return text

    def instruction(self, env: Env, task: GymnasiumTask) -> str:
        """Reset an environment, and return the rules followed by the first observation."""
        observation, info = env.reset(seed=task.seed, options=dict(task.options))
        return "\n".join(filter(None, (self.rules, self.text_of(env, observation, info))))

    @staticmethod
    def _listed(actions: Mapping[str, Any], text: str) -> Any:
        name = " ".join(text.split()).rstrip(".").casefold()
        named = {known.casefold(): action for known, action in actions.items()}
        if name not in named:
            raise ValueError(f"the actions are: {', '.join(actions)}")
        return named[name]
