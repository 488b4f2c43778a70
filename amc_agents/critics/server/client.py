"""JSON over HTTP to a model server: retries with backoff, errors with a reason, and limits on untrusted servers.

- Lost connections, time-outs, 429 and 5xx are retried with growing, jittered pauses for `retry_for` seconds.
- Any other 4xx, and 3xx, is an error at once: the server would refuse the same request again.
- No connection before the first answer is an error at once: the URL is wrong, or no server runs there.

A response is limited in time and in length, and compression is not accepted, since a few bytes could expand to
gigabytes. A key appears in no message. A server that only a call has named is untrusted: it gets no key, may not have a
link-local address, and its answers appear only in the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from pydantic import SecretStr
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_before_delay

from amc_agents.budget import Bound, claim
from amc_agents.concurrency.gather import RateGate, retry_after_of, side_by_side
from amc_agents.critics.allowed import checked_address, current_rule, is_loopback, redacted
from amc_agents.critics.spec import number
from amc_agents.errors import ConfigurationError, CriticServerError
from amc_agents.quoting import excerpt, keep_secret, quoted
from amc_agents.usage import OPENAI_COUNTS, Usage, reported_usage

KEY_VARIABLE = "VLLM_API_KEY"
"""Default environment variable of the server's key: the variable that vLLM itself reads."""


