"""Keys and values of the active sequences, one row per sequence."""

from __future__ import annotations

from collections.abc import Sequence

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
