"""Chat models whose answers come from a function, for tests of agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

from amc_agents.envs.replay import ReplayFork
from amc_agents.errors import ConfigurationError
from amc_agents.models.seeding import particle_rng
from amc_agents.runtime.world import RecordingWorld, current_environment

Respond = Callable[[Sequence[BaseMessage]], "str | AIMessage | Exception"]
"""Maps a conversation to the answer. An exception is raised as the model's error."""


class ScriptedChatModel(BaseChatModel):
    """Answers with `respond(messages)`, after `delay` seconds in async calls. Binding tools has no effect."""

    respond: Respond
    delay: float = 0.0
    """Duration of an async call in seconds."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Return the model itself."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if self.delay:
            time.sleep(self.delay)
        return self._result(messages)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if self.delay:
            await asyncio.sleep(self.delay)
        return self._result(messages)

    def _result(self, messages: list[BaseMessage]) -> ChatResult:
        answer = self.respond(messages)
        if isinstance(answer, Exception):
            raise answer
        message = AIMessage(answer) if isinstance(answer, str) else answer.model_copy()
        return ChatResult(generations=[ChatGeneration(message=message)])


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
