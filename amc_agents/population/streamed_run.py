"""Stream a `Run`: as the object within this process, as plain values to clients of a server."""

from __future__ import annotations

from typing import Any

from amc_agents.plain import fields_of
from amc_agents.run import Run


class StreamedRun(Run):
    """A `Run` that LangGraph's server can always encode.

    The server's encoder (orjson) walks through the fields of a dataclass itself, and a single value that JSON cannot
    represent (in a task's payload or an agent's state) would end the served run. For a subclass of a dataclass, the
    server calls `_asdict`.
    """

    __slots__ = ()

    @classmethod
    def of(cls, run: Run) -> StreamedRun:
        """Convert a run before it is streamed."""
        return cls(**fields_of(run))

    def _asdict(self) -> dict[str, Any]:
        return self.as_plain()

    def received(self) -> Run:
        """Convert back to a plain `Run`."""
        return Run(**fields_of(self))
