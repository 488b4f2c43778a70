"""Searches of a task that run side by side: their turns are sampled in common batches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from amc_agents.types import FloatArray
from reproduce.dose.draws import Drawn, Forest, Node, Place

T = TypeVar("T")


class Judge(Protocol):
    """A critic of states."""

    async def values(self, nodes: Sequence[Node]) -> FloatArray:
        """`[N]` the expected whole return of each state."""
        ...


class Together:
    """Waits until every search has asked for draws, then makes all of them.

    Args:
        forest: the task's states.
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self._searching = 0
        self._waiting: list[tuple[Counter[Place], asyncio.Future[None]]] = []

    async def run(self, searches: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run the searches."""
        self._searching = len(searches)
        return await asyncio.gather(*(self._until_left(search) for search in searches))

    async def provide(self, counts: Counter[Place]) -> None:
        """Wait for draws, up to a number for each place."""
        made = asyncio.get_running_loop().create_future()
        self._waiting.append((counts, made))
        await self._all_waiting()
        await made

    async def _until_left(self, search: Coroutine[Any, Any, T]) -> T:
        result = await search
        self._searching -= 1
        await self._all_waiting()
        return result

    async def _all_waiting(self) -> None:
        if not self._waiting or len(self._waiting) < self._searching:
            return
        waiting, self._waiting = self._waiting, []
        most: Counter[Place] = Counter()
        for counts, _ in waiting:
            most |= counts
        await self.forest.provide(most)
        for _, made in waiting:
            made.set_result(None)


@dataclass(frozen=True)
class Particle:
    """A state, and the temperature at which it goes on."""

    node: Node
    temperature: float

    @property
    def finished(self) -> bool:
        """Whether the trajectory has ended."""
        return self.node.trajectory.done


@dataclass
class Seat:
    """A search's place at a task: the model that `filtering.filtered` runs on.

    Tokens are those newly read or written with a prefix cache of the run's own.
    """

    together: Together
    judge: Judge
    temperatures: Sequence[float]
    """One per proposal, with equal shares."""
    hide_rewards: bool
    """Whether the critic judges final states, too, instead of the rewards."""
    policy_calls: int = 0
    policy_tokens: int = 0
    critic_tokens: int = 0
    drawn: Counter[Place] = field(default_factory=Counter)
    read: set[Node] = field(default_factory=set)
    judged: set[Node] = field(default_factory=set)

    async def begin(self, n: int) -> list[Particle]:
        """Return n particles before their first step."""
        root = await self.together.forest.root()
        kinds = np.sort(np.arange(n) % len(self.temperatures)).tolist()
        return [Particle(root, self.temperatures[kind]) for kind in kinds]

    async def step(self, states: Sequence[Particle]) -> list[Particle]:
        """Move each of some unfinished particles by a step."""
        numbers = []
        for state in states:
            place = state.node, state.temperature
            numbers.append(self.drawn[place])
            self.drawn[place] += 1
        wanted = {(state.node, state.temperature) for state in states}
        await self.together.provide(Counter({place: self.drawn[place] for place in wanted}))
        moved = []
        for state, number in zip(states, numbers, strict=True):
            drawn = self.together.forest.drawn((state.node, state.temperature), number)
            self._charge(state.node, drawn)
            moved.append(Particle(drawn.node, state.temperature))
        return moved

    async def values(self, states: Sequence[Particle]) -> FloatArray:
        """`[N]` the expected whole return: the return of a finished particle if rewards are seen."""
        values = np.array([state.node.trajectory.return_ for state in states], dtype=np.float64)
        judged = [index for index, state in enumerate(states) if self.hide_rewards or not state.finished]
        if judged:
            nodes = [states[index].node for index in judged]
            values[judged] = await self.judge.values(nodes)
            for node in nodes:
                self.charge_critic(node)
        return values

    def _charge(self, node: Node, drawn: Drawn) -> None:
        self.policy_calls += 1
        self.policy_tokens += drawn.written
        if node.parent is None and node not in self.read:
            self.read.add(node)
            self.policy_tokens += len(node.dialogue)
        if drawn.node not in self.read and not drawn.node.trajectory.done:
            self.read.add(drawn.node)
            self.policy_tokens += len(drawn.node.dialogue) - len(node.dialogue) - drawn.written

    def charge_critic(self, node: Node) -> None:
        """Count the tokens that the critic newly reads to judge a state."""
        above: Node | None = node
        while above is not None and above not in self.judged:
            self.judged.add(above)
            self.critic_tokens += len(above.dialogue) - (len(above.parent.dialogue) if above.parent else 0)
            above = above.parent
