"""A covering array: few combinations of factors' levels, in which every pair of levels of two factors occurs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Row = dict[str, Any]


def covering(
    factors: Mapping[str, Sequence[Any]],
    allowed: Callable[[Row], bool] = lambda row: True,
    pairs_of: Iterable[tuple[str, str]] | None = None,
) -> list[Row]:
    """Return rows that cover all allowed pairs of levels, greedily and always in the same order.

    Args:
        factors: name -> levels.
        allowed: whether a row, possibly of some factors only, can be completed.
        pairs_of: the pairs of factors to cover; None: all.
    """
    wanted = {frozenset(pair) for pair in (combinations(factors, 2) if pairs_of is None else pairs_of)}
    uncovered = {
        frozenset({(one, a), (other, b)}): None
        for one, other in combinations(factors, 2)
        if frozenset({one, other}) in wanted
        for a, b in product(factors[one], factors[other])
        if allowed({one: a, other: b})
    }
    rows: list[Row] = []
    while uncovered:
        seed = next(iter(uncovered))
        row = _completed(dict(seed), factors, allowed, uncovered)
        uncovered.pop(seed)  # A pair that cannot be completed is given up.
        if row is None:
            continue
        for pair in combinations(row.items(), 2):
            uncovered.pop(frozenset(pair), None)
        rows.append({name: row[name] for name in factors})
    return rows


def _completed(
    row: Row, factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], uncovered: Mapping[Any, None]
) -> Row | None:
    for name in factors:
        if name in row:
            continue
        levels = [level for level in factors[name] if allowed({**row, name: level})]
        if not levels:
            return None
        counts = [sum(frozenset({(name, level), item}) in uncovered for item in row.items()) for level in levels]
        # Levels that cover equally much take turns, or the first would be in most rows.
        best = [level for level, count in zip(levels, counts, strict=True) if count == max(counts)]
        row[name] = best[len(uncovered) % len(best)]
    return row
