"""JSON to and from a model server: repeated where that can help, refused with a reason where it cannot.

- No connection, a time-out, 429, 5xx: repeated with growing, jittered pauses, for `retry_for` seconds.
- Any other 4xx, and 3xx: never repeated, as the same request would be refused again.
- No connection before the first answer: never repeated; the address is wrong, or nothing was started.

An answer is bounded in time and in length, and is not taken compressed: a few bytes could unpack to gigabytes.
A key stands in no message, and goes to no address that only a call has named. Such an address is none of the link's
own, and what answers there is told to the log alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_before_delay

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.server.addresses import checked_address, is_loopback, refuse_link_local
from amc_agents.critics.server.answers import as_json, read, retry_after, what_went_wrong
from amc_agents.critics.server.outside import discreet, named_by_call
from amc_agents.errors import ConfigurationError, CriticServerError
from amc_agents.quoting import excerpt, keep_secret, quoted

KEY_VARIABLE = "VLLM_API_KEY"
"""Environment variable of the key that servers are asked with: the one that vLLM itself reads."""

_trusted_addresses: set[str] = set()


class ModelServer:
    """One server of models, asked over HTTP.

    Connections are made for each call of `get` and `post` and closed with it, so that one object serves any
    number of event loops.

    Args:
        base_url: such as "http://host:8000"; a trailing "/v1" is taken off.
        api_key: sent as a bearer token; None: what the environment variable `key_variable` holds, if anything.
        key_variable: where the key is looked up.
        timeout: seconds that one request may take, from the connection to the last byte of its answer.
        retry_for: seconds over which a request that fails in passing is repeated; 0: never.
        max_concurrent: requests under way at the same time.
        transport: of httpx, for tests.

    Raises:
        ConfigurationError: `base_url` is no address, or holds a name or a password.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        key_variable: str = KEY_VARIABLE,
        timeout: float = 60.0,
        retry_for: float = 60.0,
        max_concurrent: int = 8,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = _checked(base_url)
        self.named_by_call = named_by_call()
        """A call has named it, who may be anybody's: it is asked more cautiously, and less is told."""
        if self.named_by_call:
            self._refuse_link_local()
        else:
            _trusted_addresses.add(self.base_url)
        self._key, self._key_variable = api_key, key_variable
        self._timeout, self._retry_for, self._max_concurrent = timeout, retry_for, max_concurrent
        self._transport = transport
        self._answered = False
        self.interruptions = 0
        """How often a server that had answered before was gone: another one may have taken its place since."""

    @property
    def may_name_folders(self) -> bool:
        """Whether a folder of this machine that it reports may be read: one on this machine knows them anyway."""
        return (
            not self.named_by_call or self.base_url in _trusted_addresses or is_loopback(httpx.URL(self.base_url).host)
        )

    def discreet(self) -> AbstractContextManager[None]:
        """Where a call has named this server, an error within tells nothing that it answered; the log has it all."""
        return discreet(self.base_url, self.named_by_call)

    async def get(self, path: str) -> Any:
        """The JSON at a path. Raises `CriticServerError`."""
        async with await self._client() as client:
            return await self._exchange(client, "GET", path, None)

    async def post(self, path: str, bodies: Sequence[Mapping[str, Any] | bytes]) -> list[Any]:
        """Send the bodies side by side, and give their answers in order.

        Args:
            path: such as "/classify".
            bodies: what is sent as JSON; bytes: JSON already.

        Raises:
            CriticServerError: one of them failed for good; the others are given up.
        """

        async def send(client: httpx.AsyncClient, body: Mapping[str, Any] | bytes) -> Any:
            content = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
            return await self._exchange(client, "POST", path, content)

        async with await self._client() as client:
            return await side_by_side(*(send(client, body) for body in bodies), limit=self._max_concurrent)

    async def _client(self) -> httpx.AsyncClient:
        key = self._found_key()
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        url = httpx.URL(self.base_url)
        if self.named_by_call and not is_loopback(url.host) and self._transport is None:
            headers["Host"] = url.netloc.decode("ascii")
            port = url.port or (443 if url.scheme == "https" else 80)
            url = url.copy_with(host=await checked_address(url.host, port))
        return httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(self._timeout, connect=min(self._timeout, 10.0)),
            transport=self._transport,
            verify=_tls(),
        )

    def _found_key(self) -> str:
        if self.base_url not in _trusted_addresses:
            return ""
        key = (self._key or os.environ.get(self._key_variable) or "").strip()
        if not (key.isascii() and key.isprintable()):
            # Found here, since httpx would show it.
            raise ConfigurationError(f"the key for {self.base_url} ({self._key_variable}) is not printable ASCII")
        keep_secret(key)
        return key

    async def _exchange(self, client: httpx.AsyncClient, method: str, path: str, content: bytes | None) -> Any:
        begun, attempts = time.monotonic(), 0
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(_Passing),
                stop=stop_before_delay(self._retry_for) if self._retry_for else lambda _: True,
                wait=_pause,
                reraise=True,
            ):
                with attempt:
                    attempts += 1
                    return await self._once(client, method, path, content)
        except _Passing as error:
            tried = f"{attempts} attempts in {time.monotonic() - begun:.1f} s" if attempts > 1 else "1 attempt"
            raise CriticServerError(
                f"{self.base_url}{path}", f"{error} ({tried}, retry_for={self._retry_for:g})", error.status
            ) from error.__cause__
        raise AssertionError("unreachable")  # pragma: no cover

    async def _once(self, client: httpx.AsyncClient, method: str, path: str, content: bytes | None) -> Any:
        url = f"{self.base_url}{path}"
        headers = {"Content-Type": "application/json"} if content else {}
        try:
            # httpx counts anew with every piece that arrives.
            async with (
                asyncio.timeout(self._timeout),
                client.stream(method, path, content=content, headers=headers, extensions=self._named) as response,
            ):
                body = await read(url, response)
        except (TimeoutError, httpx.RequestError, UnicodeError) as error:
            raise self._lost(url, error) from error
        self._answered = True
        status = response.status_code
        if status == 429 or status >= 500:
            # A gateway's word for a server that is gone.
            self.interruptions += status in (502, 503, 504)
            wait = retry_after(response)
            asked = "" if wait is None else f", asks for {wait:.0f} s of patience"
            raise _Passing(f"HTTP {status}: {what_went_wrong(response, body)}{asked}", status, wait)
        if not 200 <= status < 300:
            raise CriticServerError(url, self._refusal(response, body), status)
        return as_json(url, status, body)

    @property
    def _named(self) -> dict[str, str]:
        """The name that the server's certificate is to be for, where its address is asked (see `_client`)."""
        return {"sni_hostname": httpx.URL(self.base_url).host}

    def _refuse_link_local(self) -> None:
        host = httpx.URL(self.base_url).host
        try:
            refuse_link_local(host, host)
        except ConfigurationError:
            raise
        except ValueError:  # a name, which is resolved when it is asked
            return

    def _lost(self, url: str, error: Exception) -> Exception:
        what = f"{type(error).__name__}: {excerpt(str(error))}" if str(error) else type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) and not self._answered:
            return CriticServerError(url, f"no connection ({what}): is the server started, and the address right?")
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError | UnicodeError):
            return CriticServerError(url, what)
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return _Passing(f"no answer within {self._timeout:g} s ({what})", None, None)
        self.interruptions += self._answered
        return _Passing(f"the connection was lost ({what})", None, None)

    def _refusal(self, response: httpx.Response, body: bytes) -> str:
        status = response.status_code
        hints = {
            401: f"the key is missing or wrong: set {self._key_variable}",
            403: "this key may not do that",
            404: "no such address or model on this server",
        }
        if status == 401 and self.base_url not in _trusted_addresses:
            hints[401] = "no key was sent, as a call alone has named this address: name it where the graph is built"
        hint = hints.get(status)
        if 300 <= status < 400:
            # What follows the path may hold anything.
            target = response.headers.get("Location", "nowhere").partition("?")[0].partition("#")[0]
            hint = f"it points to {excerpt(target)}: use that address"
        return f"HTTP {status}: {what_went_wrong(response, body)}" + (f" ({hint})" if hint else "")


