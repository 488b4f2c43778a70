"""Convert any value to JSON-compatible values, for streams and files, without ever failing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np

DEEPEST = 64
"""Maximum nesting; deeper values, as in cyclic objects, are replaced by the name of their type."""
LARGEST = 2**63
"""Integers from here on become text, since many JSON parsers do not support larger numbers."""


def plain(value: Any, deepest: int = DEEPEST) -> Any:
    """Convert a value to dictionaries with text keys, lists, text, numbers, booleans and None.

    NaN and infinity become None. Dataclasses, named tuples and pydantic models (such as messages) become dictionaries.
    Any other object becomes the name of its type, because its `repr` might contain secrets.
    """
    match value:
        case None | bool():
            return value
        case str():
            # A lone surrogate, as in a model's broken output, cannot be encoded.
            return value.encode("utf-8", "replace").decode("utf-8")
        case int():
            return int(value) if -LARGEST <= value < LARGEST else hex(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case np.generic() | np.ndarray():
            return plain(value.tolist(), deepest) if value.dtype.kind in "biuf" else _named(value)
        case Enum():
            return plain(value.value, deepest)
        case date() | time() | Decimal() | PurePath() | UUID():
            return str(value)
    return _nested(value, deepest - 1) if deepest else _named(value)


def fields_of(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields without converting their values."""
    return {field.name: getattr(value, field.name, None) for field in fields(value)}


def _nested(value: Any, deepest: int) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = fields_of(value)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        value = dict(zip(value._fields, value, strict=False))
    elif hasattr(value, "model_dump") and not isinstance(value, type):
        try:
            value = value.model_dump()
        except Exception:  # a user's class may raise anything
            return _named(value)
    if isinstance(value, Mapping):
        return {_key(key): plain(held, deepest) for key, held in value.items()}
    if isinstance(value, list | tuple | Set):
        return [plain(held, deepest) for held in value]
    return _named(value)


def _key(key: Any) -> str:
    plain_key = plain(list(key) if isinstance(key, tuple) else key)
    return plain_key if isinstance(plain_key, str) else str(plain_key)


def _named(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
