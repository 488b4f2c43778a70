"""Reads the target and the options of a critic's string, and says what was expected where they are wrong."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from amc_agents.critics.server.http import KEY_VARIABLE
from amc_agents.errors import ConfigurationError, CriticSpecError


def allow(kind: str, options: Mapping[str, str], *names: str) -> None:
    """Refuse options of other names."""
    for option in options:
        if option not in names:
            known = f"it takes {', '.join(names)}" if names else "it takes none"
            raise CriticSpecError(f"critic kind {kind!r} has no option {option!r}: {known}{near(option, names)}")


def needed(kind: str, target: str, example: str) -> str:
    """The target, which may not be empty."""
    if not target:
        raise CriticSpecError(f"critic kind {kind!r} needs a target, as in {kind}:{example}")
    return target


def positive_integer(kind: str, options: Mapping[str, str], option: str, default: int) -> int:
    """An integer of at least 1."""
    text = options.get(option, str(default))
    # Python refuses to read thousands of digits.
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < 1:
        raise CriticSpecError(f"critic kind {kind!r}: {option} must be a positive integer, got {text[:40]!r}")
    return int(text)


def number(kind: str, options: Mapping[str, str], option: str, default: float, *, least: float = -math.inf) -> float:
    """A finite number, not below `least`."""
    text = options.get(option, str(default))
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= least):
        bound = f" of at least {least:g}" if math.isfinite(least) else ""
        raise CriticSpecError(f"critic kind {kind!r}: {option} must be a number{bound}, got {text!r}")
    return found


def choice(kind: str, options: Mapping[str, str], option: str, default: str, allowed: Iterable[str]) -> str:
    """One of a few words."""
    text, words = options.get(option, default), list(allowed)
    if text not in words:
        raise CriticSpecError(f"critic kind {kind!r}: {option} must be one of {', '.join(words)}, got {text!r}")
    return text


def server_options(kind: str, options: Mapping[str, str]) -> dict[str, Any]:
    """What key_env=, timeout= and retry_for= mean to `http.ModelServer`, the same for every kind with a server."""
    return {
        "key_variable": options.get("key_env", KEY_VARIABLE),
        "timeout": number(kind, options, "timeout", 60.0, least=0.001),
        "retry_for": number(kind, options, "retry_for", 60.0, least=0.0),
    }


@contextmanager
def understood(kind: str) -> Iterator[None]:
    """A setting that is refused within came from the string of a critic of this kind."""
    try:
        yield
    except CriticSpecError:
        raise
    except ConfigurationError as error:
        raise CriticSpecError(f"critic kind {kind!r}: {error}") from error


def near(word: str, words: Iterable[str]) -> str:
    """A hint at the nearest word, or nothing."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


_MOST_DIGITS = 18