class _Passing(Exception):
    """A failure that may be over at the next attempt."""

    def __init__(self, reason: str, status: int | None, retry_after: float | None) -> None:
        super().__init__(reason)
        self.status, self.retry_after = status, retry_after


def _pause(state: RetryCallState) -> float:
    """Seconds before the next attempt: doubling from 0.25 to 8, half of it by chance; what the server asks, if more."""
    backoff: float = min(8.0, 0.25 * 2 ** (state.attempt_number - 1)) * random.uniform(0.5, 1.0)
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, _Passing) else None
    # A little later than asked, and not all clients at the same moment.
    return backoff if asked is None else max(backoff, asked * random.uniform(1.0, 1.1))


def _checked(base_url: str) -> str:
    url = base_url.rstrip("/").removesuffix("/v1")
    expected = f"a server's address looks like http://host:8000, got {quoted(base_url)}"
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(expected)
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        # Neither the address nor what httpx says of it: a key may stand in the wrong place.
        raise ConfigurationError("a server's address looks like http://host:8000, not like this one") from None
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ConfigurationError(
            "a server's address holds no name or password, no ?query and no #fragment: put a key into VLLM_API_KEY"
        )
    if not parsed.host or not 0 < (parsed.port or 80) < 1 << 16:
        raise ConfigurationError(expected)
    return url


@cache
def _tls() -> ssl.SSLContext:
    # Made once: it reads all certificates.
    return httpx.create_ssl_context()