class ModelServer:
    """Client of one model server.

    Each call of `get` and `post` opens its own connections and closes them, so that one object serves any number of
    event loops.

    Args:
        base_url: such as "http://host:8000"; a trailing "/v1" is removed.
        api_key: sent as a bearer token; None: the value of the environment variable `key_variable`, if it is set.
        key_variable: name of the key's environment variable.
        timeout: seconds for one request, from the connection to the last byte of the response.
        retry_for: seconds over which a request that fails temporarily is retried; 0: no retries.
        max_concurrent: the most requests in flight.
        trusted: False for a server that only a call has named. It gets no key, its address is checked, and `redacted`
            hides what it answers.
        transport: an httpx transport, for tests.

    Raises:
        ConfigurationError: `base_url` is not a URL, holds a user name, password or query, or has an address that is
            refused for an untrusted server (`addresses_checked_by`).
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | SecretStr | None = None,
        key_variable: str = KEY_VARIABLE,
        timeout: float = 60.0,
        retry_for: float = 60.0,
        max_concurrent: int = 8,
        trusted: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = _checked_url(base_url)
        self.trusted = trusted
        """False: only a call has named this server."""
        if not trusted:
            self._address_rule = current_rule()
            url = httpx.URL(self.base_url)
            self._address_rule(url.host, _port(url), None)
        # Not plain text: tracebacks that show variables, and `vars`, would show it.
        self._key = SecretStr(api_key) if isinstance(api_key, str) else api_key
        self._key_variable = key_variable
        self._timeout, self._retry_for, self._max_concurrent = timeout, retry_for, max_concurrent
        self._transport = transport
        self._answered = False
        self._gate = RateGate()
        """Holds back the other requests to this server after a rate limit."""
        self.interruptions = 0
        """Number of times that a server stopped answering. A different server may have replaced it."""

    @property
    def may_name_folders(self) -> bool:
        """True if a local folder that the server reports may be read. A server on this machine can read it anyway."""
        return self.trusted or is_loopback(httpx.URL(self.base_url).host)

    def redacted(self) -> AbstractContextManager[None]:
        """Keep what an untrusted server answers out of the errors of the `with` block; the log has the originals."""
        return nullcontext() if self.trusted else redacted(self.base_url)

    async def get(self, path: str) -> Any:
        """Return the JSON at a path. Raises `CriticServerError`."""
        async with await self._client() as client:
            return await self._exchange(client, _Request("GET", path))

    async def post(
        self,
        path: str,
        bodies: Sequence[Mapping[str, Any] | bytes],
        bounds: Sequence[Bound] = (),
        headers: Mapping[str, str] | None = None,
        count: Callable[[int, Usage], None] = lambda place, used: None,
    ) -> list[Any]:
        """Send the bodies concurrently and return their answers in order.

        Args:
            path: such as "/classify".
            bodies: objects to send as JSON; bytes are sent unchanged.
            bounds: upper bound of each request's usage, for budgets; empty: the requests cost nothing.
            headers: further headers of each request.
            count: called once for each request that was sent, with its place in `bodies` and its usage: as reported,
                or as missing if the request failed for good or was cancelled. Repeated attempts are not counted.

        Raises:
            CriticServerError: a request failed for good; the other requests are cancelled.
            BudgetExhausted: a budget does not allow a request.
        """

        async def send(client: httpx.AsyncClient, place: int, body: Mapping[str, Any] | bytes) -> Any:
            content = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
            request, used = _Request("POST", path, content), Usage(calls=1, missing=1)
            async with claim(bounds[place : place + 1]) as claimed:
                try:
                    answer = await self._exchange(client, request)
                    used = usage_of(answer)
                finally:
                    if request.sent:
                        count(place, used)
                claimed.settle(used)
            return answer

        async with await self._client() as client:
            client.headers.update(headers or {})
            requests = (send(client, place, body) for place, body in enumerate(bodies))
            return await side_by_side(*requests, limit=self._max_concurrent)

    async def _client(self) -> httpx.AsyncClient:
        key = self._read_key()
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        url = httpx.URL(self.base_url)
        if not self.trusted and not is_loopback(url.host) and self._transport is None:
            headers["Host"] = url.netloc.decode("ascii")
            url = url.copy_with(host=await checked_address(url.host, _port(url), self._address_rule))
        return httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(self._timeout, connect=min(self._timeout, 10.0)),
            transport=self._transport,
            verify=_tls(),
            # A proxy of the environment would connect from its own place in the network, past the check of addresses.
            trust_env=self.trusted,
        )

    def _read_key(self) -> str:
        if not self.trusted:
            return ""
        given = self._key.get_secret_value() if self._key else ""
        key = (given or os.environ.get(self._key_variable) or "").strip()
        if not (key.isascii() and key.isprintable()):
            # Checked here because httpx's error would show the key.
            raise ConfigurationError(f"the key for {self.base_url} ({self._key_variable}) is not printable ASCII")
        if key:
            keep_secret(key)
        return key

    async def _exchange(self, client: httpx.AsyncClient, request: _Request) -> Any:
        start, attempts = time.monotonic(), 0
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(_Temporary),
                stop=stop_before_delay(self._retry_for) if self._retry_for else lambda _: True,
                wait=_pause,
                reraise=True,
            ):
                with attempt:
                    attempts += 1
                    return await self._attempt(client, request)
        except _Temporary as error:
            tried = f"{attempts} attempts in {time.monotonic() - start:.1f} s" if attempts > 1 else "1 attempt"
            reason = f"{error} ({tried}, retry_for={self._retry_for:g}): {error.remedy}"
            raise CriticServerError(f"{self.base_url}{request.path}", reason, error.status) from error.__cause__
        raise AssertionError("unreachable")  # pragma: no cover

    async def _attempt(self, client: httpx.AsyncClient, request: _Request) -> Any:
        url, content = f"{self.base_url}{request.path}", request.content
        headers = {"Content-Type": "application/json"} if content else {}
        # Where `_client` connects to an IP address, the certificate is still checked against the host's name.
        names = {"sni_hostname": httpx.URL(self.base_url).host}
        await self._gate.passed()
        sent_before, request.sent = request.sent, True
        try:
            # httpx's own time-out starts again with every chunk.
            async with (
                asyncio.timeout(self._timeout),
                client.stream(
                    request.method, request.path, content=content, headers=headers, extensions=names
                ) as response,
            ):
                body = await read_body(url, response)
        except (TimeoutError, httpx.RequestError, UnicodeError) as error:
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                request.sent = sent_before
            raise self._no_answer(url, error) from error
        self._answered = True
        status = response.status_code
        if status == 429 or status >= 500:
            # A gateway reports with these that its server is gone.
            self.interruptions += status in (502, 503, 504)
            wait = retry_after_of(response.headers)
            if status == 429:
                # Requests that would not wait so long themselves are not held back so long either.
                self._gate.close(wait if wait is None or wait <= self._retry_for else None)
            hint = "" if wait is None else f", asks for {wait:.6g} s of patience"
            remedy = _FEWER if status == 429 else _SEE_LOG
            raise _Temporary(f"HTTP {status}: {error_detail(response, body)}{hint}", remedy, status, wait)
        self._gate.succeeded()
        if not 200 <= status < 300:
            raise CriticServerError(url, self._refusal(response, body), status)
        return as_json(url, status, body)

    def _no_answer(self, url: str, error: Exception) -> Exception:
        cause = f"{type(error).__name__}: {excerpt(str(error))}" if str(error) else type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) and not self._answered:
            return CriticServerError(url, f"no connection ({cause}): is the server started, and is the URL right?")
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError | UnicodeError):
            return CriticServerError(url, cause)
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return _Temporary(f"no answer within {self._timeout:g} s ({cause})", _LARGER_TIMEOUT)
        self.interruptions += self._answered
        return _Temporary(f"the connection was lost ({cause})", _SEE_LOG)

    def _refusal(self, response: httpx.Response, body: bytes) -> str:
        status = response.status_code
        hints = {
            401: f"the key is missing or wrong: set {self._key_variable}",
            403: "the key does not permit this request: use another key",
            404: "no such path or model on this server: check the URL and the model's name",
            413: "the request is too long for it: use a smaller batch",
        }
        if status == 401 and not self.trusted:
            hints[401] = "no key was sent, because a call has named this URL: name it where the graph is built"
        hint = hints.get(status, _SEE_LOG)
        if 300 <= status < 400:
            # Cut off the query and the fragment, which may hold secrets.
            target = response.headers.get("Location", "nowhere").partition("?")[0].partition("#")[0]
            hint = f"it redirects to {excerpt(target)}: use that URL"
        return f"HTTP {status}: {error_detail(response, body)}" + f" ({hint})"


def server_options(kind: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `ModelServer` from key_env=, timeout= and retry_for=, for every kind with a server."""
    return {
        "key_variable": options.get("key_env", KEY_VARIABLE),
        "timeout": number(kind, options, "timeout", 60.0, least=0.001),
        "retry_for": number(kind, options, "retry_for", 60.0, least=0.0),
    }


