"""Client of one AgentGym server: requests, errors by name, and environments that are used again."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any

import httpx

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import excerpt
from amc_agents_agentgym.dialects import Dialect
from amc_agents_agentgym.errors import AgentGymError, AgentGymTimeout


class AgentGymServer:
    """A server of one dialect, shared by all worlds of a run.

    Args:
        dialect: the kind of server.
        url: such as "http://localhost:36001"; None: the value of the environment variable `variable`, at each use.
        timeout: seconds for one request.
        transport: an httpx transport, for tests.
    """

    def __init__(
        self,
        dialect: Dialect,
        url: str | None = None,
        *,
        timeout: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.dialect, self._url, self._timeout, self._transport = dialect, url, timeout, transport
        self._unused: list[int] = []

    @property
    def variable(self) -> str:
        """The environment variable with the URL: `AMC_AGENTGYM_WEBSHOP` and so on."""
        return f"AMC_AGENTGYM_{self.dialect.name.upper()}"

    @property
    def url(self) -> str:
        """The server's URL.

        Raises:
            ConfigurationError: the URL was not given, and the environment variable is not set, or it is not a URL.
        """
        url = (self._url or os.environ.get(self.variable, "")).rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"AgentGym's {self.dialect.name} server needs a URL such as http://localhost:36001, got {url!r}: pass "
                f"url=, or set {self.variable}"
            )
        return url

    def unused(self) -> int | None:
        """Take an environment that an ended world has left; None if there is none."""
        try:
            return self._unused.pop()
        except IndexError:
            return None

    def leave(self, number: int) -> None:
        """Leave an environment to another world, since the server cannot close it."""
        self._unused.append(number)

    def client(self) -> httpx.AsyncClient:
        """Return a client for one world, whose connections it keeps open. Close it in the same event loop."""
        return httpx.AsyncClient(
            base_url=self.url, timeout=self._timeout, transport=self._transport, verify=_certificates()
        )

    async def post(self, client: httpx.AsyncClient, path: str, body: Mapping[str, Any] | None) -> Any:
        """Send a request and return the answer. Raises `AgentGymError`."""
        return await self._exchange(client, "POST", path, json=None if body is None else dict(body))

    async def get(self, client: httpx.AsyncClient, path: str, parameters: Mapping[str, Any]) -> Any:
        """Request a value. Raises `AgentGymError`."""
        return await self._exchange(client, "GET", path, params=dict(parameters))

    async def _exchange(self, client: httpx.AsyncClient, method: str, path: str, **content: Any) -> Any:
        url = self.url + path
        try:
            response = await client.request(method, path, **content)
        except httpx.TimeoutException as error:
            raise AgentGymTimeout(
                url, f"no answer within {self._timeout:g} s ({type(error).__name__}): is the server overloaded?"
            ) from error
        except httpx.HTTPError as error:
            raise AgentGymError(
                url, f"no connection ({type(error).__name__}: {error!s:.120}): start the server, or correct the URL"
            ) from error
        return _checked(url, response)


def _checked(url: str, response: httpx.Response) -> Any:
    if response.status_code != httpx.codes.OK:
        raise AgentGymError(url, f"HTTP {response.status_code}, expected 200: {excerpt(response.text, 200)}")
    try:
        answer = response.json()
    except (ValueError, RecursionError) as error:
        raise AgentGymError(url, f"expected JSON, got {excerpt(response.text, 200)}") from error
    if isinstance(answer, dict) and "error" in answer:
        raise AgentGymError(url, f"the server reported an error: {excerpt(str(answer['error']), 250)}")
    return answer


@cache
def _certificates() -> ssl.SSLContext:
    # Loading the certificates takes longer than most requests.
    return ssl.create_default_context()
