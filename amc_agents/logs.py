"""Log events: one logger for each room of the package, no handlers, and no escape sequences from untrusted texts.

docs/observability.md lists the events.
"""

from __future__ import annotations

import logging
from typing import Any

from amc_agents.quoting import excerpt

MOST_TEXT = 2_000
"""Maximum number of characters of a text in an event."""


def room_logger(module: str) -> logging.Logger:
    """Return the logger of a module's room.

    >>> room_logger("amc_agents.population.features.durable.lifecycle").name
    'amc_agents.population'
    >>> room_logger("amc_agents.operations.serve.fleet").name
    'amc_agents.operations.serve'
    """
    parts = module.split(".")
    return logging.getLogger(".".join(parts[: 3 if parts[1] == "operations" else 2]))


def drop_records(logger: str, *, about: str) -> None:
    """Do not log another package's records whose arguments contain a text."""
    logging.getLogger(logger).addFilter(lambda record: not (isinstance(record.args, tuple) and about in record.args))


def log(logger: logging.Logger, level: int, event: str, message: str, **fields: Any) -> None:
    """Log an event.

    The record has the attributes `event` and `fields` for handlers that write structured logs.

    Args:
        logger: from `room_logger`.
        level: of `logging`.
        event: its name.
        message: with a place `%(name)s` for each field that it shows.
        **fields: numbers, or what is shown as text: on one line, without control characters and secrets.
    """
    if logger.isEnabledFor(level):
        shown = {name: _shown(value) for name, value in fields.items()}
        # Without fields, a `%` in the message would be shown as it is.
        logger.log(level, message, *([shown] if shown else []), extra={"event": event, "fields": shown}, stacklevel=2)


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float) else excerpt(str(value), MOST_TEXT)
