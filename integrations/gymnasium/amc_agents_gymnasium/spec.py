"""Build a `WorldSpec` from a Gymnasium environment: forks, tasks by seed, and splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Literal

from amc_agents.envs import CopyFork, ProcessWorld, ReplayFork
from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError
from amc_agents.types import Environment, Task
from amc_agents_gymnasium.interface import GymnasiumTask, TextInterface
from amc_agents_gymnasium.world import GymnasiumWorld

Fork = Literal["copy", "process", "replay"]
SPLITS = ("train", "test")
SEEDS_PER_SPLIT = 100_000_000


def gymnasium_world(
    name: str,
    interface: TextInterface,
    *,
    horizon: int,
    fork: Fork = "copy",
    success: float = 1.0,
    model: str | None = None,
) -> WorldSpec:
    """Describe a Gymnasium environment as a world, ready for `amc()`, `amc bench` and an entry point.

    Args:
        name: prefix of the task ids.
        interface: the environment and its texts.
        horizon: maximum number of steps of an episode.
        fork: "copy" copies the environment by `copy.deepcopy`. "process" keeps each particle's environment in a process
            of its own, for native simulators and code that uses global random state. "replay" repeats the actions in a
            new environment and checks each answer.
        success: smallest return that counts as a success.
        model: a policy for the world, as in `WorldSpec`.

    Raises:
        ConfigurationError: `fork` is unknown.
    """
    makers: Mapping[str, Callable[[], Environment]] = {
        "copy": lambda: CopyFork(GymnasiumWorld(interface)),
        "process": partial(ProcessWorld, partial(GymnasiumWorld, interface)),
        "replay": lambda: ReplayFork(lambda _: GymnasiumWorld(interface)),
    }
    if fork not in makers:
        raise ConfigurationError(f"fork must be {', '.join(makers)}, got {fork!r}")
    actions = tuple(interface.action) if isinstance(interface.action, Mapping) else None
    tasks = partial(_tasks, name, interface)
    return WorldSpec(makers[fork], tasks, horizon, model=model, success=success, actions=actions)


def _tasks(name: str, interface: TextInterface, n_tasks: int, split: str, first: int) -> Iterator[Task]:
    if split not in SPLITS or first < 0 or first + n_tasks > SEEDS_PER_SPLIT:
        raise ConfigurationError(
            f"expected a split of {', '.join(SPLITS)} and numbers from 0 to {SEEDS_PER_SPLIT - 1}, got {split!r} and "
            f"{first} to {first + n_tasks - 1}"
        )
    env = interface.make()
    try:
        for number in range(first, first + n_tasks):
            payload = GymnasiumTask(SPLITS.index(split) * SEEDS_PER_SPLIT + number)
            yield Task(f"{name}/{split}/{number}", interface.instruction(env, payload), payload)
    finally:
        env.close()
