"""The simulated deployments of `reproduce/rollout`, as a module."""

from __future__ import annotations

import importlib.util
import sys
from math import comb
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[3] / "reproduce" / "rollout" / "deployments.py"


def load() -> Any:
    """Import the script."""
    spec = importlib.util.spec_from_file_location("rollout_deployments", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def most(n: int, p: float, tail: float = 1e-4) -> int:
    """The largest number of n events of probability p that is not an outlier: P(more) <= tail."""
    seen = 0.0
    for k in range(n + 1):
        seen += comb(n, k) * p**k * (1 - p) ** (n - k)
        if 1 - seen <= tail:
            return k
    return n
