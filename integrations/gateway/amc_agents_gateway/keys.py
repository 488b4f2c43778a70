"""Who sends a request: clients' keys, of which the gateway keeps only hashes."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pydantic import SecretStr

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import keep_secret
from amc_agents_gateway.config import KeyTable
from amc_agents_gateway.errors import ApiError

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
