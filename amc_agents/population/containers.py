"""Copy the containers of an agent's state without their contents."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

from langgraph.types import Send


def own_containers(value: Any) -> Any:
    """Copy nested lists, dicts, sets, tuples and `Send`s, and share all other objects.

    An agent may mutate a container in place; other particles must not see the change.
    """
    kind = type(value)
    if kind is list:
        return [own_containers(item) for item in value] if _nested(value) else value.copy()
    if kind is dict:
        return {key: own_containers(item) for key, item in value.items()} if _nested(value.values()) else value.copy()
    if kind is set:
        return set(value)
    if kind is Send:
        sent = copy(value)
        sent.arg = own_containers(value.arg)
        return sent
    if kind is tuple or hasattr(kind, "_make"):
        items = map(own_containers, value)
        return tuple(items) if kind is tuple else kind._make(items)
    return value


def _nested(items: Iterable[Any]) -> bool:
    # Checking types is fast: a conversation of hundreds of messages has three.
    return any(issubclass(kind, (list, dict, set, tuple, Send)) for kind in {*map(type, items)})
