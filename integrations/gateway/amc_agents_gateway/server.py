"""Run a gateway with uvicorn, and stop it gracefully."""

from __future__ import annotations

import asyncio
import socket
import time
from types import FrameType

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from amc_agents_gateway.app import create_app
from amc_agents_gateway.config import GatewayConfig

_TICK_S = 0.05


def impatient_protocol(header_timeout_s: float, stall_timeout_s: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with two time limits that uvicorn lacks.

    Args:
        header_timeout_s: time from the begin of a connection or request to the end of its headers.
        stall_timeout_s: time for which a client may leave its answer unread. A request that has ended by its own time
            limit would otherwise stay until the client reads why.
    """

    class Impatient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """Ends the connections of clients that do not go on."""

        _limit: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._wait_for_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._cancel()
            elif self._limit is None:
                self._wait_for_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            self.resume_writing()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self.loop.call_later(stall_timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def _wait_for_headers(self) -> None:
            self._limit = self.loop.call_later(header_timeout_s, self.transport.abort)

        def _cancel(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

    return Impatient


class GatewayServer(uvicorn.Server):
    """Serves a gateway.

    On SIGTERM or SIGINT, `/ready` fails and new requests are refused at once (503); after `drain_delay_s` the server
    stops listening; requests in progress have `drain_timeout_s` to end. A second Ctrl-C ends all of it at once.

    Args:
        config: the gateway's configuration.

    Raises:
        ConfigurationError: as `amc_agents_gateway.gateway.Gateway`.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._app, self._delay_s = create_app(config), config.server.drain_delay_s
        super().__init__(
            uvicorn.Config(
                self._app,
                host=config.server.host,
                port=config.server.port,
                http=impatient_protocol(config.server.header_timeout_s, config.server.stall_timeout_s),
                lifespan="on",
                ws="none",
                access_log=False,  # The gateway's own log has key, model and tokens too.
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=config.server.drain_timeout_s,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Refuse new requests from now on."""
        self._app.state.gateway.draining = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, stop listening, and wait for the requests in progress."""
        self._app.state.gateway.draining = True
        end = time.monotonic() + self._delay_s
        while time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(_TICK_S)
        await super().shutdown(sockets)
