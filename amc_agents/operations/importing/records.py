"""Look up fields of a source's records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from amc_agents.operations.importing.runs import UnreadableRecord
from amc_agents.quoting import quoted


def field_of(record: Mapping[str, Any], path: str) -> Any:
    """Return a field of a record; None if it is missing.

    A path is a name, or names joined by dots; a name may contain dots itself, as those of span attributes do.

    >>> field_of({"metadata": {"score": 0.5}, "app.score": 1}, "metadata.score")
    0.5
    >>> field_of({"metadata": {"score": 0.5}, "app.score": 1}, "app.score")
    1
    """
    if path in record:
        return record[path]
    name, _, rest = path.partition(".")
    inner = record.get(name)
    return field_of(inner, rest) if rest and isinstance(inner, Mapping) else None


def text_of(record: Mapping[str, Any], *names: str) -> str:
    """Return the first field of a record that is text or a number, as text; "" if none is."""
    values = (field_of(record, name) for name in names)
    found = (str(value) for value in values if isinstance(value, str | int | float) and not isinstance(value, bool))
    return next(filter(None, found), "")


def task_of(record: Mapping[str, Any], named: str | None) -> str:
    """Return the name of a record's task.

    Args:
        record: the record.
        named: the field with the name; None: one of the usual names. "" if it has none.
    """
    return text_of(record, *((named,) if named else ("task_name", "instance_id", "task_id")))


def number_of(value: Any, name: str) -> float | None:
    """Return an outcome as a number; None stays None.

    Raises:
        UnreadableRecord: it is neither a finite number nor true or false.
    """
    if value is None:
        return None
    if not isinstance(value, bool | int | float) or not abs(value) < math.inf:
        got = value if isinstance(value, float) else f"a {type(value).__name__}"
        raise UnreadableRecord(f"outcome {quoted(name)} is {got}: expected a finite number, true or false")
    try:
        return float(value)
    except OverflowError:
        raise UnreadableRecord(f"outcome {quoted(name)} is too large for a number") from None
