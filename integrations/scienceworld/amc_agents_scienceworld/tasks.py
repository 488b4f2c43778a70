"""The tasks of ScienceWorld's splits, mixed so that a few of them cover many kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError
from amc_agents.types import Task
from amc_agents_scienceworld.engine import SPLITS, TASK_NAMES, engine, variations
from amc_agents_scienceworld.world import HORIZON, LONG_HORIZON, ScienceWorld, ScienceWorldTask, instruction

SHORT_TASKS = (
    "chemistry-mix",
    "chemistry-mix-paint-secondary-color",
    "chemistry-mix-paint-tertiary-color",
    "find-animal",
    "find-living-thing",
    "find-non-living-thing",
    "find-plant",
    "identify-life-stages-2",
    "lifespan-longest-lived",
    "lifespan-longest-lived-then-shortest-lived",
    "lifespan-shortest-lived",
    "power-component",
    "power-component-renewable-vs-nonrenewable-energy",
    "test-conductivity",
    "test-conductivity-of-unknown-substances",
    "use-thermometer",
)
"""Tasks whose gold path had at most 20 actions in the first test variation."""


def generate_tasks(
    n_tasks: int, split: str, first: int = 0, *, names: Sequence[str] = TASK_NAMES, simplifications: str = ""
) -> Iterator[Task]:
    """Return tasks of a split: variation by variation, and each variation of all names in turn.

    Args:
        n_tasks: number of tasks; fewer if the split has fewer (1,819 for "test" and all names).
        split: "train", "dev" or "test", as ScienceWorld divides its variations.
        first: number of tasks to skip.
        names: names of tasks, from `TASK_NAMES`.
        simplifications: the engine's simplifications, separated by commas.

    Raises:
        ConfigurationError: the split or a name does not exist.
    """
    if split not in SPLITS:
        raise ConfigurationError(f"expected a split of {', '.join(SPLITS)}, got {split!r}")
    return (
        _task(ScienceWorldTask(name, variation, simplifications))
        for name, variation in islice(_in_turn(split, names), first, first + n_tasks)
    )


def task_of(name: str) -> Task:
    """Restore a task from its id, for datasets, which store no payload.

    Raises:
        ConfigurationError: the id is not that of a generated task.
    """
    return _task(payload_of(name))


def payload_of(name: str) -> ScienceWorldTask:
    """Return the payload of a task's id, without asking the engine.

    Raises:
        ConfigurationError: the id does not have the form of a generated task's.
    """
    match name.split("/"):
        case ["scienceworld", kind, number, *rest] if number.isdecimal() and len(rest) <= 1:
            return ScienceWorldTask(kind, int(number), *rest)
    raise ConfigurationError(f"expected the id of a ScienceWorld task such as scienceworld/boil/21, got {name!r}")


def _in_turn(split: str, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    of_split = {name: variations(name)[split] for name in names}
    for number in range(max(map(len, of_split.values()), default=0)):
        yield from ((name, numbers[number]) for name, numbers in of_split.items() if number < len(numbers))


def _task(payload: ScienceWorldTask) -> Task:
    simulation = engine().load(payload.name, payload.variation, payload.simplifications)
    try:
        parts = ["scienceworld", payload.name, str(payload.variation), payload.simplifications]
        return Task("/".join(filter(None, parts)), instruction(simulation), payload)
    finally:
        simulation.close()


SCIENCEWORLD = WorldSpec(ScienceWorld, generate_tasks, horizon=HORIZON)
"""All 30 tasks with the AMC paper's limit of 20 steps: the entry point `scienceworld`."""
SCIENCEWORLD_SHORT = WorldSpec(ScienceWorld, partial(generate_tasks, names=SHORT_TASKS), horizon=HORIZON)
"""The tasks that can be solved within 20 steps: the entry point `scienceworld-short`."""
SCIENCEWORLD_LONG = WorldSpec(ScienceWorld, generate_tasks, horizon=LONG_HORIZON)
"""All 30 tasks with ScienceWorld's own limit of 100 steps: the entry point `scienceworld-long`."""
