"""A shard's results as one compressed file: whole, or not there."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amc_agents.bench.records import RunResult
from settings import RAW


def packed(name: str) -> Path:
    """Where a shard's results are, or will be."""
    return RAW / f"{name}.jsonl.gz"


def pack(name: str, settings: Mapping[str, Any], records: Sequence[RunResult]) -> None:
    """Write them: the same results give the same bytes."""
    lines = [json.dumps(settings), *(json.dumps(one.to_json()) for one in sorted(records, key=lambda one: one.key))]
    path = packed(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
    os.replace(scratch, path)


def unpack(name: str) -> tuple[dict[str, Any], list[RunResult]]:
    """A shard's settings and records."""
    first, *lines = gzip.decompress(packed(name).read_bytes()).decode().splitlines()
    return json.loads(first), [RunResult.from_json(json.loads(line)) for line in lines]
