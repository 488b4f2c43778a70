"""HTTP responses: read up to a limit, parsed as JSON, and quoted in errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from amc_agents.errors import CriticServerError
from amc_agents.quoting import excerpt, quoted

MOST_BYTES = 1 << 28
"""The longest response that is read: the log-probabilities of many long texts take tens of MiB."""
_MOST_OF_AN_ERROR = 1 << 16


async def read(url: str, response: httpx.Response) -> bytes:
    """Read the body of a response; of an error response, only the beginning.

    Raises:
        CriticServerError: a successful response is too long or compressed.
    """
    success = response.is_success
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        if success:
            raise CriticServerError(
                url,
                f"its answer is compressed ({excerpt(encoding, 20)}), although the request does not accept that: turn "
                "compression off",
                response.status_code,
            )
        return b""
    body, most = bytearray(), MOST_BYTES if success else _MOST_OF_AN_ERROR
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > most:
            break
    if success and len(body) > most:
        raise CriticServerError(
            url,
            f"its answer is longer than {most >> 20} MiB, so it was not read further: use a smaller batch",
            response.status_code,
        )
    return bytes(body[:most])


def as_json(url: str, status: int, body: bytes) -> Any:
    """Parse a body. Raises `CriticServerError`."""
    try:
        return _parsed(body)
    except ValueError as error:
        text = quoted(body.decode("utf-8", errors="replace"))
        raise CriticServerError(
            url, f"expected JSON, got {text}. Is this the URL of a model server?", status
        ) from error


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def _integer(digits: str) -> int | float:
    """Read an integer; a huge number becomes infinite, as JSON's floats do."""
    return int(digits) if len(digits) < 20 else float(digits)


def error_detail(response: httpx.Response, body: bytes) -> str:
    """The server's own explanation of an error, shortened."""
    try:
        detail = _parsed(body)
    except ValueError:
        return excerpt(body.decode("utf-8", errors="replace")) or excerpt(response.reason_phrase)
    for key in ("error", "message", "detail"):
        detail = detail[key] if isinstance(detail, dict) and key in detail else detail
    return excerpt(detail) if isinstance(detail, str) else quoted(detail)


def retry_after(response: httpx.Response) -> float | None:
    """Seconds to wait according to the `Retry-After` header, a number or a date; None if it is missing or invalid."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return None
