"""The files of frozen records, and how a configuration is compared with its record."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.frozen.comparisons import COMPARISONS
from tests.frozen.configurations import CONFIGURATIONS
from tests.frozen.decisions import DECISIONS
from tests.frozen.record import differences

FOLDER = Path(__file__).parent / "records"
FILES: dict[str, Mapping[str, Callable[[], Any]]] = {
    "amc": CONFIGURATIONS,
    "decisions": DECISIONS,
    "comparisons": COMPARISONS,
}
NEAR = {"comparisons": 1e-4}
"""Tolerance of all numbers of a file; of the other files only the computed numbers have one."""


def read(file: str) -> dict[str, Any]:
    """Name -> record."""
    path = FOLDER / f"{file}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(file: str, records: Mapping[str, Any]) -> None:
    """Write one line for each part of a record, so that a change of one part is a change of one line."""
    written = []
    for name, record in records.items():
        parts = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in record.items()]
        written.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{file}.json").write_text("{\n" + ",\n".join(written) + "\n}\n")


def played(file: str, name: str, then: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Play a configuration; return its record now, and where it differs from that of then."""
    now = json.loads(json.dumps(FILES[file][name]()))
    return now, differences(then.get(name, {}), now, name, near=NEAR.get(file))
