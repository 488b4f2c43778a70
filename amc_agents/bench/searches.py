"""Tree of Thoughts and LATS, with the value of a critic, and Reflexion.

Tree of Thoughts (Yao et al. 2023), breadth first: every state of the beam is expanded by K samples, and the `width`
best new states are kept. LATS (Zhou et al. 2024): from the root, follow UCT to a state that was not expanded, expand
it, go on with the best child by the critic until an episode ends, and back its return up. Its reflections are left out,
since not every policy can write them, and its value is the critic's alone. Both stop at the first success, and return
the ended episode with the highest return. Reflexion (Shinn et al. 2023): trials of a task, each after a reflection on
the last failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from langchain_core.language_models import BaseChatModel

from amc_agents.bench.growth import Growth, Node
from amc_agents.bench.methods import TreeSettings
from amc_agents.critics.render import turn
from amc_agents.critics.spec import UniformCritic
from amc_agents.errors import PopulationError
from amc_agents.run import Population, Run
from amc_agents.runtime.metering import PolicyMeter, counting_requests
from amc_agents.types import Critic, Environment, Task, Trajectory
from amc_agents.usage import Meter, metering


async def tree_search(
    policy: BaseChatModel,
    critic: Critic,
    make: Callable[[], Environment],
    task: Task,
    settings: TreeSettings,
    *,
    horizon: int,
    seed: int,
    success: float = math.inf,
    rules: str = "",
) -> Run:
    """Search for a good trajectory.

    Args:
        policy: the chat model that proposes turns, at its sampling temperature.
        critic: evaluates states, in the world's reward units.
        make: creates a world that can be forked.
        task: the task.
        settings: the kind of the search, and its size.
        horizon: maximum number of steps of a trajectory.
        seed: seed of the run.
        success: a return at which the search ends.
        rules: system message before the task's instruction; empty: none.

    Returns:
        The run: its population holds all ended episodes, with equal weights.

    Raises:
        PopulationError: the calls did not suffice to end a single episode.
    """
    meter = Meter()
    growth = Growth(policy, critic, task, horizon=horizon, seed=seed, rules=rules)
    with metering(meter), counting_requests(PolicyMeter(meter)):
        try:
            root = await growth.root(make())
            search = _beam if settings.kind == "beam" else _mcts
            await search(growth, root, settings, success)
        finally:
            await growth.close()
    return run_of(growth, asdict(settings), meter, seed)


async def _beam(growth: Growth, root: Node, settings: TreeSettings, success: float) -> None:
    beam = [root]
    while beam and growth.best_return < success:
        children = await growth.expand(beam, settings.samples)
        live = [child for child in children if not child.trajectory.done]
        ranked = sorted(live, key=lambda child: child.value, reverse=True)
        beam = ranked[: settings.width]
        # A world can hold a process or megabytes of memory, and nothing is ever expanded from these states again.
        await growth.abandon(ranked[settings.width :])


async def _mcts(growth: Growth, root: Node, settings: TreeSettings, success: float) -> None:
    def goes_on() -> bool:
        return growth.calls + settings.samples <= settings.max_calls and growth.best_return < success

    while goes_on() and not root.closed:
        node = _selected(root, settings.exploration)
        while goes_on() and not node.trajectory.done:
            children = await growth.expand([node], settings.samples)
            node = max(children, key=lambda child: child.value)
        if node.trajectory.done:
            node.back_up(node.trajectory.return_)


def _selected(root: Node, exploration: float) -> Node:
    """Follow UCT from the root to a state that has not been expanded."""
    node = root
    while node.children:
        node = max((child for child in node.children if not child.closed), key=lambda child: child.uct(exploration))
    return node


def run_of(growth: Growth, config: Mapping[str, Any], meter: Meter, seed: int) -> Run:
    """Return the ended episodes of a search as a run, with equal weights.

    Raises:
        PopulationError: no episode ended.
    """
    if not growth.ended:
        raise PopulationError(f"no episode ended within {growth.calls} calls of the policy: raise max_calls")
    trajectories = tuple(node.trajectory for node in growth.ended)
    returns, even = np.array([trajectory.return_ for trajectory in trajectories]), np.zeros(len(trajectories))
    best = int(returns.argmax())
    return Run(
        best=trajectories[best],
        best_index=best,
        population=Population(trajectories, even, even, returns),
        history=(),
        log_evidence=math.nan,
        usage=meter.read(),
        seed=seed,
        config=config,
        select="return",
        deployable=False,
    )


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
