"""A shard's results as one compressed file, written atomically."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amc_agents.bench.records import RunResult
from amc_agents.files import replace_file
from reproduce.study.settings import RAW


def packed(name: str, folder: Path = RAW) -> Path:
    """Path of a shard's results."""
    return folder / f"{name}.jsonl.gz"


def pack(name: str, settings: Mapping[str, Any], records: Sequence[RunResult], folder: Path = RAW) -> None:
    """Write a shard's results. The same results give the same bytes."""
    lines = [
        json.dumps(settings),
        *(json.dumps(record.to_json()) for record in sorted(records, key=lambda record: record.key)),
    ]
    path = packed(name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))


def unpack(name: str, folder: Path = RAW) -> tuple[dict[str, Any], list[RunResult]]:
    """Read a shard's settings and records."""
    first, *lines = gzip.decompress(packed(name, folder).read_bytes()).decode().splitlines()
    return json.loads(first), [RunResult.from_json(json.loads(line)) for line in lines]
