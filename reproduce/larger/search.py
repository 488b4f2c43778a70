"""Searches of many tasks side by side: their turns are sampled in common batches, and their states judged in others."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from amc_agents.types import FloatArray
from reproduce.larger.batched import CONTEXT, MAX_TURN, Batched, Place, Start, Tokens
from reproduce.larger.known import HORIZON, Known
from reproduce.larger.value_head import ValueModel

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Node:
    """A state of a run. `filtering.filtered` moves these."""

    known: Known = field(repr=False)
    state: int
    """Of the world."""
    dialogue: Tokens = field(repr=False)
    n_steps: int = 0
    finished: bool = False
    return_: float = 0.0
    parent: Node | None = field(default=None, repr=False)
    written: int = 0
    """Length of the turn that led here, in tokens."""


class Critic(Protocol):
    """Judges states of many tasks at once."""

    def values(self, nodes: Sequence[Node]) -> FloatArray:
        """`[N]` values."""
        ...


class Planner:
    """The oracle of docs/results/dose: 0 in a dead end or after a failure, more the more steps can be wasted."""

    def values(self, nodes: Sequence[Node]) -> FloatArray:
        """`[N]` grades."""
        return np.array([self._grade(node) for node in nodes])

    def _grade(self, node: Node) -> float:
        if node.finished:
            return float(node.return_ > 0)
        ahead = node.known.steps_ahead(node.state)
        slack = -1 if ahead is None else HORIZON - node.n_steps - ahead
        return 0.5 + 0.5 * slack / HORIZON if slack >= 0 else 0.0


class Learned:
    """A value model that reads transcripts.

    Args:
        model: the value model.
    """

    def __init__(self, model: ValueModel) -> None:
        self._model = model
        self._known: dict[Node, float] = {}

    def values(self, nodes: Sequence[Node]) -> FloatArray:
        """`[N]` values."""
        new = [node for node in dict.fromkeys(nodes) if node not in self._known]
        if new:
            self._known |= zip(new, self._model.values([node.dialogue for node in new]).tolist(), strict=True)
        return np.array([self._known[node] for node in nodes])


class Rollouts:
    """V^pi: the mean return of continuations by the policy. A finished state's value is its return.

    Args:
        policy: plays on.
        n: continuations of a state.
        temperature: of the policy.
    """

    def __init__(self, policy: Batched, n: int, temperature: float) -> None:
        self._policy, self._n, self._temperature = policy, n, temperature
        self._known: dict[Node, float] = {}

    def values(self, nodes: Sequence[Node]) -> FloatArray:
        """`[N]` mean returns."""
        new = [node for node in dict.fromkeys(nodes) if node not in self._known]
        self._known |= ((node, node.return_) for node in new if node.finished)
        open_ = [node for node in new if not node.finished]
        if open_:
            starts = [Start(node.known, node.state, node.dialogue, node.n_steps) for node in open_]
            played = self._policy.play_on(starts, self._n, self._temperature, HORIZON)
            means = np.array([return_ for _, return_ in played]).reshape(-1, self._n).mean(axis=1)
            self._known |= zip(open_, means.tolist(), strict=True)
        return np.array([self._known[node] for node in nodes])


class Together:
    """Waits until every search has asked for something, then answers all of them.

    Args:
        policy: samples the turns.
    """

    def __init__(self, policy: Batched) -> None:
        self._policy = policy
        self._searching = 0
        self._steps: list[tuple[Seat, Sequence[Node], asyncio.Future[list[Node]]]] = []
        self._values: list[tuple[Critic, Sequence[Node], asyncio.Future[FloatArray]]] = []

    async def run(self, searches: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run the searches."""
        self._searching = len(searches)
        return await asyncio.gather(*(self._until_left(search) for search in searches))

    async def step(self, seat: Seat, nodes: Sequence[Node]) -> list[Node]:
        """Move each node of a search by a turn."""
        future: asyncio.Future[list[Node]] = asyncio.get_running_loop().create_future()
        self._steps.append((seat, nodes, future))
        self._maybe_answer()
        return await future

    async def values(self, critic: Critic, nodes: Sequence[Node]) -> FloatArray:
        """Judge nodes."""
        future: asyncio.Future[FloatArray] = asyncio.get_running_loop().create_future()
        self._values.append((critic, nodes, future))
        self._maybe_answer()
        return await future

    async def _until_left(self, search: Coroutine[Any, Any, T]) -> T:
        result = await search
        self._searching -= 1
        self._maybe_answer()
        return result

    def _maybe_answer(self) -> None:
        if len(self._steps) + len(self._values) < self._searching:
            return
        steps, self._steps = self._steps, []
        values, self._values = self._values, []
        if steps:
            each = [(seat, node) for seat, nodes, _ in steps for node in nodes]
            moved = iter(self._moved(each))
            for _, nodes, made in steps:
                made.set_result([next(moved) for _ in nodes])
        for critic in dict.fromkeys(critic for critic, _, _ in values):
            asked = [(nodes, future) for judge, nodes, future in values if judge is critic]
            found = critic.values([node for nodes, _ in asked for node in nodes])
            cuts = np.cumsum([len(nodes) for nodes, _ in asked])[:-1]
            for (_, future), part in zip(asked, np.split(found, cuts), strict=True):
                future.set_result(part)

    def _moved(self, each: Sequence[tuple[Seat, Node]]) -> list[Node]:
        dialogues, heats = [node.dialogue for _, node in each], [seat.temperature for seat, _ in each]
        turns, after = self._policy.turns(dialogues, heats, [seat.places.get(node) for seat, node in each])
        moved = [_after(node, turn) for (_, node), turn in zip(each, turns, strict=True)]
        for seat, _ in each:
            # A search moves all its particles at once, so that no earlier place is needed again. One that stayed would
            # keep the keys and values of all rows of its step.
            seat.places = {}
        for (seat, _), node, place in zip(each, moved, after, strict=True):
            if not node.finished:
                seat.places[node] = place
        return moved


