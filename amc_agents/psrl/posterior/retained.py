"""A check, without any model, that an update has kept what was known.

An updater that writes the whole posterior anew may leave out what the observation did not touch: catastrophic
forgetting (PSRL, appendix A.2). Numbers and words of a statement may change, since that is what an update does; the
statement itself should not vanish.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from itertools import takewhile

KEPT_SHARE = 0.5
"""Share of a statement's words that its successor has to have."""
COMPARED = 300
"""The most changed statements of a text that are compared with each of the other's."""

Tokens = tuple[str, ...]

_BREAK = re.compile(r"\n+|(?<=[.!?;])\s+")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")


def dropped_statements(old: str, new: str) -> tuple[str, ...]:
    """Statements (lines, and sentences within them) of the old text that have no successor in the new one.

    Each old statement is paired with a new one of its own that has at least half of its words; those that begin most
    alike come first, since what a statement is about stands there. One without a partner is still kept where a single
    new statement has all of its words and numbers (two were merged). Case, order and punctuation do not count.

    Of more than `COMPARED` statements that changed, only the first so many are compared with each other, so that a
    long text takes no more than its length: a later one is kept where it is repeated word for word, or merged.
    """
    statements = _statements(old)
    before, after = [_tokens(one) for one in statements], [_tokens(one) for one in _statements(new)]
    kept, unclaimed = _repeated(before, after)
    changed = [i for i in range(len(before)) if i not in kept]
    kept |= _succeeded(before, after, changed[:COMPARED], unclaimed[:COMPARED])
    kept |= _merged(before, after, [i for i in changed if i not in kept])
    return tuple(one for i, one in enumerate(statements) if i not in kept)


def _statements(text: str) -> list[str]:
    parts = (part.strip() for part in _BREAK.split(text))
    return [part for part in parts if _TOKEN.search(part)]


def _tokens(statement: str) -> Tokens:
    return tuple(token.casefold() for token in _TOKEN.findall(statement))


def _repeated(before: list[Tokens], after: list[Tokens]) -> tuple[set[int], list[int]]:
    """Old statements that stand in the new text word for word, and the new ones that repeat none."""
    places: dict[Tokens, deque[int]] = {}
    for j, theirs in enumerate(after):
        places.setdefault(theirs, deque()).append(j)
    # No other pair of these statements begins as much alike, so they would be paired first in any case.
    pairs = {i: places[mine].popleft() for i, mine in enumerate(before) if places.get(mine)}
    taken = set(pairs.values())
    return set(pairs), [j for j in range(len(after)) if j not in taken]


def _succeeded(before: list[Tokens], after: list[Tokens], changed: list[int], unclaimed: list[int]) -> set[int]:
    """Changed statements that have a successor of their own."""
    words = {i: {token for token in before[i] if not token[0].isdigit()} or set(before[i]) for i in changed}
    mine, theirs = {i: Counter(before[i]) for i in changed}, {j: Counter(after[j]) for j in unclaimed}
    pairs = sorted(
        (-_common_start(before[i], after[j]), -_shared(mine[i], theirs[j]) / max(len(before[i]), len(after[j])), i, j)
        for i in changed
        for j in unclaimed
        if len(words[i] & theirs[j].keys()) >= KEPT_SHARE * len(words[i])
    )
    kept: set[int] = set()
    taken: set[int] = set()
    for _, _, i, j in pairs:
        if i not in kept and j not in taken:
            kept.add(i)
            taken.add(j)
    return kept


def _merged(before: list[Tokens], after: list[Tokens], left: list[int]) -> set[int]:
    """Statements all of whose words and numbers stand in a single new one."""
    counts = [Counter(theirs) for theirs in after]
    places: dict[str, list[int]] = {}
    for j, count in enumerate(counts):
        for token in count:
            found = places.setdefault(token, [])
            if len(found) < COMPARED:
                found.append(j)
    kept: set[int] = set()
    for i in left:
        mine = Counter(before[i])
        rarest = min((places.get(token, []) for token in mine), key=len)
        if any(_shared(mine, counts[j]) == mine.total() for j in rarest):
            kept.add(i)
    return kept


def _common_start(old: Tokens, new: Tokens) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _shared(old: Counter[str], new: Counter[str]) -> int:
    return sum(min(count, new[token]) for token, count in old.items())
