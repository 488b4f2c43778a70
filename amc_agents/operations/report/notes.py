"""Failures and other notes of the runs of a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from amc_agents.bench.records import RunResult
from amc_agents.operations.page.markup import Child, Html, details, element, join, table

_SHOWN, _MOST = 6, 200


def notes_table(records: Sequence[RunResult], labels: Mapping[str, str]) -> Html:
    """Count each note by method.

    Args:
        records: the runs.
        labels: method -> its name in tables.
    """
    counts = Counter((record.method, note) for record in records for note in record.notes)
    if not counts:
        return element("p", "No run failed, and no run has a note.")
    rows: list[list[Child]] = [
        [labels.get(method, method), f"{n:,}", note] for (method, note), n in counts.most_common(_MOST)
    ]
    left_out = len(counts) - len(rows)
    header = ["method", "runs", "note"]
    first = table(header, rows[:_SHOWN], "lrl")
    if len(rows) <= _SHOWN:
        return first
    rest = table(header, rows[_SHOWN:], "lrl", caption=f"and {left_out} rarer notes" if left_out else None)
    return join([first, details(f"{len(rows) - _SHOWN} rarer notes", rest)])
