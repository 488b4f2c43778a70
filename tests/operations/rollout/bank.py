"""How many events are no outlier."""

from __future__ import annotations

from math import comb


def most(n: int, p: float, tail: float = 1e-4) -> int:
    """The largest number of n events of probability p that is not an outlier: P(more) <= tail."""
    seen = 0.0
    for k in range(n + 1):
        seen += comb(n, k) * p**k * (1 - p) ** (n - k)
        if 1 - seen <= tail:
            return k
    return n
