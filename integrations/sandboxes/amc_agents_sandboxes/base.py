"""The common part of all sandboxes."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from amc_agents.errors import EnvironmentStateError, ForkError


class Finished(NamedTuple):
    """A command that has ended."""

    exit_code: int
    output: str
    """Standard output, then standard error."""


class SandboxWorld:
    """A sandbox of a vendor as a particle's world (a `Forkable`).

    The world owns the sandbox: `close` deletes it.

    Args:
        sandbox: the SDK's async object of a running sandbox.
    """

    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox
        self._closed = False

    @property
    def sandbox(self) -> Any:
        """The SDK's own object.

        Raises:
            EnvironmentStateError: the world is closed.
        """
        if self._closed:
            raise EnvironmentStateError(f"this {type(self).__name__} is closed: its sandbox was deleted")
        return self._sandbox

    async def fork(self, seed: int) -> Self:
        """Fork the sandbox. The seed is unused: the random state of its processes is copied as it is.

        Raises:
            ForkError: the vendor refuses.
        """
        try:
            forked = await self._fork(self.sandbox)
        except (EnvironmentStateError, ForkError):
            raise
        except Exception as error:
            raise ForkError(f"{type(self).__name__} could not fork: {type(error).__name__}: {error}") from error
        return self._of(forked)

    async def close(self) -> None:
        """Delete the sandbox; safe to call twice."""
        if not self._closed:
            self._closed = True
            await self._delete(self._sandbox)

    def _of(self, sandbox: Any) -> Self:
        return type(self)(sandbox)

    async def _fork(self, sandbox: Any) -> Any:
        raise NotImplementedError

    async def _delete(self, sandbox: Any) -> None:
        raise NotImplementedError