def _after(node: Node, turn: Tokens) -> Node:
    after = node.known.after(node.state, turn)
    dialogue = (*node.dialogue, *turn, *after.heard)
    over = after.done or node.n_steps + 1 >= HORIZON or len(dialogue) + MAX_TURN >= CONTEXT
    reward = after.reward if after.done else 0.0
    return Node(node.known, after.state, dialogue, node.n_steps + 1, over, reward, node, len(turn))


@dataclass
class Seat:
    """A search's place at a task: the model that `filtering.filtered` runs on.

    Tokens are those newly read or written with a prefix cache of the run's own.
    """

    together: Together
    known: Known
    critic: Critic | None
    """None: judges nothing."""
    temperature: float
    places: dict[Node, Place] = field(default_factory=dict)
    """Where the keys and values of unfinished particles are."""
    policy_calls: int = 0
    policy_tokens: int = 0
    critic_tokens: int = 0
    _judged: set[Node] = field(default_factory=set)

    async def begin(self, n: int) -> list[Node]:
        """Return n particles before their first step."""
        self.policy_tokens += len(self.known.opening)
        return [Node(self.known, 0, self.known.opening)] * n

    async def step(self, states: Sequence[Node]) -> list[Node]:
        """Move unfinished states by one step."""
        moved = await self.together.step(self, states)
        self.policy_calls += len(states)
        for before, node in zip(states, moved, strict=True):
            newly = len(node.dialogue) - len(before.dialogue)
            self.policy_tokens += node.written if node.finished else newly
        return moved

    async def values(self, states: Sequence[Node]) -> FloatArray:
        """`[N]` values by the critic, of finished states, too."""
        if self.critic is None:
            return np.zeros(len(states))
        for node in states:
            self.charge(node)
        return await self.together.values(self.critic, states)

    def charge(self, node: Node) -> None:
        """Count the tokens that a critic newly reads to judge a state."""
        above: Node | None = node
        while above is not None and above not in self._judged:
            self._judged.add(above)
            self.critic_tokens += len(above.dialogue) - (len(above.parent.dialogue) if above.parent else 0)
            above = above.parent


def past(node: Node) -> list[Node]:
    """The states up to a node, the first one first."""
    path = [node]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    return path[::-1]


def areas_by_step(paths: Sequence[Sequence[Node]], values: dict[Node, float], auc: Any) -> dict[int, float]:
    """Step -> AUC of the values of unfinished states after it against the outcome, among a task's tries."""
    found = {}
    for step in range(1, max(map(len, paths))):
        here = [path for path in paths if len(path) > step + 1 and path[step] in values]
        success = np.array([path[-1].return_ > 0 for path in here])
        if len(here) and success.any() and not success.all():
            area = auc(np.array([values[path[step]] for path in here]), success)
            if area is not None and not math.isnan(area):
                found[step] = round(area, 4)
    return found
