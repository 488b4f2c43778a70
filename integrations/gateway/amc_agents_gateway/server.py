"""Run a gateway with uvicorn, and stop it gracefully."""

from __future__ import annotations

import asyncio
import socket
import time
from types import FrameType

import uvicorn

from amc_agents_gateway.app import create_app
from amc_agents_gateway.config import GatewayConfig

_TICK_S = 0.05


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
