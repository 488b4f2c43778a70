"""Counts what the wrapped agent's models use, whatever they are and wherever the agent calls them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from amc_agents.usage import Meter, Usage


class PolicyMeter(BaseCallbackHandler):
    """Adds every model call below it to a meter, under the role "policy"."""

    run_inline = True
    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    ignore_custom_event = True

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_chat_model_start(self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **_: Any) -> None:
        """Nothing: without it, every prompt would be made into one text for `on_llm_start`."""

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any) -> None:
        """Count one request. Each of its n candidates carries the usage of all: it is counted once."""
        usage = Usage(calls=1, missing=1)
        for generation in (one for batch in response.generations for one in batch):
            if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
                reported = generation.message.usage_metadata
                if reported is not None:
                    cached = reported.get("input_token_details", {}).get("cache_read", 0)
                    usage = Usage(1, reported["input_tokens"], reported["output_tokens"], cached or 0)
                    break
        self._meter.add("policy", usage)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any) -> None:
        """A failed request is a request."""
        self._meter.add("policy", Usage(calls=1, missing=1))
