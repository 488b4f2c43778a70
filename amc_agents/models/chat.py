"""LangChain chat models over a batched engine."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, Protocol

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from amc_agents.concurrency.background import lock_across_forks
from amc_agents.errors import ConfigurationError
from amc_agents.models.batcher import Batcher
from amc_agents.models.engine import MAX_TOP_LOGPROBS, Answer, Request, Sampling, TokenLogprob
from amc_agents.models.seeding import request_seed

# Settings of other LangChain chat models that shared code passes to every model; they are ignored here.
_NOT_APPLICABLE = frozenset({"api_key", "timeout", "max_retries"})
_CALL_SETTINGS = frozenset({"temperature", "top_p", "max_tokens", "n", "logprobs", "top_logprobs", "seed"})
_FROM_LANGCHAIN = frozenset({"stream", "ls_structured_output_format"})

_LOADING = lock_across_forks()


class EngineChatModel(BaseChatModel):
    """A chat model that computes concurrent calls, from any task, event loop or thread, in shared batches.

    Every setting below can also be given per call (`model.invoke(..., temperature=0)`) or bound (`model.bind(n=5)`).
    `generate` and `agenerate` return all `n` candidates, `invoke` the first. Only the first candidate carries the
    usage of the request, so that summing over messages counts it once.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, populate_by_name=True)

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with at least this probability."""
    max_tokens: int = Field(default=64, ge=1)
    """Maximum number of generated tokens."""
    stop: list[str] | None = None
    """Texts that end an answer."""
    n: int = Field(default=1, ge=1)
    """Candidates per request."""
    logprobs: bool = False
    """Put log-probabilities in `response_metadata["logprobs"]`, in OpenAI's format, before temperature and top-p."""
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    """Number of alternatives reported for each token."""
    streaming: bool = False
    """Stream inside `invoke` too, for token callbacks; LangChain turns this on itself when a callback needs it."""
    seed: int | None = Field(default=None, ge=0)
    """Makes the answer to a prompt reproducible. Ignored inside a particle, which has its own random stream."""

    fits_any_loop: ClassVar[bool] = True
    """It has no client."""
    _ready: bool = PrivateAttr(default=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_not_applicable(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            return {key: value for key, value in values.items() if key not in _NOT_APPLICABLE}
        return values

    def _engine(self) -> Engine:
        """Return the shared engine of this model's weights."""
        raise NotImplementedError

    async def _aengine(self) -> Engine:
        """Return the engine; the first call loads the weights in a thread."""
        if not self._ready:
            await asyncio.to_thread(self._load_alone)
            self._ready = True
        return self._engine()

    def _load_alone(self) -> None:
        # Many particles may call at once, and loading weights is not thread-safe.
        with _LOADING:
            self._engine()

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        engine = self._engine()
        request = self._request(engine, messages, stop, kwargs)
        return result(engine, request, engine.batcher.generate(request))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        engine = await self._aengine()
        request = self._request(engine, messages, stop, kwargs)
        return result(engine, request, await engine.batcher.agenerate(request))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        engine = self._engine()
        pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        request = self._request(engine, messages, stop, kwargs, pieces)
        # A thread waits for the answer, while this generator yields the pieces as they arrive.
        thread = threading.Thread(target=_collect, args=(engine, request, pieces), daemon=True)
        thread.start()
        while True:
            piece = pieces.get()
            generated = chunk(engine, request, piece)
            if run_manager is not None:
                run_manager.on_llm_new_token(generated.text, chunk=generated)
            yield generated
            if piece.answer is not None:
                return

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        engine = await self._aengine()
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[Piece] = asyncio.Queue()

        class FromWorker:
            """Passes pieces from the worker thread to this event loop."""

            def put(self, piece: Piece) -> None:
                # A loop that was closed in the meantime must not fail the batch of the other callers.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(pieces.put_nowait, piece)

        request = self._request(engine, messages, stop, kwargs, FromWorker())
        answer = asyncio.ensure_future(engine.batcher.agenerate(request))
        answer.add_done_callback(lambda done: pieces.put_nowait(_last_piece(done)))
        try:
            while True:
                piece = await pieces.get()
                generated = chunk(engine, request, piece)
                if run_manager is not None:
                    await run_manager.on_llm_new_token(generated.text, chunk=generated)
                yield generated
                if piece.answer is not None:
                    return
        finally:
            answer.cancel()

    def _should_stream(self, *, async_api: bool, run_manager: Any = None, **kwargs: Any) -> bool:
        """Never stream several candidates, which would mix into one text; `stream` then yields a single chunk."""
        single = bool(kwargs.get("n", self.n) == 1)
        return single and super()._should_stream(async_api=async_api, run_manager=run_manager, **kwargs)

    def _should_use_protocol_streaming(self, *, async_api: bool, run_manager: Any = None, **kwargs: Any) -> bool:
        """Apply the same rule to LangChain's newer streaming protocol."""
        single = bool(kwargs.get("n", self.n) == 1)
        return single and super()._should_use_protocol_streaming(async_api=async_api, run_manager=run_manager, **kwargs)

    def _request(
        self,
        engine: Engine,
        messages: Sequence[BaseMessage],
        stop: Sequence[str] | None,
        settings: Mapping[str, Any],
        listener: Any = None,
    ) -> Request:
        """Build the request of a call; the model's fields are the defaults of its settings."""
        unknown = settings.keys() - _CALL_SETTINGS - _FROM_LANGCHAIN - _NOT_APPLICABLE
        if unknown:
            raise ConfigurationError(
                f"{type(self).__name__} has no settings {sorted(unknown)}; a call may set {sorted(_CALL_SETTINGS)}"
            )
        words = self.stop if stop is None else stop
        sampling = Sampling(
            temperature=settings.get("temperature", self.temperature),
            top_p=settings.get("top_p", self.top_p),
            max_tokens=settings.get("max_tokens", self.max_tokens),
            stop=tuple(words or ()),
            n=settings.get("n", self.n),
            logprobs=settings.get("logprobs", self.logprobs),
            top_logprobs=settings.get("top_logprobs", self.top_logprobs),
        )
        if listener is not None and sampling.n > 1:
            raise ConfigurationError(f"n={sampling.n} candidates cannot be streamed as one text: use generate")
        prompt = tuple(engine.tokenizer.encode_chat([spoken(message) for message in messages]))
        on_text = None if listener is None else lambda text, logprob: listener.put(Piece(text, logprob))
        return Request(prompt, sampling, request_seed(settings.get("seed"), self.seed), on_text)

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return the settings that callbacks see; a budget reads the size of the answers from them."""
        return {"max_tokens": self.max_tokens, "n": self.n} | super()._get_invocation_params(stop=stop, **kwargs)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        """Return the parameters that tracers show."""
        return super()._get_ls_params(stop=stop, **kwargs) | LangSmithParams(ls_provider="amc_agents")


def _collect(engine: Engine, request: Request, pieces: queue.SimpleQueue[Piece]) -> None:
    try:
        pieces.put(Piece("", answer=engine.batcher.generate(request)))
    except Exception as error:
        pieces.put(Piece("", error=error))


def _last_piece(done: asyncio.Future[Answer]) -> Piece:
    if done.cancelled():
        return Piece("", error=asyncio.CancelledError())
    error = done.exception()
    return Piece("", error=error) if error is not None else Piece("", answer=done.result())


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
