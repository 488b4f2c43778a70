"""An upstream: a server with an OpenAI-compatible API, called as it is, or as a LangChain chat model by the methods.

Unlike providers' clients it keeps every field of the upstream's answer, so that the choice that a decision returns is
the upstream's own: reasoning, log-probabilities, vendors' extensions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import httpx
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import ConfigDict, Field, SkipValidation

from amc_agents.concurrency.gather import retry_after_of
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import excerpt
from amc_agents_gateway.callers import secret_of
from amc_agents_gateway.config import UpstreamTable
from amc_agents_gateway.errors import SERVER, UpstreamError, upstream_refused
from amc_agents_gateway.wire import candidate, to_plain, usage_metadata

_log = logging.getLogger(__name__)
OPENAI = "https://api.openai.com/v1"
_PATH = "chat/completions"
_KEEP_ALIVE_S = 4.0
"""Idle connections are closed before a server does so (uvicorn, and so vLLM: after 5 s)."""
_PROBE_S = 2.0
_REFUSAL_BYTES = 1_000_000
"""Most bytes of an error that are read."""
_ENCODINGS = ("", "identity", "gzip", "deflate")
"""What an answer may be encoded with, although none is asked for: a piece of 64 KiB then has at most 67 MB."""


class Upstream:
    """An upstream and its connections.

    Args:
        name: its name in the gateway.
        table: its settings.
        transport: the transport of its client; None: httpx's own.

    Raises:
        ConfigurationError: the environment variable of its key is not set.
    """

    def __init__(self, name: str, table: UpstreamTable, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.name, self.model, self.default_max_tokens = name, table.model, table.default_max_tokens
        self.provider = table.provider or ""
        self._most_bytes = table.max_answer_bytes
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if table.key_env is not None:
            key = secret_of(table.key_env, f"[upstreams.{name}]")
            headers["authorization"] = f"Bearer {key.get_secret_value()}"
        self._client = httpx.AsyncClient(
            base_url=(table.base_url or OPENAI).rstrip("/") + "/",
            headers=headers,
            timeout=httpx.Timeout(table.timeout_s, connect=table.connect_timeout_s),
            limits=httpx.Limits(
                max_connections=table.max_connections,
                max_keepalive_connections=table.max_connections,
                keepalive_expiry=_KEEP_ALIVE_S,
            ),
            transport=transport,
        )

    @property
    def charged_as(self) -> str:
        """Name under which its requests are charged and priced."""
        return f"{self.provider}:{self.model}" if self.provider else self.model

    def prepared(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a request with the upstream's name of the model, and with a limit of the answer."""
        limited = body.get("max_tokens") is not None or body.get("max_completion_tokens") is not None
        limit = {} if limited or self.default_max_tokens is None else {"max_tokens": self.default_max_tokens}
        return {**body, **limit, "model": self.model}

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            UpstreamError: the upstream is unreachable, too slow, refused the request, or did not answer with JSON.
        """
        async with self._sent(body) as response:
            answer = _plain(await self._read(response, self._most_bytes))
        if not isinstance(answer.get("choices"), list):
            raise self.invalid(f"an answer without a list of choices: {excerpt(str(answer))}")
        return answer

    @asynccontextmanager
    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and yield the events of its answer, each without the empty line that ends it.

        Raises:
            UpstreamError: as `complete`; or the answer is no stream of events, or it broke off.
        """
        async with self._sent(body) as response:
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise self.invalid(f"a stream was requested, and the answer is {kind or 'of no declared type'}")
            yield self._events(response.aiter_bytes())

    async def reachable(self) -> bool:
        """True if the server answers at all."""
        try:
            response = await self._client.get("models", timeout=_PROBE_S)
        except httpx.HTTPError:
            return False
        return response.status_code < 500

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def _sent(self, body: Mapping[str, Any]) -> AsyncIterator[httpx.Response]:
        # ASCII, because a text from JSON may hold halves of surrogate pairs, which UTF-8 cannot encode.
        content = json.dumps(body, separators=(",", ":")).encode()
        try:
            async with self._client.stream("POST", _PATH, content=content) as response:
                encoding = response.headers.get("content-encoding", "").strip().lower()
                if encoding not in _ENCODINGS:
                    raise self.invalid(f"an answer encoded with {excerpt(encoding)}, and none was asked for")
                if response.status_code != 200:
                    await self._refuse(response)
                yield response
        except httpx.HTTPError as error:
            raise self._failed(error) from error

    async def _refuse(self, response: httpx.Response) -> NoReturn:
        text = await self._read(response, _REFUSAL_BYTES)
        _log.warning("upstream %s answered %d: %s", self.name, response.status_code, excerpt(_text(text)))
        raise upstream_refused(self.name, response.status_code, _plain(text), retry_after_of(response.headers))

    def _failed(self, error: httpx.HTTPError) -> UpstreamError:
        _log.warning("upstream %s: %s: %s", self.name, type(error).__name__, excerpt(str(error)))
        sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        if isinstance(error, httpx.TimeoutException):
            message = f"the upstream {self.name} did not answer in time"
            return UpstreamError(504, message, sent=sent, type=SERVER, code="upstream_timeout")
        if not sent:
            message = f"the upstream {self.name} cannot be reached"
            return UpstreamError(502, message, sent=False, type=SERVER, code="upstream_unreachable")
        message = f"the upstream {self.name} broke off its answer"
        return UpstreamError(502, message, type=SERVER, code="upstream_error")

    async def _read(self, response: httpx.Response, most: int) -> bytes:
        content = bytearray()
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > most:
                raise self.invalid(f"an answer of more than {most:,} bytes")
        return bytes(content)

    async def _events(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        r"""Split a stream into events.

        httpx splits lines at every line separator of Unicode, which JSON texts may contain; here only `\n` counts.
        """
        rest, searched = bytearray(), 0
        async for piece in pieces:
            rest += piece.replace(b"\r", b"")
            while (end := rest.find(b"\n\n", searched)) >= 0:
                if event := bytes(rest[:end]):
                    yield event
                del rest[: end + 2]
                searched = 0
            # The end of an event may be divided between two pieces.
            searched = max(0, len(rest) - 1)
            if len(rest) > self._most_bytes:
                raise self.invalid(f"an event of more than {self._most_bytes:,} bytes")
        if rest.strip():
            yield bytes(rest)

    def invalid(self, reason: str) -> UpstreamError:
        """Return the error for an answer that is not in OpenAI's form; the reason goes to the log only."""
        _log.warning("upstream %s: %s", self.name, reason)
        message = f"the upstream {self.name} gave an answer that is not in OpenAI's form"
        return UpstreamError(502, message, type=SERVER, code="upstream_error")


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


def _plain(content: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


class UpstreamChat(BaseChatModel):
    """A chat model that sends its requests to an upstream, from the gateway's event loop only."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    upstream: SkipValidation[Upstream] = Field(repr=False)
    n: int | None = None
    """Number of answers of a request; its presence says that requests may ask for several."""
    temperature: float | None = None
    logprobs: bool | None = None
    disable_streaming: Any = True
    cache: Any = False

    @property
    def _llm_type(self) -> str:
        return "openai-compatible"

    @property
    def model_name(self) -> str:
        """The upstream's name of the model."""
        return self.upstream.model

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.upstream.model, "temperature": self.temperature}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = LangSmithParams(
            ls_provider=self.upstream.provider, ls_model_name=self.upstream.model, ls_model_type="chat"
        )
        if self.upstream.default_max_tokens is not None:
            params["ls_max_tokens"] = self.upstream.default_max_tokens
        return params

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **call: Any,
    ) -> ChatResult:
        own = {"n": self.n, "temperature": self.temperature, "logprobs": self.logprobs, "stop": stop}
        body = {**call.pop("extra_body", {}), **{name: value for name, value in own.items() if value is not None}}
        answer = await self.upstream.complete(self.upstream.prepared({**body, **call, "messages": to_plain(messages)}))
        try:
            usage = usage_metadata(answer)
            messages = [candidate(choice, usage) for choice in answer["choices"]]
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise self.upstream.invalid(f"{type(error).__name__} in the answer {excerpt(str(answer))}") from error
        return ChatResult(generations=[ChatGeneration(message=message) for message in messages])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **call: Any,
    ) -> ChatResult:
        raise ConfigurationError("the gateway's upstreams are called from coroutines: use ainvoke")
