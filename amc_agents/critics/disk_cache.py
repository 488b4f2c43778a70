"""Answers of models cached on disk, by the hash of the question, so that no call is paid for twice.

The cache is an SQLite file. Every `put` is an atomic transaction, and several processes may share the file.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from amc_agents.errors import CheckpointError


class DiskCache:
    """Maps questions to answers, as bytes.

    Args:
        path: the file; created if it does not exist.
        namespace: what the answers depend on (a model's name, a prompt): it is part of every key.
    """

    def __init__(self, path: str | Path, namespace: str) -> None:
        self.path, self._namespace = Path(path), namespace

    def get(self, questions: Sequence[str]) -> dict[str, bytes]:
        """Return the cached answers, by question."""
        by_key = {self._key(question): question for question in questions}
        keys = list(by_key)
        answers: dict[str, bytes] = {}
        with self._open() as connection:
            for start in range(0, len(keys), _AT_ONCE):
                chosen = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(chosen))
                rows = connection.execute(f"SELECT key, answer FROM answers WHERE key IN ({marks})", chosen)
                answers |= {by_key[key]: answer for key, answer in rows}
        return answers

    def put(self, answers: Mapping[str, bytes]) -> None:
        """Store the answers, atomically."""
        rows = [(self._key(question), answer) for question, answer in answers.items()]
        with self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)

    def _key(self, question: str) -> bytes:
        return hashlib.sha256(f"{self._namespace}\0{question}".encode()).digest()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A new connection for each call, since calls may come from any thread.
            with closing(sqlite3.connect(self.path, timeout=60.0)) as connection, connection:
                connection.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer BLOB NOT NULL)")
                yield connection
        except (OSError, sqlite3.Error) as error:
            raise CheckpointError(f"{self.path} cannot be used as a cache ({error}): choose another file") from error


_AT_ONCE = 500
"""Number of keys per query."""
