"""Closed intervals of integers, as (first, last)."""

from itertools import pairwise


def overlap(a, b):
    """Return the common part of two intervals, or None."""
    first = max(a[0], b[0])
    last = min(a[1], b[1])
    return (first, last) if first <= last else None


def merged(intervals):
    """Merge intervals that overlap or touch."""
    result = []
    for first, last in sorted(intervals):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return result


def length(intervals):
    """Count the integers that the intervals cover."""
    return sum(last - first + 1 for first, last in merged(intervals))


def gaps(intervals):
    """Return the intervals between the given ones."""
    parts = merged(intervals)
    return [(a[1] + 1, b[0] - 1) for a, b in pairwise(parts)]
