"""The states of a task that any run has reached, and the policy's draws there.

Draw k at a state and temperature depends only on the seed. A run therefore does not depend on the runs beside it, runs
with different critics are compared with common random numbers, and what they share is computed once. Within a run, all
draws are different and independent.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from amc_agents.messages import split_turn
from amc_agents.types import Environment, FloatArray, Step, Task, Trajectory
from reproduce.beyond.play import MAX_TOKENS, Policy, Tokens

_ROWS = 48
"""Turns that are sampled at a time."""


@dataclass(frozen=True, eq=False)
class Node:
    """A state. Equal dialogues are the same node."""

    trajectory: Trajectory
    world: Environment = field(repr=False)
    dialogue: Tokens = field(repr=False)
    """The policy's prompt for the next turn."""
    parent: Node | None = field(default=None, repr=False)


Place = tuple[Node, float]
"""A state and a temperature."""


@dataclass(frozen=True)
class Drawn:
    """A turn of the policy, and where it leads."""

    node: Node
    written: int
    """Number of tokens of the turn."""


class Forest:
    """The known states of a task.

    Args:
        policy: samples turns.
        task: the task.
        make: creates its world, which is deterministic.
        seed: of all draws.
        horizon: maximum number of steps.
    """

    def __init__(
        self, policy: Policy, task: Task, make: Callable[[], Environment], seed: int, horizon: int = 20
    ) -> None:
        self._policy, self._task, self._make, self._horizon = policy, task, make, horizon
        self._seed = [seed, zlib.crc32(task.id.encode())]
        self._nodes: dict[Tokens, Node] = {}
        self._draws: dict[Place, list[Drawn]] = {}

    async def root(self) -> Node:
        """Return the state before the first step."""
        opening = self._policy.opening(self._task.instruction)
        if opening not in self._nodes:
            world = self._make()
            await world.reset(self._task)
            self._nodes[opening] = Node(Trajectory(self._task), world, opening)
        return self._nodes[opening]

    def drawn(self, place: Place, number: int) -> Drawn:
        """Return a draw that `provide` made."""
        return self._draws[place][number]

    async def provide(self, counts: Mapping[Place, int]) -> None:
        """Make the draws that are missing, up to a number for each place."""
        missing = [
            (place, number)
            for place, count in counts.items()
            for number in range(len(self._draws.get(place, [])), count)
        ]
        for first in range(0, len(missing), _ROWS):
            some = missing[first : first + _ROWS]
            prompts = [node.dialogue for (node, _), _ in some]
            uniforms = np.stack([self._uniforms(place, number) for place, number in some])
            heat = np.array([temperature for (_, temperature), _ in some])
            said, _ = self._policy.said(prompts, partial(_at, uniforms), heat)
            for (place, _), tokens in zip(some, said, strict=True):
                node = await self.after(place[0], self._policy.decode(tokens))
                self._draws.setdefault(place, []).append(Drawn(node, len(tokens)))

    def _uniforms(self, place: Place, number: int) -> FloatArray:
        node, temperature = place
        at = zlib.crc32(np.array(node.dialogue, np.int32).tobytes())
        return np.random.default_rng([*self._seed, at, round(1000 * temperature), number]).random(MAX_TOKENS)

    async def after(self, node: Node, turn: str) -> Node:
        """Return the state after a turn, whether or not the policy would say it."""
        world = await node.world.fork(0)
        thought, action = split_turn(turn)
        answer = await world.step(action)
        dialogue = self._policy.extended(node.dialogue, turn, answer.observation)
        if dialogue not in self._nodes:
            cut = not answer.done and len(node.trajectory.steps) + 1 >= self._horizon
            step = Step(action, answer.observation, thought, answer.reward)
            trajectory = node.trajectory.extended(step, done=answer.done or cut, truncated=cut)
            self._nodes[dialogue] = Node(trajectory, world, dialogue, node)
        return self._nodes[dialogue]


def _at(uniforms: FloatArray, rows: Sequence[int], number: int) -> FloatArray:
    """Return the random numbers of some turns' next token."""
    return uniforms[rows, number]
