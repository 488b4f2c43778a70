"""Convert a whole answer to the only chunk of a stream."""

from __future__ import annotations

import json

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk


def as_chunk(message: AIMessage) -> AIMessageChunk:
    """Convert a message to the first and last chunk of a stream, with its id."""
    calls: list[tuple[str | None, str | None, str | None]] = [
        *((call["name"], json.dumps(call["args"]), call["id"]) for call in message.tool_calls),
        *((call["name"], call["args"], call["id"]) for call in message.invalid_tool_calls),
    ]
    return AIMessageChunk(
        content=message.content,
        id=message.id,
        name=message.name,
        additional_kwargs=message.additional_kwargs,
        response_metadata=message.response_metadata,
        usage_metadata=message.usage_metadata,
        tool_call_chunks=[
            tool_call_chunk(name=name, args=args, id=call_id, index=index)
            for index, (name, args, call_id) in enumerate(calls)
        ],
        chunk_position="last",
    )
