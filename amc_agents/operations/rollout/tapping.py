"""Read the final state of a call from its stream, whatever the caller streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class Tap:
    """Adds `stream_mode="values"` to a call, keeps the last state, and shows the caller only what was asked for.

    Args:
        default: the graph's stream mode.
        options: of the call.
    """

    def __init__(self, default: str | Sequence[str], options: Mapping[str, Any]) -> None:
        given = options.get("stream_mode") or default
        modes = [given] if isinstance(given, str) else list(given)
        self._single = isinstance(given, str)
        self._subgraphs = bool(options.get("subgraphs"))
        self._typed = options.get("version") == "v2"
        self._adds = "values" not in modes
        self.options: dict[str, Any] = {**options, "stream_mode": [*modes, "values"] if self._adds else given}
        """Options of the call that is made."""
        self.state: dict[str, Any] | None = None
        """The last state; None: none was read, or the agent was interrupted after it."""

    def shown(self, event: Any) -> Iterator[Any]:
        """Keep a state, and yield the event as the caller asked for it, if at all."""
        namespace, mode, data = self._parts(event)
        if mode == "values" and not namespace:
            interrupted = "__interrupt__" in data or (self._typed and event.get("interrupts"))
            self.state = None if interrupted else dict(data)
        if not self._adds or self._typed:
            if mode != "values" or not self._adds:
                yield event
        elif mode != "values":
            yield self._as_asked(event, namespace, data)

    def _parts(self, event: Any) -> tuple[Any, str, Any]:
        if self._typed:
            return event["ns"], event["type"], event["data"]
        if self._single and not self._adds:
            namespace, data = event if self._subgraphs else ((), event)
            return namespace, "values", data
        return event if self._subgraphs else ((), *event)

    def _as_asked(self, event: Any, namespace: Any, data: Any) -> Any:
        if not self._single:
            return event
        return (namespace, data) if self._subgraphs else data
