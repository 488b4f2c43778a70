"""Custom events that agents write while they run as particles, for the reader of the outer run's custom stream."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

EventListener = Callable[[int, int, Any], None]
"""Takes a particle's index, the steps it has made, and what its agent wrote."""


def event_listener(writer: Callable[[Any], None]) -> EventListener | None:
    """Pass events on by `writer`, the outer run's stream writer, in the context of the node that calls this.

    None where nobody reads the custom stream: hearing particles costs a tenth of a step.
    """
    # There LangGraph's writer is a function that refers to nothing, as a stream.
    if getattr(writer, "__closure__", writer) is None:
        return None
    context = copy_context()

    def pass_on(particle: int, step: int, event: Any) -> None:
        context.run(writer, {"type": "amc.event", "particle": particle, "step": step, "event": event})

    return pass_on
