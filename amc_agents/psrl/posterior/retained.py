"""Checks, without a model, that an update retains the statements of the posterior.

An updater that rewrites the whole posterior may omit statements that the observation did not concern: catastrophic
forgetting (PSRL, appendix A.2). An update may change numbers and words of a statement, but should not drop it.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from itertools import takewhile

KEPT_SHARE = 0.5
"""Minimum share of a statement's words in its successor."""
COMPARED = 300
"""Maximum number of changed statements that are compared pairwise."""

Tokens = tuple[str, ...]

_BREAK = re.compile(r"\n+|(?<=[.!?;])\s+")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")


def dropped_statements(old: str, new: str) -> tuple[str, ...]:
    """Return statements (lines, and sentences within lines) of the old text without a successor in the new text.

    Each old statement is paired with a different new statement that has at least half of its words. Pairs with the
    longest common start come first, since the start of a statement names its subject. An unpaired statement still
    counts as retained if a single new statement has all of its words and numbers, as after a merge. Case, order and
    punctuation are ignored.

    Only the first `COMPARED` changed statements are compared pairwise, so that the time is linear in the length of the
    text. A later statement is retained if it is repeated verbatim or merged.
    """
    statements = _statements(old)
    before, after = [_tokens(text) for text in statements], [_tokens(text) for text in _statements(new)]
    kept, unclaimed = _repeated(before, after)
    changed = [i for i in range(len(before)) if i not in kept]
    kept |= _succeeded(before, after, changed[:COMPARED], unclaimed[:COMPARED])
    kept |= _merged(before, after, [i for i in changed if i not in kept])
    return tuple(statement for i, statement in enumerate(statements) if i not in kept)


def _statements(text: str) -> list[str]:
    parts = (part.strip() for part in _BREAK.split(text))
    return [part for part in parts if _TOKEN.search(part)]


def _tokens(statement: str) -> Tokens:
    return tuple(token.casefold() for token in _TOKEN.findall(statement))


def _repeated(before: list[Tokens], after: list[Tokens]) -> tuple[set[int], list[int]]:
    """Return the old statements that the new text repeats verbatim, and the new statements that repeat none."""
    places: dict[Tokens, deque[int]] = {}
    for j, tokens in enumerate(after):
        places.setdefault(tokens, deque()).append(j)
    # No other pair of these statements has a longer common start, so they would be paired first anyway.
    pairs = {i: places[tokens].popleft() for i, tokens in enumerate(before) if places.get(tokens)}
    taken = set(pairs.values())
    return set(pairs), [j for j in range(len(after)) if j not in taken]


def _succeeded(before: list[Tokens], after: list[Tokens], changed: list[int], unclaimed: list[int]) -> set[int]:
    """Return the changed statements that are paired with a successor."""
    words = {i: {token for token in before[i] if not token[0].isdigit()} or set(before[i]) for i in changed}
    old_counts, new_counts = {i: Counter(before[i]) for i in changed}, {j: Counter(after[j]) for j in unclaimed}
    pairs = sorted(
        (
            -_common_start(before[i], after[j]),
            -_shared(old_counts[i], new_counts[j]) / max(len(before[i]), len(after[j])),
            i,
            j,
        )
        for i in changed
        for j in unclaimed
        if len(words[i] & new_counts[j].keys()) >= KEPT_SHARE * len(words[i])
    )
    kept: set[int] = set()
    taken: set[int] = set()
    for _, _, i, j in pairs:
        if i not in kept and j not in taken:
            kept.add(i)
            taken.add(j)
    return kept


def _merged(before: list[Tokens], after: list[Tokens], unpaired: list[int]) -> set[int]:
    """Return the unpaired statements whose words and numbers all occur in a single new statement."""
    counts = [Counter(tokens) for tokens in after]
    occurrences: dict[str, list[int]] = {}
    for j, count in enumerate(counts):
        for token in count:
            statements = occurrences.setdefault(token, [])
            if len(statements) < COMPARED:
                statements.append(j)
    kept: set[int] = set()
    for i in unpaired:
        count = Counter(before[i])
        of_rarest_token = min((occurrences.get(token, []) for token in count), key=len)
        if any(_shared(count, counts[j]) == count.total() for j in of_rarest_token):
            kept.add(i)
    return kept


def _common_start(old: Tokens, new: Tokens) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _shared(old: Counter[str], new: Counter[str]) -> int:
    return sum(min(count, new[token]) for token, count in old.items())
