"""A chat model whose answers come from a function, for unit tests of agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

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
