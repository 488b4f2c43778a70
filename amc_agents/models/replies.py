"""Convert between LangChain messages and an engine's requests and answers."""

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
    """Converts dialogues to tokens."""

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> Sequence[int]:
        """Return token ids of (role, content) messages, ending where the assistant's answer starts."""
        ...

    def token(self, token_id: int) -> str:
        """Return the text of a token."""
        ...


class Engine(NamedTuple):
    """The batcher and tokenizer of a chat model, shared by all model objects with the same weights."""

    name: str
    batcher: Batcher
    tokenizer: ChatTokenizer


class Piece(NamedTuple):
    """A piece of a streamed answer; the last piece carries the whole answer."""

    text: str
    logprob: TokenLogprob | None = None
    answer: Answer | None = None
    error: BaseException | None = None


def spoken(message: BaseMessage) -> tuple[str, str]:
    """Return (role, text) of a message. Raises `ConfigurationError` if the message is not text only."""
    content = message.content
    if not isinstance(content, str):
        kinds = {block["type"] for block in content if isinstance(block, dict)} - {"text"}
        if kinds:
            raise ConfigurationError(
                f"expected messages of text only, got a {message.type} message with {sorted(kinds)}: remove those parts"
            )
        content = str(message.text)
    return _ROLES.get(message.type, "user"), content


def result(engine: Engine, request: Request, answer: Answer) -> ChatResult:
    """Return all candidates of a request as messages; the first message carries the usage."""
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
    """Return a piece of a streamed answer as a chunk. Raises the error that the piece carries."""
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
    output_tokens = sum(len(completion.tokens) for completion in answer.completions)
    return UsageMetadata(
        input_tokens=answer.prompt_tokens,
        output_tokens=output_tokens,
        total_tokens=answer.prompt_tokens + output_tokens,
        input_token_details=InputTokenDetails(cache_read=answer.cached_tokens),
    )


def _logprob(engine: Engine, entry: TokenLogprob) -> dict[str, Any]:
    """Return an entry of OpenAI's `logprobs.content`; the end token has an entry too."""

    def described(token: int, logprob: float) -> dict[str, Any]:
        text = engine.tokenizer.token(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    top = [described(token, logprob) for token, logprob in entry.top]
    return {**described(entry.token, entry.logprob), "top_logprobs": top}
