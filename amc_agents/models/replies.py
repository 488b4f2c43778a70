"""Between LangChain's messages and an engine's requests and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from amc_agents.errors import ConfigurationError
from amc_agents.models.batcher import Batcher
from amc_agents.models.engine import Answer, Request, TokenLogprob

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


class ChatTokenizer(Protocol):
    """How dialogues become tokens."""

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> Sequence[int]:
        """Token ids of (role, content) messages, up to where the assistant speaks."""
        ...

    def token(self, token_id: int) -> str:
        """The text of one token."""
        ...


class Engine(NamedTuple):
    """What computes a chat model's answers; shared by all model objects of the same weights."""

    name: str
    batcher: Batcher
    tokenizer: ChatTokenizer


class Piece(NamedTuple):
    """A piece of a streamed answer; the last one carries the whole."""

    text: str
    logprob: TokenLogprob | None = None
    answer: Answer | None = None
    error: BaseException | None = None


def spoken(message: BaseMessage) -> tuple[str, str]:
    """(role, text) of a message; a message that is not text is refused."""
    content = message.content
    if not isinstance(content, str):
        kinds = {block["type"] for block in content if isinstance(block, dict)} - {"text"}
        if kinds:
            raise ConfigurationError(f"this model reads text only; a {message.type} message holds {sorted(kinds)}")
        content = str(message.text)
    return _ROLES.get(message.type, "user"), content


def result(engine: Engine, request: Request, answer: Answer) -> ChatResult:
    """All candidates of a request; its usage is on the first message."""
    usage = _usage(answer)
    generations = []
    for index, completion in enumerate(answer.completions):
        metadata = _metadata(engine, completion.finish_reason)
        if request.sampling.logprobs:
            metadata["logprobs"] = {"content": [_logprob(engine, entry) for entry in completion.logprobs]}
        message = AIMessage(
            content=completion.text, response_metadata=metadata, usage_metadata=usage if index == 0 else None
        )
        info = {"finish_reason": completion.finish_reason}
        generations.append(ChatGeneration(message=message, generation_info=info))
    tokens = {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
    }
    return ChatResult(generations=generations, llm_output={"token_usage": tokens, "model_name": engine.name})


def chunk(engine: Engine, request: Request, piece: Piece) -> ChatGenerationChunk:
    """One piece of a streamed answer; raises the error that a piece carries."""
    if piece.error is not None:
        raise piece.error
    metadata: dict[str, Any] = {}
    if piece.logprob is not None and request.sampling.logprobs:
        metadata["logprobs"] = {"content": [_logprob(engine, piece.logprob)]}
    if piece.answer is None:
        return ChatGenerationChunk(message=AIMessageChunk(content=piece.text, response_metadata=metadata))
    completion = piece.answer.completions[0]
    metadata = _metadata(engine, completion.finish_reason)
    message = AIMessageChunk(
        content="", response_metadata=metadata, usage_metadata=_usage(piece.answer), chunk_position="last"
    )
    return ChatGenerationChunk(message=message, generation_info={"finish_reason": completion.finish_reason})


def _metadata(engine: Engine, finish_reason: str) -> dict[str, Any]:
    return {"model_name": engine.name, "model_provider": "amc_agents", "finish_reason": finish_reason}


def _usage(answer: Answer) -> UsageMetadata:
    written = sum(len(completion.tokens) for completion in answer.completions)
    return UsageMetadata(
        input_tokens=answer.prompt_tokens,
        output_tokens=written,
        total_tokens=answer.prompt_tokens + written,
        input_token_details=InputTokenDetails(cache_read=answer.cached_tokens),
    )


def _logprob(engine: Engine, entry: TokenLogprob) -> dict[str, Any]:
    """One entry of OpenAI's `logprobs.content`; the end token has an entry too."""

    def shape(token: int, logprob: float) -> dict[str, Any]:
        text = engine.tokenizer.token(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    top = [shape(token, logprob) for token, logprob in entry.top]
    return {**shape(entry.token, entry.logprob), "top_logprobs": top}
