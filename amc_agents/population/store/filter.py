"""Search filters of LangGraph stores, for items that are not in the store yet."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from amc_agents.quoting import quoted

_ORDER = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def matches(value: Any, wanted: Any) -> bool:
    """Return whether a value matches a filter, as in LangGraph's stores. Values that cannot be compared do not match.

    Raises:
        ValueError: the filter has an unknown operator.
    """
    if isinstance(wanted, Mapping):
        if any(key.startswith("$") for key in wanted):
            return all(_compares(value, name, limit) for name, limit in wanted.items())
        return isinstance(value, Mapping) and all(matches(value.get(key), inner) for key, inner in wanted.items())
    if isinstance(wanted, list | tuple):
        return isinstance(value, list | tuple) and len(value) == len(wanted) and all(map(matches, value, wanted))
    return bool(value == wanted)


def _compares(value: Any, name: str, limit: Any) -> bool:
    if name in ("$eq", "$ne"):
        return bool(value == limit) is (name == "$eq")
    if name not in _ORDER:
        raise ValueError(f"expected a filter operator among $eq, $ne, {', '.join(_ORDER)}, got {quoted(name)}")
    if isinstance(value, str) and isinstance(limit, str):
        return bool(_ORDER[name](value, limit))
    try:
        return bool(_ORDER[name](float(value), float(limit)))
    except (TypeError, ValueError):
        return False
