"""Answers of models kept on disk by the hash of what was asked, so that nothing is asked (and paid) twice.

One SQLite file: every `put` is one transaction, written whole or not at all, and several processes may share it.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from amc_agents.errors import CheckpointError


class DiskCache:
    """Bytes by key.

    Args:
        path: the file; made if need be.
        namespace: who answers (a model's name, a prompt): equal questions to different models are different keys.
    """

    def __init__(self, path: str | Path, namespace: str) -> None:
        self.path, self._namespace = Path(path), namespace

    def get(self, questions: Sequence[str]) -> dict[str, bytes]:
        """The answers that are known, by question."""
        by_key = {self._key(question): question for question in questions}
        keys = list(by_key)
        found: dict[str, bytes] = {}
        with self._open() as connection:
            for start in range(0, len(keys), _AT_ONCE):
                chosen = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(chosen))
                rows = connection.execute(f"SELECT key, answer FROM answers WHERE key IN ({marks})", chosen)
                found |= {by_key[key]: answer for key, answer in rows}
        return found

    def put(self, answers: Mapping[str, bytes]) -> None:
        """Keep the answers, all or (where the process dies) none."""
        rows = [(self._key(question), answer) for question, answer in answers.items()]
        with self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)

    def _key(self, question: str) -> bytes:
        return hashlib.sha256(f"{self._namespace}\0{question}".encode()).digest()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A connection of its own for each call: they may come from any thread.
            with closing(sqlite3.connect(self.path, timeout=60.0)) as connection, connection:
                connection.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer BLOB NOT NULL)")
                yield connection
        except (OSError, sqlite3.Error) as error:
            raise CheckpointError(f"{self.path} cannot be used as a cache ({error}): name another file") from error


_AT_ONCE = 500
"""Keys of one look-up."""
