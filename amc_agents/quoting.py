"""Quote untrusted text in messages and on terminals: shortened, without control characters and without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

MOST_SHOWN, MOST_QUOTED = 200, 80
"""Maximum number of characters of an excerpt, and of a quoted value, in a message. A message has at most 400."""
_LEAST_SECRET = 6
_MOST_ITEMS, _MOST_LEVELS = 8, 4

_secrets: set[str] = set()


def keep_secret(key: str) -> None:
    """Register a secret that `masked` hides, including its JSON, Python and URL encodings.

    Values of fewer than six characters are ignored: they are placeholders such as "none", and hiding them would
    garble every message.
    """
    if len(key) >= _LEAST_SECRET:
        _secrets.update((key, json.dumps(key)[1:-1], repr(key)[1:-1], quote(key, safe="")))


def keep_secrets_of(model: Any) -> None:
    """Register the API keys of a LangChain chat or embedding model, including those in its headers and its queries."""
    for value in vars(model).values():
        if hasattr(value, "get_secret_value"):
            keep_secret(value.get_secret_value())
    for setting in ("default_headers", "default_query"):
        given = getattr(model, setting, None)
        for name, value in given.items() if isinstance(given, Mapping) else ():
            if _NAMES_OF_KEYS.search(name):
                keep_secret(str(value).removeprefix("Bearer "))


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error for `raise ... from`, or None if its text contains a secret that a traceback would show."""
    return error if masked(str(error)) == str(error) else None


def masked(text: str) -> str:
    """Hide registered secrets, credentials in URLs, and values of query parameters such as `api_key`.

    Mask before truncating, since part of a secret is not recognised.

    >>> masked("http://me:hunter2@host/?api_key=abc&model=m")
    'http://***@host/?api_key=***&model=m'
    """
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return without_credentials(text)


def without_credentials(text: str) -> str:
    """Hide what a URL shows to be a secret: its user and password, and parameters such as `api_key`.

    >>> without_credentials("http://me:hunter2@host/?token=abc")
    'http://***@host/?token=***'
    """
    return _PARAMETER.sub(r"\1***", _USER.sub(r"\1***@", text))


def printable(text: str) -> str:
    r"""Escape control and invisible characters, so that a terminal displays them instead of interpreting them.

    Line ends and tabs are kept. The escapes are those of JSON, so JSON text keeps its meaning.

    >>> printable("\x1b[2J\rok\n")
    '\\u001b[2J\\u000dok\n'
    """
    return _UNPRINTABLE.sub(lambda character: _escape(character[0]), text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def excerpt(text: str, most: int = MOST_SHOWN) -> str:
    """Return the beginning of a text on one line, masked and printable."""
    words = printable(" ".join(masked(text)[: 10 * most].split()))
    return words if len(words) <= most else f"{words[:most]}..."


def quoted(value: Any, most: int = MOST_QUOTED) -> str:
    """Return the `repr` of a value, masked and truncated, without formatting all of it first.

    >>> quoted({"data": list(range(100))})
    "{'data': [0, 1, 2, 3, 4, 5, 6, 7, ...]}"
    """
    text = repr(_bounded(value, most, _MOST_LEVELS))
    return text if len(text) <= most else f"{text[:most]}..."


def listed(names: Any, most: int = _MOST_ITEMS) -> str:
    """Join names for a message, each truncated, at most `most` of them: "a, b, c and 4 more"."""
    shown = [excerpt(str(name), 60) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


class _Shown:
    """A value that is replaced by this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _bounded(value: Any, most: int, levels: int) -> Any:
    """Limit the number of items, the nesting and the length of texts, and mask the texts."""
    if isinstance(value, str):
        return masked(value)[: most + 1]
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int):  # Python refuses to write thousands of digits in decimal.
        return value if value.bit_length() < 4 * most else _Shown(f"{value:#x}")
    if not isinstance(value, Mapping | list | tuple):
        return _Shown(excerpt(repr(value), most))
    if not levels:
        return _Shown("...")
    if isinstance(value, Mapping):
        pairs = list(value.items())[:_MOST_ITEMS]
        bounded = {_bounded(key, most, 0): _bounded(item, most, levels - 1) for key, item in pairs}
        return {**bounded, _Shown("..."): _Shown("...")} if len(value) > _MOST_ITEMS else bounded
    items = [_bounded(item, most, levels - 1) for item in value[:_MOST_ITEMS]]
    items += [_Shown("...")] if len(value) > _MOST_ITEMS else []
    return tuple(items) if isinstance(value, tuple) else items


_USER = re.compile(r"(://)[^/\s@]*@")
_PARAMETER = re.compile(
    r"([?&](?:api[_-]?key|key|access[_-]?token|token|secret|password|signature|sig)=)[^&\s#'\"]+", re.IGNORECASE
)
_NAMES_OF_KEYS = re.compile(r"auth|key|token|secret|password|cookie", re.IGNORECASE)
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, including escape sequences and carriage returns
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f"  # characters that reorder the surrounding text
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible marks and tags, which can hide a message
    "\ud800-\udfff]"  # surrogates, such as undecodable bytes of a path
)
