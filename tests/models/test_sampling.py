from __future__ import annotations

import numpy as np
import pytest

from amc_agents.models.engine import choose

LOGITS = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], dtype=np.float32))


def frequencies(temperature, top_p, n=40_000):
    uniform = (np.arange(n) + 0.5) / n
    drawn = choose(np.repeat(LOGITS, n, 0), np.full(n, temperature), np.full(n, top_p), uniform)
    return np.bincount(drawn, minlength=4) / n


@pytest.mark.parametrize(
    ("temperature", "top_p", "expected"),
    [
        (1.0, 1.0, [0.5, 0.3, 0.15, 0.05]),
        (0.5, 1.0, np.array([0.25, 0.09, 0.0225, 0.0025]) / 0.365),
        (1.0, 0.79, [0.625, 0.375, 0, 0]),
        (1.0, 0.81, np.array([0.5, 0.3, 0.15, 0]) / 0.95),
        (0.0, 1.0, [1, 0, 0, 0]),
    ],
)
def test_frequencies(temperature, top_p, expected):
    assert frequencies(temperature, top_p) == pytest.approx(np.asarray(expected), abs=1e-4)


@pytest.mark.parametrize(("top_p", "n_kept"), [(0.25, 1), (0.5, 2), (0.75, 3), (0.75 + 1e-9, 4), (1.0, 4)])
def test_the_nucleus_is_the_smallest_set_with_probability_top_p(top_p, n_kept):
    """Four tokens of probability 1/4, whose sums are exact: a set with probability exactly `top_p` is large enough."""
    n = 12
    drawn = choose(np.zeros((n, 4), dtype=np.float32), np.ones(n), np.full(n, top_p), (np.arange(n) + 0.5) / n)
    assert drawn.tolist() == [token for token in range(n_kept) for _ in range(n // n_kept)]


def test_tokens_without_probability_are_never_drawn():
    logits = np.array([[-np.inf, 0.0, 0.0, -np.inf]] * 2, dtype=np.float32)
    ends = np.array([0.0, 1 - 2.0**-53])
    assert choose(logits, np.ones(2), np.ones(2), ends).tolist() == [1, 2]


def test_rows_may_differ_in_every_setting():
    drawn = choose(np.repeat(LOGITS, 3, 0), np.array([0.0, 1.0, 1.0]), np.array([1, 1, 0.4]), np.full(3, 0.99))
    assert drawn.tolist() == [0, 3, 0]
