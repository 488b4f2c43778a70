"""Read the target and the options of a critic's string. Every function raises `CriticSpecError` for a wrong value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from amc_agents.critics.server.http import KEY_VARIABLE
from amc_agents.errors import ConfigurationError, CriticSpecError
from amc_agents.quoting import quoted


def allow(kind: str, options: Mapping[str, str], *names: str) -> None:
    """Refuse options with other names."""
    for option in options:
        if option not in names:
            known = f"it takes {', '.join(names)}" if names else "it takes none"
            raise CriticSpecError(
                f"critic kind {quoted(kind)} has no option {quoted(option, 60)}: {known}{near(option, names)}"
            )


def needed(kind: str, target: str, example: str) -> str:
    """Return the target, which must not be empty."""
    if not target:
        raise CriticSpecError(f"critic kind {quoted(kind)} needs a target, as in {kind}:{example}")
    return target


def positive_integer(kind: str, options: Mapping[str, str], option: str, default: int) -> int:
    """Read an integer of at least 1."""
    text = options.get(option, str(default))
    # Python's int() refuses thousands of digits.
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < 1:
        raise CriticSpecError(
            f"critic kind {quoted(kind)}: {option} must be a positive integer, got {quoted(text, 40)}"
        )
    return int(text)


def number(kind: str, options: Mapping[str, str], option: str, default: float, *, least: float = -math.inf) -> float:
    """Read a finite number, at least `least`."""
    text = options.get(option, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        bound = f" of at least {least:g}" if math.isfinite(least) else ""
        raise CriticSpecError(f"critic kind {quoted(kind)}: {option} must be a number{bound}, got {quoted(text, 60)}")
    return value


def choice(kind: str, options: Mapping[str, str], option: str, default: str, allowed: Iterable[str]) -> str:
    """Read one of the allowed words."""
    text, words = options.get(option, default), list(allowed)
    if text not in words:
        raise CriticSpecError(
            f"critic kind {quoted(kind)}: {option} must be one of {', '.join(words)}, got {quoted(text, 60)}"
        )
    return text


def server_options(kind: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `ModelServer` from key_env=, timeout= and retry_for=, for every kind with a server."""
    return {
        "key_variable": options.get("key_env", KEY_VARIABLE),
        "timeout": number(kind, options, "timeout", 60.0, least=0.001),
        "retry_for": number(kind, options, "retry_for", 60.0, least=0.0),
    }


@contextmanager
def understood(kind: str) -> Iterator[None]:
    """Turn a `ConfigurationError` of the block into a `CriticSpecError` that names the kind."""
    try:
        yield
    except CriticSpecError:
        raise
    except ConfigurationError as error:
        raise CriticSpecError(f"critic kind {quoted(kind)}: {error}") from error


def near(word: str, words: Iterable[str]) -> str:
    """A hint at the most similar word, or ""."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {quoted(close[0])}?" if close else ""


_MOST_DIGITS = 18
