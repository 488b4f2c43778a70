"""A radix tree of computed keys and values, so that sequences share those of their common prefixes.

Each node holds a run of tokens with their keys and values; a prefix of many sequences is stored once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from amc_agents.models.engine import Float32Array

Tokens = tuple[int, ...]


class _Node:
    """A run of tokens that follows its parent's run."""

    __slots__ = ("children", "kv", "parent", "tokens", "used")

    def __init__(self, tokens: Tokens, kv: Float32Array | None, parent: _Node | None, used: int) -> None:
        self.tokens, self.kv, self.parent, self.used = tokens, kv, parent, used
        self.children: dict[int, _Node] = {}


class Match(NamedTuple):
    """The longest cached prefix of a sequence."""

    length: int
    segments: list[Float32Array]
    """Keys and values in order, each `[layers, 2, kv_heads, n, head_dim]`; read-only."""


class PrefixCache:
    """Holds at most `max_tokens` tokens and evicts the least recently used leaves first. Not thread-safe."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.n_tokens = 0
        """Number of stored tokens."""
        self._root = _Node((), None, None, 0)
        self._clock = 0

    def match(self, tokens: Tokens, limit: int) -> Match:
        """Return the longest cached prefix of `tokens`, of at most `limit` tokens."""
        self._clock += 1
        node, at, segments = self._root, 0, []
        while at < limit:
            child = node.children.get(tokens[at])
            if child is None or child.kv is None:
                break
            child.used = self._clock
            end = at + len(child.tokens)
            if end > limit or tokens[at:end] != child.tokens:
                common = _common(tokens[at : min(end, limit)], child.tokens)
                segments.append(child.kv[..., :common, :])
                at += common
                break
            segments.append(child.kv)
            node, at = child, end
        return Match(at, segments)

    def insert(self, tokens: Tokens, kv: Callable[[int, int], Float32Array]) -> None:
        """Store a sequence; `kv(start, end)` returns a copy of the keys and values of its tokens in that range."""
        self._clock += 1
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                added = _Node(tokens[at:], kv(at, len(tokens)), node, self._clock)
                node.children[tokens[at]] = added
                self.n_tokens += len(added.tokens)
                break
            child.used = self._clock
            end = at + len(child.tokens)
            if tokens[at:end] != child.tokens:
                common = _common(tokens[at:end], child.tokens)
                child = _split(child, common)
                end = at + common
            node, at = child, end
        if self.n_tokens > self.max_tokens:
            self._evict()

    def _evict(self) -> None:
        """Drop least recently used leaves until a tenth of the capacity is free."""
        while self.n_tokens > 0.9 * self.max_tokens:
            leaves = sorted(self._leaves(), key=lambda node: node.used)
            for leaf in leaves:
                if self.n_tokens <= 0.9 * self.max_tokens:
                    return
                assert leaf.parent is not None
                del leaf.parent.children[leaf.tokens[0]]
                self.n_tokens -= len(leaf.tokens)

    def _leaves(self) -> list[_Node]:
        leaves, stack = [], list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if not node.children:
                leaves.append(node)
        return leaves


def _common(left: Tokens, right: Tokens) -> int:
    """Return the length of the common prefix."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _split(node: _Node, at: int) -> _Node:
    """Split a node in two and return the first part; both get copies of their arrays, so that memory can be freed."""
    assert node.kv is not None
    assert node.parent is not None
    first = _Node(node.tokens[:at], node.kv[..., :at, :].copy(), node.parent, node.used)
    node.parent.children[node.tokens[0]] = first
    node.tokens, node.kv, node.parent = node.tokens[at:], node.kv[..., at:, :].copy(), first
    first.children[node.tokens[0]] = node
    return first
