"""Numbers as reports print them."""

from __future__ import annotations


def short(count: float) -> str:
    """Format a large count.

    >>> short(12_345_678), short(45_000), short(900)
    ('12.3 M', '45 k', '900')
    """
    if count >= 1e6:
        return f"{count / 1e6:.1f} M"
    return f"{count / 1e3:.0f} k" if count >= 1e4 else f"{count:,.0f}"
