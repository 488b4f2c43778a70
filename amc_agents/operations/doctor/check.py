"""The result of a check, and how exceptions become failed checks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from amc_agents.errors import AmcError, CriticServerError
from amc_agents.quoting import excerpt, masked, printable

State = Literal["ok", "failed", "skipped"]

PATIENCE = 180.0
"""Time limit of a check in seconds; a critic's check includes its retries."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check."""

    name: str
    """The subject of the check."""
    state: State
    """"skipped": it could not be checked, or the configuration does not need it."""
    detail: str
    """The finding."""
    advice: str = ""
    """The recommended action; empty if none is needed."""

    def __post_init__(self) -> None:
        """Hide API keys and escape control characters, since names and answers come from servers."""
        for field in ("name", "detail", "advice"):
            object.__setattr__(self, field, printable(masked(getattr(self, field))))


async def guarded(name: str, check: Callable[[], Awaitable[Check]], key_variable: str = "") -> Check:
    """Run a check; an exception becomes a failed check with the reason.

    Args:
        name: name of the failed check.
        check: the check.
        key_variable: environment variable of the server's API key.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            return await check()
    except CriticServerError as error:
        return Check(name, "failed", str(error), server_advice(error, key_variable))
    except AmcError as error:
        return Check(name, "failed", str(error))
    except TimeoutError:
        return Check(
            name, "failed", f"no end within {PATIENCE:g} s", "The server may be overloaded or stuck: see its log."
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {excerpt(str(error))}"
        return Check(name, "failed", reason, "This error is unexpected: please report it.")


def server_advice(error: CriticServerError, key_variable: str = "") -> str:
    """Advise what to do about an error of a server."""
    if error.status is None:
        return "Start the server, or correct the URL: amc serve --help."
    if error.status in (401, 403):
        return (
            f"Set {key_variable or 'the environment variable of its key'} to the key with which the server was started."
        )
    if error.status >= 500:
        return "The server itself failed: see its log."
    return ""
