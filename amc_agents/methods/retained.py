"""A check, without any model, that an update has kept what was known.

An updater that writes the whole posterior anew may leave out what the observation did not touch: catastrophic
forgetting (PSRL, appendix A.2). Numbers and words of a statement may change, since that is what an update does; the
statement itself should not vanish.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import takewhile

KEPT_SHARE = 0.5
"""Share of a statement's words that its successor has to have."""

_BREAK = re.compile(r"\n+|(?<=[.!?;])\s+")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")


def dropped_statements(old: str, new: str) -> tuple[str, ...]:
    """Statements (lines, and sentences within them) of the old text that have no successor in the new one.

    Each old statement is paired with a new one of its own that has at least half of its words; those that begin most
    alike come first, since what a statement is about stands there. One without a partner is still kept where a single
    new statement has all of its words and numbers (two were merged). Case, order and punctuation do not count.
    """
    statements = _statements(old)
    before, after = [_tokens(one) for one in statements], [_tokens(one) for one in _statements(new)]
    pairs = sorted(
        (-_common_start(mine, theirs), -_likeness(mine, theirs), i, j)
        for i, mine in enumerate(before)
        for j, theirs in enumerate(after)
        if _may_succeed(mine, theirs)
    )
    kept: set[int] = set()
    taken: set[int] = set()
    for _, _, i, j in pairs:
        if i not in kept and j not in taken:
            kept.add(i)
            taken.add(j)
    merged = [Counter(theirs) for theirs in after]
    kept.update(i for i, mine in enumerate(before) if any(Counter(mine) <= theirs for theirs in merged))
    return tuple(one for i, one in enumerate(statements) if i not in kept)


def _statements(text: str) -> list[str]:
    parts = (part.strip() for part in _BREAK.split(text))
    return [part for part in parts if _TOKEN.search(part)]


def _tokens(statement: str) -> list[str]:
    return [token.casefold() for token in _TOKEN.findall(statement)]


def _may_succeed(old: list[str], new: list[str]) -> bool:
    words = {token for token in old if not token[0].isdigit()} or set(old)
    return len(words.intersection(new)) >= KEPT_SHARE * len(words)


def _common_start(old: list[str], new: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _likeness(old: list[str], new: list[str]) -> float:
    return (Counter(old) & Counter(new)).total() / max(len(old), len(new))
