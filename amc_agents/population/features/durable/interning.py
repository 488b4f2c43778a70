"""Encode values as nodes of a table in which equal parts, such as a shared past, are stored once.

A node is an atom, or a list: a tag, then the keys of its parts. Its key is its position in the table, and a part always
precedes the nodes that contain it. Lists share their beginnings, so that a conversation that grows by two messages adds
two nodes. Values of other types are serialised by the checkpointer's own serialiser.

Messages are recognised by identity and decoded to a single object each, because particles share them by reference.
Everything else is stored by value, so that a later change of a mutable object cannot alter what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.types import Command, Overwrite, Send

_LINK, _LIST, _TUPLE, _DICT, _SET, _FROZENSET, _INTEGER, _ARRAY, _MESSAGE, _OBJECT, _SEND, _OVERWRITE, _COMMAND = range(
    13
)
_EMPTY: Final = -1
"""Key of the end of a list."""
_LARGEST = 2**63

Node = Any
"""An atom, or a list that begins with a tag."""


class Constant:
    """A value that never changes and is recognised by the identity of this object, so that it is encoded once."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Memo:
    """Descriptions of objects that never change, each made and encoded once."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Constant]] = {}

    def of(self, source: Any, describe: Callable[[Any], Any]) -> Constant:
        """Return the description of an object, which is recognised by identity and kept alive."""
        made = self._made.get(id(source))
        if made is None:
            made = self._made[id(source)] = source, Constant(describe(source))
        return made[1]


class Table:
    """The nodes of a chain of points, of which each point stores only the new ones.

    Args:
        serde: serialises objects that are neither atoms nor containers.
        nodes: all nodes of the points so far, in order.
    """

    def __init__(self, serde: SerializerProtocol, nodes: Sequence[Node] = ()) -> None:
        self._serde = serde
        self._nodes: list[Node] = []
        self._keys: dict[Any, int] = {}
        self._links: dict[tuple[int, int], int] = {}
        self._shared: dict[int, tuple[BaseMessage | Constant, int]] = {}
        """id(object) -> the object, kept alive so that its id is not reused, and its key."""
        self._decoded: dict[int, BaseMessage] = {}
        self._n_forgotten = 0
        for node in nodes:
            self._add(_index_of(node), node)
        self._n_stored = len(self._nodes)

    @property
    def new(self) -> list[Node]:
        """The nodes that no point has stored yet."""
        return self._nodes[self._n_stored :]

    def mark_stored(self) -> None:
        """Note that a point has stored all nodes, and forget their contents, which only `decode` needs."""
        self._n_forgotten += len(self._nodes)
        self._nodes, self._n_stored = [], 0

    def encode(self, value: Any) -> int:
        """Add the nodes of a value that the table lacks, and return the value's key."""
        kind = type(value)
        if kind in (str, bool, float, bytes) or value is None:
            return self._keyed(value)
        if kind is int:
            return self._keyed(value if -_LARGEST <= value < _LARGEST else [_INTEGER, _bytes_of(value)])
        if kind is list or kind is tuple:
            return self._keyed([_LIST if kind is list else _TUPLE, self._linked(value)])
        if kind is dict:
            # Dicts of the same shape, such as records, share their names.
            return self._keyed([_DICT, self._linked(value), *map(self.encode, value.values())])
        if kind is set or kind is frozenset:
            return self._keyed([_SET if kind is set else _FROZENSET, *sorted(map(self.encode, value))])
        if isinstance(value, (BaseMessage, Constant)):
            return self._identified(value)
        return self._keyed(self._other(value))

    def decode(self, key: int) -> Any:
        """Rebuild the value with this key; containers and objects are new each time, messages are shared.

        All nodes must have been given at construction.
        """
        node = self._nodes[key]
        if type(node) is not list:
            return node
        tag, *parts = node
        if tag in (_LIST, _TUPLE):
            items = self._items(parts[0])
            return items if tag == _LIST else tuple(items)
        if tag == _DICT:
            names, *values = parts
            return dict(zip(self._items(names), map(self.decode, values), strict=True))
        if tag in (_SET, _FROZENSET):
            return (set if tag == _SET else frozenset)(map(self.decode, parts))
        if tag == _MESSAGE:
            return self._decoded_message(key, parts)
        return self._decoded_other(tag, parts)

    def _linked(self, items: Iterable[Any]) -> int:
        # Most of the time of a point is spent here: each particle's whole conversation passes.
        last, shared, links = _EMPTY, self._shared, self._links
        for item in items:
            known = shared.get(id(item))
            key = self.encode(item) if known is None else known[1]
            link = links.get((last, key))
            last = self._add((last, key), [_LINK, last, key]) if link is None else link
        return last

    def _items(self, last: int) -> list[Any]:
        items = []
        while last != _EMPTY:
            _, last, item = self._nodes[last]
            items.append(self.decode(item))
        items.reverse()
        return items

    def _identified(self, value: BaseMessage | Constant) -> int:
        known = self._shared.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, Constant):
            key = self.encode(value.value)
        else:
            key = self._add(None, [_MESSAGE, *self._serde.dumps_typed(value)])
        self._shared[id(value)] = value, key
        return key

    def _decoded_message(self, key: int, stored: list[Any]) -> BaseMessage:
        if key not in self._decoded:
            message = self._decoded[key] = self._serde.loads_typed((stored[0], stored[1]))
            self._shared[id(message)] = message, key
        return self._decoded[key]

    def _other(self, value: Any) -> Node:
        kind = type(value)
        if kind is np.ndarray and value.dtype != object:
            return [_ARRAY, value.dtype.str, self.encode(value.shape), value.tobytes()]
        if kind is Overwrite:
            return [_OVERWRITE, self.encode(value.value)]
        if kind is Send and value.timeout is None:
            return [_SEND, value.node, self.encode(value.arg)]
        if kind is Command:
            return [_COMMAND, *(self.encode(getattr(value, field.name)) for field in fields(Command))]
        return [_OBJECT, *self._serde.dumps_typed(value)]

    def _decoded_other(self, tag: int, parts: list[Any]) -> Any:
        if tag == _INTEGER:
            return int.from_bytes(parts[0], "big", signed=True)
        if tag == _ARRAY:
            return np.frombuffer(parts[2], parts[0]).reshape(self.decode(parts[1])).copy()
        if tag == _OVERWRITE:
            return Overwrite(self.decode(parts[0]))
        if tag == _SEND:
            return Send(parts[0], self.decode(parts[1]))
        if tag == _COMMAND:
            return Command(
                **{field.name: self.decode(part) for field, part in zip(fields(Command), parts, strict=True)}
            )
        return self._serde.loads_typed((parts[0], parts[1]))

    def _keyed(self, node: Node) -> int:
        index = _index_of(node)
        known = self._keys.get(index)
        return self._add(index, node) if known is None else known

    def _add(self, index: Any, node: Node) -> int:
        key = self._n_forgotten + len(self._nodes)
        self._nodes.append(node)
        if type(node) is list and node[0] == _LINK:
            self._links[index] = key
        elif index is not None:
            self._keys[index] = key
        return key


def _bytes_of(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _index_of(node: Node) -> Any:
    """Return what tells a node from all others; None for a message, which is recognised by identity."""
    if type(node) is list:
        return None if node[0] == _MESSAGE else (node[1], node[2]) if node[0] == _LINK else tuple(node)
    # 1, 1.0 and True are equal, and so are 0.0 and -0.0.
    return (float, node.hex()) if type(node) is float else (type(node), node)
