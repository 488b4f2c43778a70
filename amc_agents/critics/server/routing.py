"""Keep the requests of a task on one replica of a server, whose prefix cache then holds the task's texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from amc_agents.types import Trajectory

SESSION_HEADER = "X-Session-ID"
"""The header by which vllm-router's policy `consistent_hash` chooses a replica."""


def session_of(trajectory: Trajectory) -> str:
    """Return the session of a trajectory: a hash of its task, so that a header reveals no text."""
    task = trajectory.task
    return hashlib.sha256(f"{task.id}\n{task.instruction}".encode()).hexdigest()[:16]


def session_headers(trajectories: Sequence[Trajectory]) -> Mapping[str, str]:
    """Return the header that names the session; empty if the trajectories are of several tasks."""
    sessions = {session_of(trajectory) for trajectory in trajectories}
    return {SESSION_HEADER: sessions.pop()} if len(sessions) == 1 else {}


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
