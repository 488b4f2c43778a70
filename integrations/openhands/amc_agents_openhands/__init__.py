"""The critic of OpenHands as a critic of amc-agents."""

from amc_agents_openhands.critic import openhands_chat, openhands_render

__all__ = ["openhands_chat", "openhands_render"]
