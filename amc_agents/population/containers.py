"""Copy the containers of an agent's state without their contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from langgraph.channels.untracked_value import UntrackedValue
from langgraph.types import Send
from typing_extensions import override


def own_containers(value: Any) -> Any:
    """Copy nested lists, dicts, sets, tuples and `Send`s, and share all other objects.

    An agent may mutate a container in place; other particles must not see the change. Lists and dicts may be nested to
    any depth.
    """
    copied = [value]
    unfinished: list[tuple[Any, Any]] = [(copied, 0)]
    while unfinished:
        holder, key = unfinished.pop()
        own = holder[key] = _own(holder[key])
        if type(own) is list and _nested(own):
            unfinished += [(own, index) for index in range(len(own))]
        elif type(own) is dict and _nested(own.values()):
            unfinished += [(own, name) for name in own]
    return copied[0]


class CarriedValue(UntrackedValue[Any]):
    """An `UntrackedValue` that a fork keeps if it consists of plain values, such as the counters of run limits.

    Other objects, such as the session of a shell, cannot be copied: after a fork they are missing, as after a restart.
    """

    @override
    def checkpoint(self) -> Any:
        return self.value if is_plain(self.value) else super().checkpoint()

    @override
    def from_checkpoint(self, checkpoint: Any) -> CarriedValue:
        restored = super().from_checkpoint(checkpoint)
        restored.value = checkpoint
        return restored


def carrying(channels: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's channels, with those that LangGraph leaves out of checkpoints kept at forks."""
    return {
        name: CarriedValue(channel.typ, channel.guard) if type(channel) is UntrackedValue else channel
        for name, channel in channels.items()
    }


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts, lists and dicts."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return all(map(is_plain, value)) if isinstance(value, list) else isinstance(value, str | int | float | None)


def _own(value: Any) -> Any:
    """Copy a container, and what tuples and `Send`s hold."""
    kind = type(value)
    if kind is list or kind is dict or kind is set:
        return value.copy()
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
