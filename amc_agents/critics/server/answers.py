"""What a server answers: read within bounds, taken as JSON, and quoted where it says what went wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from amc_agents.errors import CriticServerError
from amc_agents.quoting import excerpt, quoted

MOST_BYTES = 1 << 28
"""Of one answer: the log-probabilities of many long texts take tens of MiB."""
_MOST_OF_AN_ERROR = 1 << 16


async def read(url: str, response: httpx.Response) -> bytes:
    """All of an answer; of an error's, the beginning. Raises `CriticServerError` where it is too long."""
    well = response.is_success
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        if well:
            raise CriticServerError(
                url,
                f"its answer is compressed ({excerpt(encoding, 20)}), and that was not accepted: turn compression off",
                response.status_code,
            )
        return b""
    body, most = bytearray(), MOST_BYTES if well else _MOST_OF_AN_ERROR
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > most:
            break
    if well and len(body) > most:
        raise CriticServerError(
            url,
            f"its answer is longer than {most >> 20} MiB, and was given up: ask for less at once, by a smaller batch",
            response.status_code,
        )
    return bytes(body[:most])


def as_json(url: str, status: int, body: bytes) -> Any:
    """The JSON in a body. Raises `CriticServerError`."""
    try:
        return _parsed(body)
    except ValueError as error:
        what = quoted(body.decode("utf-8", errors="replace"))
        raise CriticServerError(
            url, f"expected JSON, got {what}. Is this the address of a model server?", status
        ) from error


def _parsed(body: bytes) -> Any:
    """The JSON in a body. Raises `ValueError`."""
    try:
        return json.loads(body, parse_int=_whole)
    except RecursionError as error:
        raise ValueError("lists within lists, too deep to be read") from error


def _whole(digits: str) -> int | float:
    """A whole number; a huge one is infinite, as a huge one with a point is."""
    return int(digits) if len(digits) < 20 else float(digits)


def what_went_wrong(response: httpx.Response, body: bytes) -> str:
    """What an answer says went wrong."""
    try:
        found = _parsed(body)
    except ValueError:
        return excerpt(body.decode("utf-8", errors="replace")) or excerpt(response.reason_phrase)
    for key in ("error", "message", "detail"):
        found = found[key] if isinstance(found, dict) and key in found else found
    return excerpt(found) if isinstance(found, str) else quoted(found)


def retry_after(response: httpx.Response) -> float | None:
    """Seconds that a server asks to be left alone, from a number or a date; None: it does not say."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return None
