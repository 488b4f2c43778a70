"""Logs in files of JSON: values one at a time, as a file may be larger than memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from amc_agents.errors import CheckpointError


class JsonValue(NamedTuple):
    """A value and its place."""

    line: int
    """The 1-based line where it begins."""
    value: Any
    error: str = ""
    """Why the text is not JSON; then `value` is None."""


def json_values(path: Path) -> Iterator[JsonValue]:
    """Yield the values of a file: JSON lines, indented objects one after another, or the items of an array.

    A line that is not JSON or too long is yielded with its error, and reading goes on with the next line. A damaged
    array ends there.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        yield from _array_items(path) if _first_character(path) == "[" else _objects(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def json_paths(source: Path) -> list[Path]:
    """List the files of a source: the file itself, or the logs in a folder.

    These are files of JSON and `.eval` archives, without tables of outcomes and predictions. Of the folder of a Harbor
    job, they are the results of its trials.

    Raises:
        CheckpointError: the source has no logs.
    """
    paths = [source]
    if source.is_dir():
        ending = (path for end in ("*.json*", "*.eval") for path in source.rglob(end) if path.is_file())
        found = sorted(path for path in ending if not _has_results(path))
        paths = [path for path in found if is_trial(path)] or found
        if any(path.name == "result.json" and b'"n_total_trials"' in head_of(path) for path in paths):
            raise CheckpointError(
                f"{source} is the folder of a Harbor job without a trial that has ended: expected folders with "
                "result.json and agent/trajectory.json"
            )
    if not paths or not all(path.is_file() for path in paths):
        raise CheckpointError(f"no logs in {source}: expected a file, or a folder with *.json, *.jsonl or *.eval files")
    return paths


def is_trial(path: Path) -> bool:
    """Return whether a file is the result of a trial of Harbor."""
    return path.name == "result.json" and b'"trial_name"' in head_of(path)


def head_of(path: Path) -> bytes:
    """Return the beginning of a file.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise _unreadable(path, error) from error


def _has_results(path: Path) -> bool:
    """Whether a file begins as the results of a benchmark do, which `--outcomes` reads, or as its predictions."""
    return path.suffix == ".json" and _RESULTS.search(head_of(path)) is not None


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path} cannot be read ({error.strerror or error}): choose a readable file")


def _first_character(path: Path) -> str:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        while chunk := file.read(_CHUNK):
            if chunk.strip():
                return chunk.lstrip()[0]
    return ""


def _objects(path: Path) -> Iterator[JsonValue]:
    if path.stat().st_size <= _AT_ONCE:
        try:
            # Usually one object, whose lines need not be looked at.
            content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
            blank = content[: len(content) - len(content.lstrip())]
            yield JsonValue(1 + blank.count(b"\n"), json.loads(content))
            return
        except (ValueError, RecursionError):
            pass
    waiting: list[bytes] = []
    size = begun = number = 0
    with path.open("rb") as file:
        while line := file.readline(LONGEST + 1):
            number += 1
            if not waiting:
                begun, size = number, 0
            size += len(line)
            if size > LONGEST:
                yield JsonValue(begun, None, TOO_LONG)
                waiting.clear()
                # The rest of the line says nothing.
                while line and not line.endswith(b"\n"):
                    line = file.readline(_CHUNK)
                continue
            if not waiting and not line.strip():
                continue
            waiting.append(line)
            # An indented object opens with a brace alone and closes with a brace that is not indented.
            if waiting[0].strip() != b"{" or line.startswith(b"}"):
                yield _parsed(begun, b"".join(waiting))
                waiting.clear()
    if waiting:
        yield JsonValue(begun, None, "not JSON: the object has no end")


def _parsed(line: int, text: bytes) -> JsonValue:
    try:
        return JsonValue(line, json.loads(text.removeprefix(b"\xef\xbb\xbf")))
    except (ValueError, RecursionError) as error:
        return JsonValue(line, None, f"not JSON: {_cause(error)}")


def _array_items(path: Path) -> Iterator[JsonValue]:
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        text = file.read(_CHUNK)
        while "[" not in text:
            text += file.read(_CHUNK)
        at = text.index("[") + 1
        line = 1 + text.count("\n", 0, at)
        while True:
            start = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty text
            line += text.count("\n", at, start)
            at = start
            if text.startswith("]", at):
                return
            error = "the array has no end"
            try:
                value, end = decoder.raw_decode(text, at)
                # At the end of what was read, a number may go on.
                complete = end < len(text)
            except (ValueError, RecursionError) as raised:
                complete, error = False, _cause(raised)
            if complete:
                yield JsonValue(line, value)
                line += text.count("\n", at, end)
                at = end
                continue
            if len(text) - at > LONGEST:
                yield JsonValue(line, None, TOO_LONG)
                return
            more = file.read(max(_CHUNK, len(text) - at))
            if not more:
                yield JsonValue(line, None, f"not JSON: {error}")
                return
            text, at = text[at:] + more, 0


def _cause(error: Exception) -> str:
    # The message of a UnicodeDecodeError contains bytes of the text.
    return error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__


_RESULTS = re.compile(
    rb"""^\s*(?:
    \[\s*" | \[\s*\{\s*"instance_id"\s*:\s*"[^"]*"\s*,\s*"resolved" |
    \{(?:\s*"\w+"\s*:\s*[\w.+-]+\s*,)*\s*"(?:instances|resolved|no_generation|no_logs|\w+_ids)"\s*:\s*\[ |
    \{\s*"[^"]+"\s*:\s*\{\s*"(?:instance_id|model_name_or_path|patch_is_None)"\s*:
    )""",
    re.VERBOSE,
)
"""A list of names or instances, an object whose first field that is no number is such a list, or instances by name."""
_HEAD = 2_000
_BETWEEN = re.compile(r"[\s,]*")
"""What stands between the items of an array."""
_CHUNK = 1 << 16
"""Characters read at once."""
_AT_ONCE = 1 << 24
"""Bytes of a file that is first taken for a single value."""
LONGEST = 1 << 27
"""Bytes of a value that are held in memory: a trajectory of a day has a tenth of it."""
TOO_LONG = f"longer than {LONGEST >> 20} MiB: expected one conversation in each line, object or item"