@dataclass
class _Request:
    """A request and whether the server may have received it."""

    method: str
    path: str
    content: bytes | None = None
    sent: bool = False


class _Temporary(Exception):
    """A failure that a retry may resolve."""

    def __init__(self, reason: str, remedy: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.remedy, self.status, self.retry_after = remedy, status, retry_after


_FEWER = "send it fewer requests at a time, or allow a larger retry_for"
_LARGER_TIMEOUT = "set a larger timeout, or see the server's log if it is stuck"
_SEE_LOG = "see the server's log"


def _pause(state: RetryCallState) -> float:
    """Seconds before the next attempt: 0.25 to 8, doubling, with jitter; longer if the server asks for it."""
    backoff: float = min(8.0, 0.25 * 2 ** (state.attempt_number - 1)) * random.uniform(0.5, 1.0)
    error = state.outcome.exception() if state.outcome else None
    wait = error.retry_after if isinstance(error, _Temporary) else None
    # Slightly later than requested, and jittered, so that clients do not return all at once.
    return backoff if wait is None else max(backoff, wait * random.uniform(1.0, 1.1))


def _checked_url(base_url: str) -> str:
    url = base_url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise _unlike_a_url(base_url)
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):  # the latter for a lone surrogate
        # Show neither the URL nor httpx's message: either may contain a key.
        raise ConfigurationError("the URL of a server cannot be parsed: it looks like http://host:8000") from None
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ConfigurationError(
            "a server's URL must not hold a user name, password, ?query or #fragment: put a key into VLLM_API_KEY"
        )
    if not parsed.host or not 0 < (parsed.port or 80) < 1 << 16:
        raise _unlike_a_url(base_url)
    return url


def _unlike_a_url(text: str) -> ConfigurationError:
    return ConfigurationError(f"a server's URL looks like http://host:8000, got {quoted(text, 200)}")


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


@cache
def _tls() -> ssl.SSLContext:
    # Cached, because creating a context reads all certificates.
    return httpx.create_ssl_context()


MOST_BYTES = 1 << 28
"""The longest response that is read: the log-probabilities of many long texts take tens of MiB."""
_MOST_OF_AN_ERROR = 1 << 16


async def read_body(url: str, response: httpx.Response) -> bytes:
    """Read the body of a response; of an error response, only the beginning.

    Raises:
        CriticServerError: a successful response is too long or compressed.
    """
    success = response.is_success
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        if success:
            raise CriticServerError(
                url,
                f"its answer is compressed ({excerpt(encoding, 20)}), although the request does not accept that: turn "
                "compression off",
                response.status_code,
            )
        return b""
    body, most = bytearray(), MOST_BYTES if success else _MOST_OF_AN_ERROR
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > most:
            break
    if success and len(body) > most:
        raise CriticServerError(
            url,
            f"its answer is longer than {most >> 20} MiB, so it was not read further: use a smaller batch",
            response.status_code,
        )
    return bytes(body[:most])


def as_json(url: str, status: int, body: bytes) -> Any:
    """Parse a body. Raises `CriticServerError`."""
    try:
        return _parsed(body)
    except ValueError as error:
        text = quoted(body.decode("utf-8", errors="replace"), 200)
        raise CriticServerError(
            url, f"expected JSON, got {text}. Is this the URL of a model server?", status
        ) from error


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def _integer(digits: str) -> int | float:
    """Read an integer; a huge number becomes infinite, as JSON's floats do."""
    return int(digits) if len(digits) < 20 else float(digits)


def error_detail(response: httpx.Response, body: bytes) -> str:
    """The server's own explanation of an error, shortened."""
    try:
        detail = _parsed(body)
    except ValueError:
        return excerpt(body.decode("utf-8", errors="replace")) or excerpt(response.reason_phrase)
    for key in ("error", "message", "detail"):
        detail = detail[key] if isinstance(detail, dict) and key in detail else detail
    return excerpt(detail) if isinstance(detail, str) else quoted(detail, 200)


def usage_of(answer: Any) -> Usage:
    """Usage of one request, from the token counts that the server reports."""
    return reported_usage(answer.get("usage") if isinstance(answer, dict) else None, OPENAI_COUNTS)
