"""A scripted policy for worlds that know an expert's next action. Its success says nothing about any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from langchain_core.messages import BaseMessage

from amc_agents.envs.replay import ReplayFork
from amc_agents.errors import ConfigurationError
from amc_agents.models.seeding import particle_rng
from amc_agents.runtime.world import RecordingWorld, current_environment
from amc_agents.testing.scripted import ScriptedChatModel


@runtime_checkable
class ExpertWorld(Protocol):
    """A world that knows what an expert would do in its current state."""

    def expert_action(self) -> str:
        """Return the expert's next action."""
        ...

    def random_action(self, rng: np.random.Generator) -> str:
        """Draw an action that is possible in the current state."""
        ...


def noisy_expert(error_rate: float) -> ScriptedChatModel:
    """Return a chat model that plays a particle's world as its expert does, with random errors.

    It reads the world instead of the conversation, so it is no agent: it stands in for a policy where none was trained.

    Args:
        error_rate: probability that an action is drawn by `random_action` instead, independently in each step.

    Raises:
        ConfigurationError: the rate is not a probability; when it plays, a world that is not an `ExpertWorld`.
    """
    if not 0.0 <= error_rate <= 1.0:
        raise ConfigurationError(f"error_rate must be from 0 to 1, got {error_rate}")

    def respond(messages: Sequence[BaseMessage]) -> str:
        world, rng = _expert_world(), particle_rng() or np.random.default_rng()
        wrong = rng.random() < error_rate
        return f"Action: {world.random_action(rng) if wrong else world.expert_action()}"

    return ScriptedChatModel(respond=respond)


def _expert_world() -> ExpertWorld:
    world: Any = current_environment()
    if isinstance(world, RecordingWorld):
        world = world.inner
    if isinstance(world, ReplayFork):
        world = world.world
    if not isinstance(world, ExpertWorld):
        raise ConfigurationError(
            f"noisy_expert needs a world with expert_action() and random_action(rng), got {type(world).__name__}"
        )
    return world
