"""The critics that are not made of noise: value models, and V^pi by rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.types import FloatArray
from reproduce.dose.draws import Forest, Node, Place


class ValueModel:
    """A value model on one task's states (`lockstep.Judge`); a state is read once.

    Args:
        critic: the value model.
    """

    def __init__(self, critic: EmbeddedCritic) -> None:
        self._critic = critic
        self._known: dict[Node, float] = {}

    async def values(self, nodes: Sequence[Node]) -> FloatArray:
        """`[N]` values."""
        new = [node for node in dict.fromkeys(nodes) if node not in self._known]
        if new:
            values = await self._critic.values([node.trajectory for node in new])
            self._known |= zip(new, values.tolist(), strict=True)
        return np.array([self._known[node] for node in nodes])


class Rollouts:
    """V^pi of one task's states: the mean return of continuations at a temperature (`lockstep.Judge`).

    Args:
        forest: makes the continuations, with other draws than the search's.
        temperature: of the policy.
        n: continuations of a state.
    """

    def __init__(self, forest: Forest, temperature: float, n: int) -> None:
        self._forest, self._temperature, self._n = forest, temperature, n
        self._known: dict[Node, float] = {}

    async def values(self, nodes: Sequence[Node]) -> FloatArray:
        """`[N]` mean returns."""
        new = [node for node in dict.fromkeys(nodes) if node not in self._known]
        self._known |= zip(new, await self._means(new), strict=True)
        return np.array([self._known[node] for node in nodes])

    async def _means(self, starts: Sequence[Node]) -> list[float]:
        """Continue all states together. The continuations of a state use different draws wherever they meet."""
        walkers = [(start, start) for start in starts for _ in range(self._n)]
        drawn: dict[Node, Counter[Place]] = {start: Counter() for start in starts}
        while any(not node.trajectory.done for _, node in walkers):
            numbers = []
            for start, node in walkers:
                numbers.append(drawn[start][node, self._temperature])
                drawn[start][node, self._temperature] += not node.trajectory.done
            await self._forest.provide(self._most(drawn, walkers))
            walkers = [
                (start, node if node.trajectory.done else self._forest.drawn((node, self._temperature), number).node)
                for (start, node), number in zip(walkers, numbers, strict=True)
            ]
        returns = np.array([node.trajectory.return_ for _, node in walkers])
        return [float(mean) for mean in returns.reshape(len(starts), self._n).mean(axis=1)]

    def _most(self, drawn: dict[Node, Counter[Place]], walkers: Sequence[tuple[Node, Node]]) -> Counter[Place]:
        most: Counter[Place] = Counter()
        for start, node in dict.fromkeys(walkers):
            if not node.trajectory.done:
                place = node, self._temperature
                most[place] = max(most[place], drawn[start][place])
        return most
