"""Convert logged messages, in OpenAI's or LangChain's form, to those that an agent's state holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_messages
from langchain_core.output_parsers.openai_tools import parse_tool_call

from amc_agents.importing.runs import UnreadableRecord


def messages_of(logged: Any) -> list[BaseMessage]:
    """Convert logged messages.

    Raises:
        UnreadableRecord: they have another form.
    """
    if not isinstance(logged, Sequence) or isinstance(logged, str) or not logged:
        raise UnreadableRecord(f"expected a list of messages, got {type(logged).__name__}")
    try:
        return convert_to_messages([_plain(message) for message in logged])
    except (KeyError, TypeError, ValueError, NotImplementedError) as error:
        # The error's own text may quote the conversation.
        raise UnreadableRecord(
            f'a message has an unknown form ({type(error).__name__}): expected {{"role": ..., "content": ...}}'
        ) from None


def check_calls(messages: Sequence[BaseMessage]) -> None:
    """Refuse a conversation from which messages are missing.

    Raises:
        UnreadableRecord: a tool answers a call that no message makes.
    """
    called: set[str | None] = set()
    for message in messages:
        if isinstance(message, AIMessage):
            invalid = message.additional_kwargs.get("invalid_calls", [])
            called.update(call.get("id") for call in (*message.tool_calls, *invalid))
        elif isinstance(message, ToolMessage) and message.tool_call_id not in called:
            raise UnreadableRecord(
                "a tool answers a call that is not in the log: the conversation was shortened, so steps are lost. Log "
                "all messages, or import the agent's checkpointer"
            )


def _plain(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    # Exporters write null for fields that a message lacks, and a message that only calls tools may have no content.
    plain = {key: value for key, value in message.items() if value is not None}
    if "role" in plain:
        plain.setdefault("content", "")
    if isinstance(plain.get("type"), str):
        plain["type"] = _CHUNKS.get(plain["type"], plain["type"])
    if isinstance(plain.get("tool_calls"), list):
        plain |= _calls(plain["tool_calls"])
    return plain


def _calls(logged: Sequence[Any]) -> dict[str, Any]:
    """Parse calls as LangChain's models do: a call whose arguments are not JSON is invalid."""
    calls, invalid = [], []
    for call in logged:
        if not isinstance(call, Mapping) or "function" not in call:
            calls.append(call)
            continue
        try:
            calls.append({**(parse_tool_call(dict(call), return_id=True) or {}), "type": "tool_call"})
        except OutputParserException:
            invalid.append(call)
    return {"tool_calls": calls} | ({"invalid_calls": invalid} if invalid else {})


_CHUNKS = {"AIMessageChunk": "ai", "HumanMessageChunk": "human", "ToolMessageChunk": "tool"}
"""Types of streamed messages -> types of whole messages."""
