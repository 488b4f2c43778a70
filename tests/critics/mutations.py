"""JSON with one value replaced by another of every type: what a server or a damaged file may say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

WRONG = (None, True, -1, 3, 0.5, 10**400, "x", [], [1], [None], {}, {"a": None}, [[["x"]]])


def places(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in some JSON, the first items of lists alone."""
    items: Any = plain.items() if isinstance(plain, dict) else enumerate(plain[:2]) if isinstance(plain, list) else ()
    yield from chain.from_iterable([(*path, key), *places(value, (*path, key))] for key, value in items)


def changed(plain: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The JSON with another value at a place."""
    if not path:
        return value
    copy = dict(plain) if isinstance(plain, dict) else list(plain)
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


def mutations(plain: Any) -> Iterator[Any]:
    """The JSON with each of its values replaced by each of `WRONG`, itself included."""
    for path in [(), *places(plain)]:
        for value in WRONG:
            yield changed(plain, path, value)
