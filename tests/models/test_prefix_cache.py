from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.models.embedded.cache import PrefixCache


def kv_of(tokens):
    """Return keys that encode the prefix of each token, so that any mix-up of sequences shows."""
    marks = [hash(tokens[: end + 1]) % 100_003 for end in range(len(tokens))]
    return lambda start, end: np.array(marks[start:end], dtype=np.float32).reshape(1, 1, 1, -1, 1)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), min_size=1, max_size=12))
def test_finds_the_longest_cached_prefix_with_its_keys(sequences):
    cache = PrefixCache(10_000)
    for sequence in sequences:
        cache.insert(sequence, kv_of(sequence))
    prefixes = {sequence[:end] for sequence in sequences for end in range(1, len(sequence) + 1)}
    assert cache.n_tokens == len(prefixes)
    for probe in [*sequences, (0, 1, 2, 0, 1, 2), (2, 2, 2)]:
        match = cache.match(probe, len(probe))
        known = max(end for end in range(len(probe) + 1) if end == 0 or probe[:end] in prefixes)
        assert match.length == known
        if known:
            keys = np.concatenate([segment.ravel() for segment in match.segments])
            assert keys.tolist() == kv_of(probe)(0, known).ravel().tolist()


def test_memory_is_bounded_and_the_least_recently_used_is_evicted_first():
    cache = PrefixCache(100)
    for number in range(50):
        sequence = (number, *range(1000, 1009))
        cache.insert(sequence, kv_of(sequence))
        cache.match((0, 1000), 2)
        assert cache.n_tokens <= 100
    assert cache.match((0, *range(1000, 1009)), 10).length == 10
    assert cache.match((49, 1000), 2).length == 2
    assert cache.match((10, 1000), 2).length == 0
