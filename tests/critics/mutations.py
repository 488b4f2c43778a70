"""JSON with a value replaced by values of other types, as a faulty server or a damaged file may contain."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

WRONG = (None, True, -1, 3, 0.5, 10**400, "x", [], [1], [None], {}, {"a": None}, [[["x"]]])


def paths(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values in a JSON value; in lists, only to the first two items."""
    items: Any = plain.items() if isinstance(plain, dict) else enumerate(plain[:2]) if isinstance(plain, list) else ()
    yield from chain.from_iterable([(*path, key), *paths(value, (*path, key))] for key, value in items)


def changed(plain: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The JSON value with another value at a path."""
    if not path:
        return value
    copy = dict(plain) if isinstance(plain, dict) else list(plain)
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


def mutations(plain: Any) -> Iterator[Any]:
    """The JSON value with each of its values, itself included, replaced by each of `WRONG`."""
    for path in [(), *paths(plain)]:
        for value in WRONG:
            yield changed(plain, path, value)
