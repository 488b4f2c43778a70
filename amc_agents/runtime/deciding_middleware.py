"""What the middlewares of one decision have in common: each model call is answered by a deciding chat model."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langgraph.types import Command

from amc_agents.runtime.deciding_model import DecidingModel, Record, Sink
from amc_agents.runtime.sampling_actor import unbound

_log = logging.getLogger(__name__)

MOST_KEPT = 100
"""Decisions that the state keeps, so that long conversations do not grow by them."""


def latest(kept: list[Record] | None, new: list[Record]) -> list[Record]:
    """The newest decisions: the reducer of the state's channel."""
    return [*(kept or []), *new][-MOST_KEPT:]


class DecidingMiddleware(AgentMiddleware[Any, Any, Any]):
    """Answers each model call by a decision.

    Args:
        keep_decisions: keep the records of decisions in the agent's private state.
    """

    channel: ClassVar[str]
    """Of the state, where the records go."""

    def __init__(self, *, keep_decisions: bool) -> None:
        super().__init__()
        self._keep = keep_decisions

    @abstractmethod
    def _face(self, actor: BaseChatModel, bound: dict[str, Any], sink: Sink, system_is_task: bool) -> DecidingModel:
        """The chat model that decides, around one actor."""

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Answer by a decision."""
        records: list[Record] = []
        return self._recorded(handler(self._deciding(request, records)), records)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Answer by a decision."""
        records: list[Record] = []
        return self._recorded(await handler(self._deciding(request, records)), records)

    def _deciding(self, request: ModelRequest[Any], records: list[Record]) -> ModelRequest[Any]:
        actor, bound = unbound(request.model)
        has_prompt = request.system_message is not None
        return request.override(model=self._face(actor, bound, records.append, not has_prompt))

    def _recorded(
        self, response: ModelResponse[Any], records: list[Record]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        if not records:
            _log.warning(
                "%s decided nothing: a middleware after it has answered, or replaced the model", type(self).__name__
            )
        if not records or not self._keep:
            return response
        return ExtendedModelResponse(response, Command(update={self.channel: records}))
