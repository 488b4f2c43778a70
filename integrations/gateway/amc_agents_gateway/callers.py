"""Who sends a request, and how many: clients' keys, of which the gateway keeps only hashes, and their limits.

A request above a limit is refused with the time to come back, and never waits here.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pydantic import SecretStr

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import keep_secret
from amc_agents_gateway.config import KeyTable
from amc_agents_gateway.errors import LIMIT, ApiError

ANONYMOUS = KeyTable()
"""What everyone may do in a gateway without keys."""
_LEAST = 16
"""Least characters of a key: hashes of shorter keys could be guessed."""


@dataclass(frozen=True)
class Caller:
    """The owner of a key."""

    name: str
    """Name of the key in the configuration; "anonymous" in a gateway without keys."""
    table: KeyTable

    def may_use(self, model: str) -> bool:
        """True if a pattern of the key's `models` matches the model's name."""
        return any(fnmatchcase(model, pattern) for pattern in self.table.models)


class Keys:
    """Recognises callers by their keys.

    Args:
        tables: the keys of the configuration; empty: everyone is served.

    Raises:
        ConfigurationError: an environment variable is not set, or its key is short; or two keys are equal.
    """

    def __init__(self, tables: Mapping[str, KeyTable]) -> None:
        self._callers = {_hash_of(name, table): Caller(name, table) for name, table in tables.items()}
        if len(self._callers) < len(tables):
            raise ConfigurationError("two of the tables [keys.NAME] have the same key: a key has one owner")

    def caller(self, authorization: str | None) -> Caller:
        """Return the owner of the key in a header `Authorization: Bearer KEY`.

        Raises:
            ApiError: 401; there is no key, or it is not a key of this gateway.
        """
        if not self._callers:
            return Caller("anonymous", ANONYMOUS)
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ApiError(401, "expected a header Authorization: Bearer KEY, got none", code="missing_api_key")
        owner, given = None, digest(key.strip())
        # Every key is compared, each in constant time, so that the duration tells nothing about the keys.
        for known, caller in self._callers.items():
            if hmac.compare_digest(known, given):
                owner = caller
        if owner is None:
            raise ApiError(401, "the API key is not a key of this gateway", code="invalid_api_key")
        return owner


def digest(key: str) -> str:
    """Return the SHA-256 of a key, in hexadecimal."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def new_key() -> SecretStr:
    """Return a random key of 256 bits."""
    return SecretStr(f"amc-{secrets.token_urlsafe(32)}")


def secret_of(variable: str, needed_by: str) -> SecretStr:
    """Return the value of an environment variable, which messages then mask.

    Raises:
        ConfigurationError: it is not set, or empty.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigurationError(f"{needed_by} needs the environment variable {variable}, which is not set")
    keep_secret(value)
    return SecretStr(value)


def _hash_of(name: str, table: KeyTable) -> str:
    if table.env is None:
        return table.sha256 or ""
    key = secret_of(table.env, f"[keys.{name}]").get_secret_value()
    if len(key) < _LEAST:
        raise ConfigurationError(f"the key in {table.env} has {len(key)} characters, expected at least {_LEAST}")
    return digest(key)


WINDOW_S = 60.0
"""Length of the window in which requests are counted, in seconds."""


class Admission:
    """Admits the requests of a key.

    Args:
        table: the key's limits.
        clock: current time in seconds.
    """

    def __init__(self, table: KeyTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most = table.requests_per_minute, table.max_concurrent
        self._clock = clock
        self._admitted: deque[float] = deque()
        self.in_progress = 0
        """Number of admitted requests that have not ended."""

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Admit a request for the duration of a block.

        Raises:
            ApiError: 429; a limit is reached. A refused request does not count.
        """
        if self._most is not None and self.in_progress >= self._most:
            message = f"your key allows {self._most} requests at the same time: wait until one has ended"
            raise ApiError(429, message, type=LIMIT, code="concurrency_limit_exceeded", retry_after=1.0)
        self._count()
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1

    @property
    def headers(self) -> dict[str, str]:
        """OpenAI's headers on the rate limit; empty without a limit."""
        if self._rate is None:
            return {}
        self._forget()
        left = self._rate - len(self._admitted)
        return {"x-ratelimit-limit-requests": str(self._rate), "x-ratelimit-remaining-requests": str(left)}

    def _count(self) -> None:
        if self._rate is None:
            return
        now = self._forget()
        if len(self._admitted) >= self._rate:
            wait = self._admitted[0] + WINDOW_S - now
            message = f"your key allows {self._rate} requests per minute: try again in {wait:.0f} s"
            raise ApiError(429, message, type=LIMIT, code="rate_limit_exceeded", retry_after=wait)
        self._admitted.append(now)

    def _forget(self) -> float:
        """Forget the requests before the window, and return the current time."""
        now = self._clock()
        while self._admitted and now - self._admitted[0] >= WINDOW_S:
            self._admitted.popleft()
        return now
