"""Failures of an AgentGym server."""

from __future__ import annotations

from amc_agents.errors import WorldError


class AgentGymError(WorldError):
    """A server is unreachable, rejected a request, or reported an error.

    Args:
        url: the URL of the request.
        reason: what was received.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(f"{url}: {reason}")

    def __reduce__(self) -> tuple[type[AgentGymError], tuple[str, str]]:
        """Pickle the facts, from which the message is built again."""
        return type(self), (self.url, self.reason)


class AgentGymTimeout(AgentGymError, TimeoutError):
    """A server did not answer in time. Whether it executed the action is unknown."""
