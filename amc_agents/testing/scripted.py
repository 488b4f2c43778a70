"""A chat model that says what a function tells it to: for unit tests of agents, never for a claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

Respond = Callable[[Sequence[BaseMessage]], "str | AIMessage | Exception"]
"""What to say to a conversation; an exception is raised."""


class ScriptedChatModel(BaseChatModel):
    """Answers by `respond(messages)`, after `delay` seconds in async calls. Tools may be bound; they change nothing."""

    respond: Respond
    delay: float = 0.0
    """Seconds that an async call takes."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """The model itself: its script knows the tools."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
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
        said = self.respond(messages)
        if isinstance(said, Exception):
            raise said
        message = AIMessage(said) if isinstance(said, str) else said.model_copy()
        return ChatResult(generations=[ChatGeneration(message=message)])
