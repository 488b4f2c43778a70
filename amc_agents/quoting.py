"""How text that others wrote is shown in messages and on terminals: short, without control characters, without keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

MOST_SHOWN = 200
"""Characters of somebody else's text that a message shows."""
_LEAST_SECRET = 6
_MOST_ITEMS, _MOST_LEVELS = 8, 4

_secrets: set[str] = set()


def keep_secret(key: str) -> None:
    """From now on `masked` hides this key, in the ways that JSON, Python and addresses write it, too.

    Fewer than six characters are no key but a stand-in such as "none": hiding them would garble every message.
    """
    if len(key) >= _LEAST_SECRET:
        _secrets.update((key, json.dumps(key)[1:-1], repr(key)[1:-1], quote(key, safe="")))


def keep_secrets_of(model: Any) -> None:
    """Keep the keys of a chat model or an embedding model of LangChain's."""
    for value in vars(model).values():
        if hasattr(value, "get_secret_value"):
            keep_secret(value.get_secret_value())


def cause_of(error: BaseException) -> BaseException | None:
    """The error, to be raised from; None where it shows a key, which a log of the chain would then show."""
    return error if masked(str(error)) == str(error) else None


def masked(text: str) -> str:
    """The text without the keys that are in use, without passwords in addresses, and without values of `?api_key=`.

    Mask before cutting: half a key would not be recognised.

    >>> masked("http://me:hunter2@host/?api_key=abc&model=m")
    'http://***@host/?api_key=***&model=m'
    """
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _PARAMETER.sub(r"\1***", _USER.sub(r"\1***@", text))


def printable(text: str) -> str:
    r"""A text whose control characters are written out, so that a terminal shows them instead of obeying.

    Line ends and tabs stay. The notation is JSON's, so JSON stays what it was.

    >>> printable("\x1b[2J\rok\n")
    '\\u001b[2J\\u000dok\n'
    """
    return _UNPRINTABLE.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


def excerpt(text: str, most: int = MOST_SHOWN) -> str:
    """The beginning of a text on one line, masked and printable."""
    words = printable(" ".join(masked(text)[: 10 * most].split()))
    return words if len(words) <= most else f"{words[:most]}..."


def quoted(value: Any, most: int = MOST_SHOWN) -> str:
    """A value as Python writes it, masked, and cut without writing all of it first.

    >>> quoted({"data": list(range(100))})
    "{'data': [0, 1, 2, 3, 4, 5, 6, 7, ...]}"
    """
    text = repr(_bounded(value, most, _MOST_LEVELS))
    return text if len(text) <= most else f"{text[:most]}..."


def listed(names: Any, most: int = _MOST_ITEMS) -> str:
    """Some names, quoted nowhere and cut everywhere, for "it has a, b and c"."""
    shown = [excerpt(str(name), 60) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


class _More:
    """Stands for what was left out."""

    def __repr__(self) -> str:
        return "..."


def _bounded(value: Any, most: int, levels: int) -> Any:
    """The value with fewer items and shorter texts, all of them masked."""
    if isinstance(value, str):
        return masked(value)[: most + 1]
    if not isinstance(value, Mapping | list | tuple):
        return value
    if not levels:
        return _More()
    if isinstance(value, Mapping):
        pairs = list(value.items())[:_MOST_ITEMS]
        bounded = {_bounded(key, most, 0): _bounded(one, most, levels - 1) for key, one in pairs}
        return {**bounded, _More(): _More()} if len(value) > _MOST_ITEMS else bounded
    items = [_bounded(one, most, levels - 1) for one in value[:_MOST_ITEMS]]
    return [*items, _More()] if len(value) > _MOST_ITEMS else items


_USER = re.compile(r"(://)[^/\s@]*@")
_PARAMETER = re.compile(
    r"([?&](?:api[_-]?key|key|access[_-]?token|token|secret|password|signature|sig)=)[^&\s#'\"]+", re.IGNORECASE
)
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, escape sequences and carriage returns among them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what changes the order of the text around it
    "\ud800-\udfff]"  # bytes of a path that are no text
)
