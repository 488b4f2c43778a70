"""A run as the custom stream carries it: in this process the object itself, for a server's clients plain values."""

from __future__ import annotations

from typing import Any

from amc_agents.plain import fields_of
from amc_agents.run import Run


class StreamedRun(Run):
    """A `Run` that LangGraph's server can encode whatever it holds.

    Its encoder (orjson) walks over a dataclass by itself, and one value that JSON cannot hold (a task's payload, an
    agent's state) would end the served run. A class below a dataclass it asks: `_asdict`.
    """

    __slots__ = ()

    @classmethod
    def of(cls, run: Run) -> StreamedRun:
        """The same run, to be streamed."""
        return cls(**fields_of(run))

    def _asdict(self) -> dict[str, Any]:
        return self.as_plain()

    def received(self) -> Run:
        """The run itself."""
        return Run(**fields_of(self))
