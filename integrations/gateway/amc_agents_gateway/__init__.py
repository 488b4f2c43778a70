"""An OpenAI-compatible server for amc-agents: LAC, PNLC and best-of-n for any framework, by changing a base URL."""

from amc_agents_gateway.app import create_app
from amc_agents_gateway.config import GatewayConfig

__all__ = ["GatewayConfig", "create_app"]
