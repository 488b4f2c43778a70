"""The critic `vllm:URL,URL,...`: replicas of a value model on several servers."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from typing_extensions import override

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.server.client import server_options
from amc_agents.critics.value.checkpoint import CheckpointedCritic, ValueCheckpoint
from amc_agents.critics.value.pooling import VLLMCritic, one_server, session_of
from amc_agents.errors import CheckpointError, ConfigurationError, CriticServerError
from amc_agents.logs import log, room_logger
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage

REST_S = 30.0
"""Seconds for which a replica that failed is asked last."""
_log = room_logger(__name__)


def from_spec(target: str, options: Mapping[str, str], *, trusted: bool = True) -> VLLMCritic | ReplicatedCritic:
    """The critic of `vllm:URL[,URL...]?options`."""
    urls = [url.strip() for url in target.split(",")]
    if len(urls) == 1:
        return one_server(target, options, trusted=trusted)
    # A replica that does not answer is replaced; only all of them together may take the whole of `retry_for`.
    shared = server_options("vllm", options)["retry_for"] / len(urls)
    each = {**options, "retry_for": f"{shared:g}"}
    return ReplicatedCritic([one_server(url, each, trusted=trusted) for url in urls])


class ReplicatedCritic(CheckpointedCritic):
    """A value model on several servers. The requests of a task go to one server, whose prefix cache knows the task.

    A server that is unreachable, or fails for good, is replaced by the next in the task's own order, and is asked last
    for a while. All servers must serve the same checkpoint.

    Args:
        replicas: a critic for each server.
        clock: returns the time in seconds.

    Raises:
        ConfigurationError: there is no replica, or two have the same URL.
    """

    def __init__(self, replicas: Sequence[VLLMCritic], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = [replica.name for replica in replicas]
        if not replicas or len(set(self._names)) < len(replicas):
            raise ConfigurationError(f"expected servers with different URLs, got {', '.join(self._names) or 'none'}")
        self._replicas, self._clock = list(replicas), clock
        self._failed_at: dict[int, float] = {}
        self._checkpoint: ValueCheckpoint | None = None
        self.name = f"vllm: {len(replicas)} replicas from {self._names[0]}"

    @property
    @override
    def checkpoint(self) -> ValueCheckpoint:
        return self._replicas[0].checkpoint if self._checkpoint is None else self._checkpoint

    @property
    def charged_as(self) -> str | None:
        """Name of the model under which a budget is charged; None: no server was asked for it yet."""
        return next(filter(None, (replica.charged_as for replica in self._replicas)), None)

    @property
    def usage(self) -> Usage:
        """Total usage of all servers so far."""
        return sum((replica.usage for replica in self._replicas), Usage())

    async def connect(self) -> str:
        """Connect to all servers, of which some may be unreachable, and return the model's name.

        Raises:
            CheckpointError: a model's checkpoint is missing, or servers differ in it or in their scores.
            CriticServerError: no server can be reached.
        """
        names = await side_by_side(*(self._name_or_error(index) for index in range(len(self._replicas))))
        reached = [name for name in names if isinstance(name, str)]
        if not reached:
            raise names[0]
        return reached[0]

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predictions in reward units.

        Raises:
            CheckpointError: as in `connect`.
            CriticServerError: every server failed; the error is that of the last one.
            CriticError: as for one server.
        """
        rows_of: dict[str, list[int]] = defaultdict(list)
        for row, trajectory in enumerate(trajectories):
            rows_of[session_of(trajectory)].append(row)
        answers = await side_by_side(
            *(self._values(session, [trajectories[row] for row in rows]) for session, rows in rows_of.items())
        )
        values = np.zeros(len(trajectories))
        for rows, answer in zip(rows_of.values(), answers, strict=True):
            values[rows] = answer
        return values

    async def _values(self, session: str, trajectories: Sequence[Trajectory]) -> FloatArray:
        order = list(self._order(session))
        for index in order:
            try:
                await self._connected(index)
                return await self._replicas[index].values(trajectories)
            except CriticServerError as error:
                if not _may_move(error) or index == order[-1]:
                    raise
                self._rest(index, error)
        raise AssertionError("unreachable")  # pragma: no cover

    def _order(self, session: str) -> Iterator[int]:
        """The replicas in the session's order, those that failed recently last."""
        order, now = ranked(session, self._names), self._clock()
        resting = {index for index, at in self._failed_at.items() if now - at < REST_S}
        yield from (index for index in order if index not in resting)
        yield from (index for index in order if index in resting)

    def _rest(self, index: int, error: CriticServerError) -> None:
        log(
            _log,
            logging.WARNING,
            "critic.replica_failed",
            "a replica of the critic failed, and others take over for %(seconds)g s: %(text)s",
            seconds=REST_S,
            text=error,
        )
        self._failed_at[index] = self._clock()

    async def _connected(self, index: int) -> str:
        """Connect to a replica, and compare its checkpoint with that of the first."""
        replica = self._replicas[index]
        name = await replica.connect()
        if self._checkpoint is None:
            self._checkpoint = replica.checkpoint
        if replica.checkpoint != self._checkpoint:
            raise CheckpointError(
                f"{self._names[index]} serves another checkpoint than the other replicas: serve one model everywhere"
            )
        return name

    async def _name_or_error(self, index: int) -> str | CriticServerError:
        try:
            return await self._connected(index)
        except CriticServerError as error:
            if not _may_move(error):
                raise
            self._rest(index, error)
            return error


def _may_move(error: CriticServerError) -> bool:
    """True for a failure of the server, which another server need not have; a refusal would only be repeated."""
    return error.status is None or error.status == 429 or error.status >= 500


def ranked(session: str, replicas: Sequence[str]) -> list[int]:
    """Return the indices of the replicas by rendezvous hashing, the session's own replica first.

    Each session has its own order. When a replica fails, only its sessions move, evenly to all others.

    Args:
        session: the session.
        replicas: names of the replicas.
    """

    def weight(index: int) -> bytes:
        return hashlib.sha256(f"{session}\n{replicas[index]}".encode()).digest()

    return sorted(range(len(replicas)), key=weight, reverse=True)
