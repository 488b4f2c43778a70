"""Build a `WorldSpec` for an AgentGym server; the eight registered worlds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from amc_agents.concurrency.background import run_in_background
from amc_agents.envs import ReplayFork
from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError
from amc_agents.types import Task
from amc_agents_agentgym.dialects import DIALECTS, Dialect
from amc_agents_agentgym.server import AgentGymServer
from amc_agents_agentgym.world import AgentGymTask, AgentGymWorld

SPLITS: Mapping[str, Sequence[int]] = {"test": range(100), "train": range(100, 1_000_000)}
"""Default task numbers of each split, a convention of this package: AgentGym publishes lists of its own."""


def agentgym_world(
    dialect: str | Dialect,
    url: str | None = None,
    *,
    horizon: int | None = None,
    splits: Mapping[str, Sequence[int]] = SPLITS,
    timeout: float = 60.0,
    model: str | None = None,
) -> WorldSpec:
    """Describe an AgentGym server as a world, ready for `amc()`, `amc bench` and an entry point.

    Args:
        dialect: a name of `DIALECTS`, or a dialect of your own.
        url: the server's URL; None: the value of `AMC_AGENTGYM_<NAME>`.
        horizon: maximum number of steps of an episode; None: the dialect's.
        splits: the task numbers of each split.
        timeout: seconds for one request.
        model: a policy for the world, as in `WorldSpec`.

    Raises:
        ConfigurationError: the dialect is unknown.
    """
    if isinstance(dialect, str) and dialect not in DIALECTS:
        raise ConfigurationError(f"unknown dialect {dialect!r}; available: {', '.join(DIALECTS)}")
    spoken = DIALECTS[dialect] if isinstance(dialect, str) else dialect
    server = AgentGymServer(spoken, url, timeout=timeout)
    return spec_of(server, horizon=horizon, splits=splits, model=model)


def spec_of(
    server: AgentGymServer,
    *,
    horizon: int | None = None,
    splits: Mapping[str, Sequence[int]] = SPLITS,
    model: str | None = None,
) -> WorldSpec:
    """Describe a server as a world; see `agentgym_world`."""
    return WorldSpec(
        make=lambda: ReplayFork(lambda _: AgentGymWorld(server)),
        tasks=partial(_tasks, server, splits),
        horizon=horizon or server.dialect.horizon,
        model=model,
    )


def _tasks(
    server: AgentGymServer, splits: Mapping[str, Sequence[int]], n_tasks: int, split: str, first: int
) -> Iterator[Task]:
    if split not in splits or not 0 <= first <= len(splits[split]) - n_tasks:
        sizes = ", ".join(f"{name} ({len(numbers)} tasks)" for name, numbers in splits.items())
        raise ConfigurationError(f"expected tasks of {sizes}, got {split!r} {first} to {first + n_tasks - 1}")
    for number in splits[split][first : first + n_tasks]:
        name = f"agentgym-{server.dialect.name}/{number}"
        yield run_in_background(_task(server, name, AgentGymTask(number)), n_workers=1)


async def _task(server: AgentGymServer, name: str, payload: AgentGymTask) -> Task:
    world = AgentGymWorld(server)
    try:
        first = await world.reset(Task(name, "", payload))
    finally:
        await world.close()
    return Task(name, first.observation, payload)


TEXTCRAFT, SCIWORLD, BABYAI, ALFWORLD, WEBSHOP, WEATHER, MOVIE, SEARCHQA = map(agentgym_world, DIALECTS)
