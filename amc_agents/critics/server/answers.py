"""Answers of model servers: bodies read up to a limit, JSON, the list of models, rows with an index, token counts."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import httpx

from amc_agents.concurrency.rate_gate import retry_after_of
from amc_agents.errors import CriticServerError
from amc_agents.quoting import excerpt, listed, quoted
from amc_agents.usage import OPENAI_COUNTS, Usage, reported_usage

MOST_BYTES = 1 << 28
"""The longest response that is read: the log-probabilities of many long texts take tens of MiB."""
_MOST_OF_AN_ERROR = 1 << 16
LEAST_LOGPROB = -1000.0
"""Smaller numbers are not log-probabilities: vLLM 0.32 writes -9999 over those of neighbouring requests."""
OVERWRITTEN = (
    "vLLM 0.32 writes -9999 over the log-probabilities of requests that share a batch with `logprob_token_ids`: run "
    "verdicts on a separate server, or use a newer vLLM"
)
"""Error text for a row below `LEAST_LOGPROB`."""


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
        text = quoted(body.decode("utf-8", errors="replace"), 200)
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
    return excerpt(detail) if isinstance(detail, str) else quoted(detail, 200)


def retry_after(response: httpx.Response) -> float | None:
    """Seconds to wait according to the `Retry-After` header, a number or a date; None if it is missing or invalid."""
    return retry_after_of(response.headers)


class ServedModel(NamedTuple):
    """A model in the list of `/v1/models`."""

    name: str
    root: str | None
    """The folder or repository that the server loaded it from; a folder may be on another machine."""
    limit: int | None
    """Maximum number of tokens that the server accepts."""


def chosen_model(answer: Any, wanted: str | None, url: str) -> ServedModel:
    """The model named `wanted` in the answer of `/v1/models`; None: the only model.

    Raises:
        CriticServerError: the model is not in the list, or the list has several; the message lists them.
    """
    models = served_models(answer, url)
    matches = [model for model in models if wanted in (model.name, None)]
    if len(matches) == 1:
        return matches[0]
    names = listed(sorted(model.name for model in models), 4) or "nothing"
    if wanted is None:
        raise CriticServerError(url, f"expected one model, but it serves {names}: choose with ?model=NAME")
    raise CriticServerError(url, f"model {quoted(wanted)} is not on this server, which serves {names}")


def served_models(answer: Any, url: str) -> list[ServedModel]:
    """All models in the answer of `/v1/models`. Raises `CriticServerError`."""
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(cards, list):
        raise CriticServerError(url, f"expected a list of models, got {quoted(answer, 200)}")
    models = []
    for card in cards:
        match card:
            case {"id": str(name)}:
                root, limit = card.get("root"), card.get("max_model_len")
            case _:
                raise CriticServerError(url, f"expected a model's `id`, got {quoted(card, 200)}")
        if limit is not None and not (type(limit) is int and limit > 0):
            raise CriticServerError(url, f"expected a number of tokens as `max_model_len`, got {quoted(card, 200)}")
        models.append(ServedModel(name, root if isinstance(root, str) else None, limit))
    return models


def rows_of(answer: Any, name: str, n: int) -> list[dict[str, Any]]:
    """`[n]` rows of an answer's list `name`, sorted by their `index`.

    Raises:
        ValueError: the number of rows differs, or an index is missing, invalid or duplicate.
    """
    rows = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"expected {n} rows in `{name}`, got {quoted(answer, 200)}")
    if len(rows) != n:
        raise ValueError(f"expected {n} rows in `{name}`, got {len(rows)}: {quoted(answer, 200)}")
    by_index: dict[int, dict[str, Any]] = {}
    for row in rows:
        index = row.get("index") if isinstance(row, dict) else None
        if type(index) is not int or not 0 <= index < n:
            raise ValueError(f"expected an `index` (0 to {n - 1}) in each row of `{name}`, got {quoted(row, 200)}")
        by_index[index] = row
    if len(by_index) != n:
        raise ValueError(f"expected each `index` from 0 to {n - 1} once in `{name}`, got {listed(sorted(by_index))}")
    return [by_index[index] for index in range(n)]


def usage_of(answer: Any) -> Usage:
    """Usage of one request, from the token counts that the server reports."""
    return reported_usage(answer.get("usage") if isinstance(answer, dict) else None, OPENAI_COUNTS)
