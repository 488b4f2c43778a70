"""Keys and values: rows of the active sequences, and a radix tree of those computed before.

Each node of the tree holds a run of tokens with their keys and values; a prefix of many sequences is stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from amc_agents.models.engine import Float32Array

_FIRST_ROWS, _FIRST_LENGTH = 16, 256


class KVRows:
    """Rows of one array that grows as needed.

    Args:
        layers: number of transformer blocks.
        kv_heads: number of key/value heads.
        head_dim: dimensions of a head.
        context: maximum length of a sequence.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, context: int) -> None:
        self._context = context
        # Zeros instead of uninitialised memory: masked entries are still multiplied by 0 and must be finite.
        self.data: Float32Array = np.zeros(
            (layers, 2, _FIRST_ROWS, kv_heads, min(_FIRST_LENGTH, context), head_dim), dtype=np.float32
        )
        """`[layers, 2, rows, kv_heads, capacity, head_dim]`: keys, then values."""
        self.lengths = np.zeros(_FIRST_ROWS, dtype=np.int64)
        """`[rows]` number of tokens of each row."""

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` rows of `length` tokens."""
        layers, two, old_rows, heads, old_length, dim = self.data.shape
        if rows <= old_rows and length <= old_length:
            return
        new_rows = max(old_rows, 1 << (rows - 1).bit_length())
        new_length = min(max(old_length, 1 << (length - 1).bit_length()), self._context)
        data = np.zeros((layers, two, new_rows, heads, new_length, dim), dtype=np.float32)
        data[:, :, :old_rows, :, :old_length] = self.data
        self.data = data
        self.lengths = np.concatenate([self.lengths, np.zeros(new_rows - old_rows, dtype=np.int64)])

    def load(self, row: int, segments: Sequence[Float32Array], extra: int) -> None:
        """Fill a row with cached segments (each `[layers, 2, kv_heads, n, head_dim]`) and reserve `extra` tokens."""
        length = sum(segment.shape[3] for segment in segments)
        self.reserve(row + 1, length + extra)
        at = 0
        for segment in segments:
            self.data[:, :, row, :, at : at + segment.shape[3]] = segment
            at += segment.shape[3]
        self.lengths[row] = at

    def copy(self, source: int, target: int) -> None:
        """Copy row `source` to row `target`."""
        self.reserve(target + 1, 1)
        length = self.lengths[source]
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]
        self.lengths[target] = length

    def segment(self, row: int, start: int, end: int) -> Float32Array:
        """Copy the keys and values of some tokens of a row: `[layers, 2, kv_heads, end - start, head_dim]`."""
        return self.data[:, :, row, :, start:end].copy()


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
