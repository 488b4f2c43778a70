"""What harnesses and coding agents log: runs in several files, in an archive, or in the lines of a file.

Each run is gathered into one record of a form that `json_records` reads: a trial of Harbor into an ATIF document in an
envelope; a sample of an inspect_ai log, and a session of Claude Code or Codex, into a conversation.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from amc_agents.operations.importing.json_files import (
    LONGEST,
    TOO_LONG,
    JsonValue,
    head_of,
    is_trial,
    json_paths,
    json_values,
)
from amc_agents.operations.importing.logged_runs import (
    UnreadableRecord,
    amount_of,
    field_of,
    malformed_is_unreadable,
    text_of,
    total_of,
)


class Record(NamedTuple):
    """What is read as one record, and its place."""

    where: str
    value: Any
    error: str = ""
    """Why it cannot be read; then `value` is None."""


def records_in(source: Path) -> Iterator[Record]:
    """Yield the records of a file, or of all files in a folder.

    Raises:
        CheckpointError: the source has no logs, or a file cannot be read.
    """
    return chain.from_iterable(map(records_of, json_paths(source)))


def records_of(path: Path) -> Iterator[Record]:
    """Yield the records of a file: its JSON values, or what they are gathered into."""
    if is_trial(path):
        yield _trial(path)
        return
    if head_of(path).startswith(b"PK"):
        yield from _archived_samples(path)
        return
    values = json_values(path)
    first = list(islice(values, _SHOWN))
    gather = next((gather for value in first for shows, gather in _LINES if shows(value.value)), None)
    if gather is not None:
        yield from _session(path, chain(first, values), gather)
        return
    for line, value, error in chain(first, values):
        if isinstance(value, Mapping) and {"eval", "status", "version"} <= value.keys():
            yield from _samples(path.name, value)
        else:
            yield Record(f"{path.name} line {line}", value, error)


def _trial(result: Path) -> Record:
    """Put the trajectory of a Harbor trial into an envelope with the trial's result."""
    where = f"{result.parent.name}/agent/trajectory.json"
    document = result.parent / "agent" / "trajectory.json"
    if not document.is_file():
        return Record(where, None, "no trajectory beside result.json: the agent writes none as ATIF, or has many steps")
    of_trial, of_agent = (next(json_values(path), JsonValue(1, None, "an empty file")) for path in (result, document))
    if not isinstance(of_trial.value, Mapping) or not isinstance(of_agent.value, Mapping):
        return Record(where, None, of_trial.error or of_agent.error or "expected a JSON object in both files")
    trial = of_trial.value
    rewards = field_of(trial, "verifier_result.rewards")
    ran = trial.get("agent_execution") if isinstance(trial.get("agent_execution"), Mapping) else trial
    times = {"started_at": text_of(ran or {}, "started_at"), "ended_at": text_of(ran or {}, "finished_at")}
    return Record(where, {**trial, **times, "trajectory": of_agent.value, "reward": _only(rewards, "reward")})


def _only(scores: Any, usual: str = "") -> Any:
    """Return the score with the usual name, or the only one; None: it is unknown which counts."""
    if not isinstance(scores, Mapping):
        return None
    return scores[usual] if usual in scores else next(iter(scores.values())) if len(scores) == 1 else None


# --- inspect_ai ----------------------------------------------------------------------------------------------


