"""The settings tried on training tasks, in two rounds, and the baselines."""

from __future__ import annotations

from reproduce.beyond.search_settings import BLIND, BOTH, HARD, STOCK, Search, every

POOL = {
    HARD: Search("independent", (0.6,), (30,)),
    STOCK: Search("independent", (0.7,), (15,)),
    BLIND: Search("independent", (0.9,), (15,)),
    BOTH: Search("independent", (0.7,), (30,)),
}
"""Tries per task, which are subsampled for Best-of-M at every cost; at the temperatures tuned for Best-of-15."""
CONFIRMING = Search("independent", (0.7,), (18,))
"""Tries on the tasks of the confirmation."""
_THIRDS = (3, 6, 9, 12, 15)
AMC = {
    HARD: Search("filtered", (0.5,), points=_THIRDS, beta=0.1),
    STOCK: Search("filtered", (0.8,), points=every(4), beta=0.1),
    BLIND: Search("filtered", (0.8,), points=every(2), beta=0.2),
    BOTH: Search("filtered", (0.8,), points=every(2), beta=0.2),
}
"""Plain AMC, as tuned in docs/results/study and docs/results/worlds."""

CANDIDATES: dict[str, list[Search]] = {
    HARD: [
        POOL[HARD],
        AMC[HARD],
        Search("filtered", (0.8,), points=every(2), beta=0.1, rho=0.5),
        Search("filtered", (0.6,), points=every(2), beta=0.05, rho=0.5),
        Search("filtered", (0.6,), points=every(2), beta=0.05, rho=0.8),
        Search("ahead", (0.6,), (7,), every(1), beta=0.1),
        Search("ahead", (0.8,), (7,), every(1), beta=0.1),
        Search("ahead", (0.8,), (7,), every(1), beta=0.3),
        Search("ahead", (0.8,), (5,), every(1), beta=0.1),
        Search("filtered", (0.6,), points=_THIRDS, beta=0.1, keep=8),
        Search("filtered", (0.6,), points=_THIRDS, beta=0.1),
        Search("ahead", (0.5,), (8,), _THIRDS, beta=0.1),
        Search("ahead", (0.6,), (8,), _THIRDS, beta=0.1),
        Search("ahead", (0.6,), (11,), _THIRDS, beta=0.1),
        Search("ahead", (0.8,), (8,), _THIRDS, beta=0.1),
        Search("filtered", (0.6,), (24, 18, 12, 8), (5, 9, 13), beta=0.1),
        Search("filtered", (0.6,), (20, 14, 10), (8, 13), beta=0.1),
        Search("filtered", (0.4, 0.6, 0.8), points=_THIRDS, beta=0.1),
        Search("independent", (0.4, 0.6, 0.8), (18,)),
        Search("ahead", (0.4, 0.6, 0.8), (9,), _THIRDS, beta=0.1),
        Search("iterated", (0.5,), (8,), _THIRDS, beta=0.1, rounds=4),
        Search("iterated", (0.5,), (8,), _THIRDS, beta=0.1, rounds=2),
        Search("iterated", (0.5,), (8,), _THIRDS, beta=0.1, rounds=2, pick="best"),
    ],
    STOCK: [AMC[STOCK], Search("filtered", (0.5, 0.7, 0.9), points=every(4), beta=0.1)],
    BLIND: [AMC[BLIND], Search("filtered", (0.5, 0.7, 0.9), points=every(2), beta=0.2)],
    BOTH: [
        POOL[BOTH],
        CONFIRMING,
        AMC[BOTH],
        Search("filtered", (0.8,), points=every(2), beta=0.05, rho=0.5),
        Search("filtered", (0.8,), points=every(2), beta=0.05, rho=0.8),
        Search("filtered", (0.7,), points=every(4), beta=0.05, rho=0.5),
        Search("ahead", (0.7,), (7,), every(1), beta=0.2),
        Search("ahead", (0.9,), (7,), every(1), beta=0.2),
        Search("ahead", (0.9,), (7,), every(1), beta=0.5),
        Search("ahead", (0.9,), (5,), every(1), beta=0.2),
        Search("filtered", (0.7,), points=every(4), beta=0.2, keep=8),
        Search("ahead", (0.7,), (8,), every(4), beta=0.2),
        Search("ahead", (0.7,), (11,), every(4), beta=0.2),
        Search("ahead", (0.8,), (8,), every(2), beta=0.2),
        Search("ahead", (0.8,), (8,), every(4), beta=0.2),
        Search("filtered", (0.8,), (24, 18, 12, 8), (5, 9, 13), beta=0.2),
        Search("filtered", (0.8,), (20, 14, 10), (6, 12), beta=0.2),
        Search("filtered", (0.5, 0.7, 0.9), points=every(2), beta=0.2),
        Search("independent", (0.5, 0.7, 0.9), (18,)),
        Search("independent", (0.5, 0.7, 0.9), (15,)),
        Search("filtered", (0.7,), points=every(4), beta=0.2),
        Search("ahead", (0.5, 0.7, 0.9), (9,), every(4), beta=0.2),
        Search("iterated", (0.8,), (8,), every(2), beta=0.2, rounds=4),
        Search("iterated", (0.7,), (14,), every(4), beta=0.2, rounds=2),
        Search("iterated", (0.8,), (8,), every(2), beta=0.2, rounds=2),
        Search("iterated", (0.8,), (8,), every(2), beta=0.2, rounds=2, pick="best"),
    ],
}
"""World -> searches, each at about the policy calls of Best-of-15."""
