"""Reflexion in text worlds (Shinn et al. 2023): trials of a task, each after a reflection on the last failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from langchain_core.language_models import BaseChatModel

from amc_agents.bench.tree.growth import Growth
from amc_agents.bench.tree.search import run_of
from amc_agents.critics.render import turn
from amc_agents.critics.uniform import UniformCritic
from amc_agents.run import Run
from amc_agents.runtime.metering import PolicyMeter, counting_requests
from amc_agents.types import Environment, Task, Trajectory
from amc_agents.usage import Meter, metering

MEMORY = 3
"""Number of newest reflections that the policy reads, as in the paper."""


async def reflexion(
    policy: BaseChatModel,
    make: Callable[[], Environment],
    task: Task,
    *,
    trials: int,
    horizon: int,
    seed: int,
    success: float,
    rules: str = "",
) -> Run:
    """Try a task until it succeeds, at most `trials` times.

    The policy writes the reflections too, and they count as its calls.

    Args:
        policy: the chat model that acts and reflects.
        make: creates a world.
        task: the task.
        trials: maximum number of episodes.
        horizon: maximum number of steps of an episode.
        seed: seed of the run.
        success: a return at which no further trial is needed.
        rules: system message before the task's instruction; empty: none.

    Returns:
        The run: its population holds the trials in order.
    """
    meter, reflections = Meter(), list[str]()
    growth = Growth(policy, UniformCritic(), task, horizon=horizon, seed=seed, rules=rules)
    with metering(meter), counting_requests(PolicyMeter(meter)):
        try:
            for left in reversed(range(trials)):
                trajectory = await _episode(growth, make(), instruction_with(task.instruction, reflections))
                if trajectory.return_ >= success or not left:
                    break
                reflections.append(await growth.ask(REFLECT.format(episode=transcript(trajectory))))
        finally:
            await growth.close()
    return run_of(growth, {"trials": trials, "memory": MEMORY}, meter, seed)


def instruction_with(instruction: str, reflections: Sequence[str]) -> str:
    """Add the newest reflections to a task's instruction."""
    if not reflections:
        return instruction
    return REMEMBER.format(reflections="\n".join(f"- {text.strip()}" for text in reflections[-MEMORY:])) + instruction


def transcript(trajectory: Trajectory) -> str:
    """Format an episode for its reflection."""
    rounds = [f"{turn(step)}\nObservation: {step.observation}" for step in trajectory.steps]
    return "\n".join([trajectory.task.instruction, *rounds])


async def _episode(growth: Growth, world: Environment, instruction: str) -> Trajectory:
    node = await growth.root(world, instruction)
    while not node.trajectory.done:
        (node,) = await growth.expand([node], 1)
    return node.trajectory


REMEMBER = """\
You have failed this task before. These are your reflections on the earlier attempts:
{reflections}

Use them to do better now.

"""

REFLECT = """\
You have attempted a task and failed. This was the attempt:

{episode}

Find the cause of the failure, and write a new plan in two or three sentences that avoids it. Name the actions to take.\
"""
