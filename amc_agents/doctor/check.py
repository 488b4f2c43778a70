"""One finding, and what becomes of a check that raises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from amc_agents.errors import AmcError, CriticServerError
from amc_agents.quoting import excerpt, masked, printable

State = Literal["ok", "failed", "skipped"]

PATIENCE = 180.0
"""Seconds that one check may take; a critic's includes its own retries."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, and what was found."""

    name: str
    """What was looked at."""
    state: State
    """"skipped": it could not be looked at, or nothing depends on it here."""
    detail: str
    """What was found."""
    advice: str = ""
    """What to do; empty where there is nothing to do."""

    def __post_init__(self) -> None:
        """Hide keys, and write out what would steer a terminal: names and answers are other people's."""
        for field in ("name", "detail", "advice"):
            object.__setattr__(self, field, printable(masked(getattr(self, field))))


async def guarded(name: str, check: Callable[[], Awaitable[Check]], key_variable: str = "") -> Check:
    """What the check finds; where it raises, a failed check that says why.

    Args:
        name: of the check, for what it cannot say itself.
        check: the check.
        key_variable: environment variable of the key that its server is asked with.
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
            name, "failed", f"no end within {PATIENCE:g} s", "Is the server overloaded, or stuck? See its log."
        )
    except Exception as error:
        what = f"{type(error).__name__}: {excerpt(str(error))}"
        return Check(name, "failed", what, "Not expected: please report it.")


def server_advice(error: CriticServerError, key_variable: str = "") -> str:
    """What to do about a server's failure."""
    if error.status is None:
        return "Start the server, or correct the address: amc serve --help."
    if error.status in (401, 403):
        return (
            f"Set {key_variable or 'the environment variable of its key'} to the key that the server was started with."
        )
    if error.status >= 500:
        return "The server has a fault of its own: see its log."
    return ""