def _archived_samples(path: Path) -> Iterator[Record]:
    """Yield the samples of an `.eval` log, one in memory at a time."""
    where = path.name
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            start = next((name for name in ("header.json", "_journal/start.json") if name in names), None)
            if start is None:
                raise UnreadableRecord("an archive without header.json: expected an .eval log of inspect_ai")
            header = json.loads(_member(file, archive, start))
            for name in names:
                if name.startswith("samples/"):
                    where = f"{path.name} {name}"
                    yield _sample(where, header, json.loads(_member(file, archive, name)))
    except UnreadableRecord as error:
        yield Record(where, None, str(error))
    except (OSError, ValueError, EOFError, RecursionError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        yield Record(where, None, f"the archive is damaged or cut off ({type(error).__name__}): copy it again")


def _member(file: BinaryIO, archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a file of an archive; Python's zipfile cannot read those that inspect_ai compresses by Zstandard."""
    info = archive.getinfo(name)
    if info.compress_type != _ZSTANDARD:
        with archive.open(info) as member:
            content = member.read(LONGEST + 1)
    else:
        file.seek(info.header_offset)
        header = file.read(_ZIP_HEADER)
        file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
        content = _decompressed(file.read(info.compress_size))
    if len(content) > LONGEST:
        raise UnreadableRecord(TOO_LONG)
    return content


def _decompressed(content: bytes) -> bytes:
    try:
        zstandard: Any = import_module("zstandard")
    except ImportError:
        raise UnreadableRecord("the log is compressed by Zstandard: pip install zstandard") from None
    try:
        read: bytes = zstandard.ZstdDecompressor().stream_reader(content).read(LONGEST + 1)
    except zstandard.ZstdError as error:
        raise EOFError from error
    return read


def _samples(where: str, log: Mapping[str, Any]) -> Iterator[Record]:
    samples = log.get("samples")
    if not isinstance(samples, list) or not samples:
        yield Record(where, None, "a log of inspect_ai without samples: they were not logged, or none has ended")
        return
    for number, sample in enumerate(samples, 1):
        yield _sample(f"{where} sample {number}", log, sample)


def _sample(where: str, log: Any, sample: Any) -> Record:
    """Turn a sample into a record like tau-bench's, whose world may answer as the user."""
    try:
        with malformed_is_unreadable():
            name, epoch = text_of(sample, "id"), text_of(sample, "epoch")
            run = text_of(log, "eval.run_id", "eval.task_id")
            scores = {scorer: _number(score["value"]) for scorer, score in (sample.get("scores") or {}).items()}
            usage = list((sample.get("model_usage") or {}).values())
            return Record(where, {
                "thread_id": text_of(sample, "uuid") or f"{run}/{name}/{epoch}",
                "task_id": "/".join(filter(None, (text_of(log, "eval.task"), name))), "trial": epoch,
                "traj": sample["messages"], "scores": scores, "reward": _only(scores),
                "metadata": sample.get("metadata"), "limit": sample.get("limit"),
                "started_at": text_of(sample, "started_at"), "ended_at": text_of(sample, "completed_at"),
                "total_tokens": total_of(field_of(each, "total_tokens") for each in usage),
                "cost": total_of(field_of(each, "total_cost") for each in usage),
            })  # fmt: skip
    except UnreadableRecord as error:
        return Record(where, None, str(error))


def _number(score: Any) -> Any:
    """Return a score as inspect_ai's own metrics count it; what they cannot count stays as it is."""
    return _SCORES.get(score, score) if isinstance(score, str) else score


_SCORES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partially correct, incorrect, no answer."""
_ZSTANDARD = 93
_ZIP_HEADER = 30
"""Bytes before the name of a file in an archive."""


# --- sessions of coding agents -------------------------------------------------------------------------------

Gather = Callable[[Sequence[Mapping[str, Any]]], dict[str, Any] | None]
"""The lines of a session -> its record; None: it is a sub-agent's."""


def _session(path: Path, values: Iterable[JsonValue], gather: Gather) -> Iterator[Record]:
    """Yield the session that a file holds; a session that lost a line is refused."""
    if path.stat().st_size > LONGEST:
        yield Record(path.name, None, TOO_LONG)
        return
    lines: list[Mapping[str, Any]] = []
    for line, value, error in values:
        if error or not isinstance(value, Mapping):
            yield Record(f"{path.name} line {line}", None, error or "expected a JSON object")
            return
        lines.append(value)
    try:
        with malformed_is_unreadable():
            record = gather(lines)
    except UnreadableRecord as error:
        yield Record(path.name, None, str(error))
        return
    if record is not None:
        yield Record(path.name, record)


def _claude_code(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Gather the main conversation of a session of Claude Code."""
    main = [line for line in lines if not line.get("isSidechain")]
    said: list[dict[str, Any]] = []
    answers: dict[str, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    reached: dict[Any, int] = {}
    """Line -> the number of messages up to it."""
    times = []
    for line in main:
        if line.get("uuid") in reached:
            continue  # what a resumed session repeats
        message = line.get("message")
        if line.get("type") in ("user", "assistant") and message and not any(map(line.get, _NOT_SAID)):
            times.append(text_of(line, "timestamp"))
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            name = text_of(message, "id")
            if name in answers:
                # Each block of an answer has a line of its own, and repeats the usage.
                answers[name]["content"] += blocks
            else:
                if _is_prompt(message["role"], blocks):
                    said = _until(said, reached.get(line.get("parentUuid"), len(said)))
                said.append({"role": message["role"], "content": [*blocks]})
            if name:
                answers.setdefault(name, said[-1])
                usage[name] = message.get("usage")
        if "uuid" in line:
            reached[line["uuid"]] = len(said)
    if not said:
        return None
    return {
        "session_id": next(filter(None, (text_of(line, "sessionId") for line in main)), ""), "messages": said,
        "started_at": times[0], "ended_at": times[-1],
        "total_tokens": total_of(_tokens_of_claude(each) for each in usage.values()),
    }  # fmt: skip


def _is_prompt(role: Any, blocks: Sequence[Mapping[str, Any]]) -> bool:
    return role == "user" and not any(block.get("type") == "tool_result" for block in blocks)


def _until(said: list[dict[str, Any]], place: int) -> list[dict[str, Any]]:
    """Leave out what the user took back by returning to an earlier place, with a new prompt instead."""
    taken_back = any(_is_prompt(message["role"], message["content"]) for message in said[place:])
    return said[:place] if taken_back else said


def _tokens_of_claude(usage: Any) -> float | None:
    known = [usage[name] for name in _CLAUDE_TOKENS if name in usage] if isinstance(usage, Mapping) else []
    return total_of(known)


def _codex(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Gather the conversation of a session of Codex."""
    start = next(line["payload"] for line in lines if line.get("type") == "session_meta")
    if isinstance(start.get("source"), Mapping) and "subagent" in start["source"]:
        return None
    events = [line["payload"] for line in lines if line.get("type") == "event_msg"]
    items = [line["payload"] for line in lines if line.get("type") == "response_item"]
    prompts = {str(event.get("message")).strip() for event in events if event.get("type") == "user_message"}
    typed = [item for item in items if item.get("role") == "user" and _typed_text(item) in prompts]
    said = [
        _item_of_codex(item)
        for item in items
        if item.get("role") == "assistant"
        or item.get("type") in _CODEX_ITEMS
        # Other messages of the user hold the agent's instructions and surroundings.
        or (item.get("role") == "user" and (item in typed or not typed))
    ]
    totals = (field_of(event, "info.total_token_usage") for event in events if event.get("type") == "token_count")
    total: Mapping[str, Any] = next(filter(None, reversed(list(totals))), {})
    times = [text_of(line, "timestamp") for line in lines if line.get("type") == "response_item"]
    return {
        "session_id": text_of(start, "id"), "messages": said, "total_tokens": amount_of(total, "total_tokens"),
        "started_at": next(iter(times), ""), "ended_at": next(reversed(times), ""),
    }  # fmt: skip


def _typed_text(item: Mapping[str, Any]) -> str:
    return "".join(str(part.get("text") or "") for part in item["content"]).strip()


def _item_of_codex(item: Mapping[str, Any]) -> Mapping[str, Any]:
    if item.get("type") != "local_shell_call":
        return item
    return {"type": "function_call", "name": "shell", "call_id": item.get("call_id"), "arguments": item.get("action")}


def _shows_claude_code(value: Any) -> bool:
    return isinstance(value, Mapping) and "type" in value and bool({"sessionId", "leafUuid"} & value.keys())


def _shows_codex(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "session_meta" and "payload" in value


_LINES: tuple[tuple[Callable[[Any], bool], Gather], ...] = (
    (_shows_claude_code, _claude_code),
    (_shows_codex, _codex),
)
_SHOWN = 20
"""Values at the beginning of a file, by which it shows to be a session."""
_NOT_SAID = ("isMeta", "isCompactSummary", "isApiErrorMessage")
"""Marks of lines that the program wrote in the name of the user or the model."""
_CLAUDE_TOKENS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_CODEX_ITEMS = {
    *("reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    "local_shell_call",
}
