"""Pass the custom events of the particles' agents on to the outer run's custom stream."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

EventListener = Callable[[int, int, Any], None]
"""Receives a particle's index, its number of steps, and the event that its agent wrote."""


def event_listener(writer: Callable[[Any], None]) -> EventListener | None:
    """Create a listener that writes events to the outer run's stream, in the context of the calling node.

    Args:
        writer: the outer run's stream writer.

    Returns:
        None if the custom stream has no reader: listening to particles costs a tenth of a step.
    """
    # Without a reader, LangGraph's writer is a function without a closure, hence without a stream.
    if getattr(writer, "__closure__", writer) is None:
        return None
    context = copy_context()

    def pass_on(particle: int, step: int, event: Any) -> None:
        context.run(writer, {"type": "amc.event", "particle": particle, "step": step, "event": event})

    return pass_on
