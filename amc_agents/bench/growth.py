"""Grow a search tree: sample turns at a state, execute them in forks of its world, and evaluate the new states."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.adapting import checked_values
from amc_agents.messages import turn_of
from amc_agents.models.seeding import use_rng
from amc_agents.types import Critic, Environment, Step, Task, Trajectory


@dataclass(eq=False)
class Node:
    """A state, with the statistics that MCTS keeps on it."""

    trajectory: Trajectory
    messages: tuple[BaseMessage, ...]
    """The agent's dialogue up to this state."""
    world: Environment | None
    """The world in this state; None after the expansion, or at an end."""
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    value: float = 0.0
    """The critic's prediction of the whole return, later replaced by the mean of the returns that were backed up."""
    visits: int = 0
    """Number of returns that were backed up."""
    closed: bool = False
    """True if nothing below this state can be expanded any more."""

    def path(self) -> Iterator[Node]:
        """Iterate from this node up to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def uct(self, exploration: float) -> float:
        """Return the value plus w sqrt(ln N(parent) / N); a state that was never visited counts as visited once."""
        above = self.parent.visits if self.parent else 1
        return self.value + exploration * math.sqrt(math.log(max(above, 1)) / max(self.visits, 1))

    def back_up(self, reached: float) -> None:
        """Add a return to the mean of every state on the path to the root."""
        for node in self.path():
            node.visits += 1
            node.value = (node.value * (node.visits - 1) + reached) / node.visits

    def close(self) -> None:
        """Mark a state below which nothing is left, and the states above it to which the same applies."""
        self.closed = True
        for node in self.path():
            if node.children and all(child.closed for child in node.children):
                node.closed = True


class Growth:
    """The effects of a search: calls of the policy and the critic, and worlds.

    Args:
        policy: the chat model that proposes turns.
        critic: evaluates states.
        task: the task.
        horizon: maximum number of steps.
        seed: seed of all samples and forks.
    """

    def __init__(
        self, policy: BaseChatModel, critic: Critic, task: Task, *, horizon: int, seed: int, rules: str = ""
    ) -> None:
        self._policy, self._critic, self._task = policy, critic, task
        self._rules = [SystemMessage(rules)] if rules else []
        self._horizon, self._seed = horizon, seed
        self._open: set[Environment] = set()
        self.calls = 0
        """Calls of the policy so far."""
        self.ended: list[Node] = []
        """The states in which an episode ended, in the order of their discovery."""

    @property
    def best_return(self) -> float:
        """The highest return of an ended episode; -inf before the first."""
        return max((node.trajectory.return_ for node in self.ended), default=-np.inf)

    async def root(self, world: Environment, instruction: str | None = None) -> Node:
        """Start the task in a new world.

        Args:
            world: a new world.
            instruction: what the policy reads first; None: the task's instruction.
        """
        self._open.add(world)
        await world.reset(self._task)
        first = HumanMessage(instruction or self._task.instruction)
        return Node(Trajectory(self._task), (*self._rules, first), world)

    async def ask(self, prompt: str) -> str:
        """Return the policy's answer to a prompt outside of any episode."""
        self.calls += 1
        return (await self._call([HumanMessage(prompt)], self.calls - 1)).text

    async def expand(self, nodes: Sequence[Node], samples: int) -> list[Node]:
        """Add the children of several states, and evaluate them in one batch. Returns all of them, in order."""
        first = self.calls
        self.calls += samples * len(nodes)
        numbers = (range(start, start + samples) for start in range(first, self.calls, samples))
        turns = await side_by_side(*map(self._sampled, nodes, numbers))
        children = [child for node, drawn in zip(nodes, turns, strict=True) for child in await self._grow(node, drawn)]
        await self._evaluate(children)
        for child in children:
            if child.trajectory.done:
                self.ended.append(child)
                child.close()
        return children

    async def abandon(self, nodes: Sequence[Node]) -> None:
        """Close the worlds of states that will not be expanded."""
        for node in nodes:
            if node.world is not None:
                await self._close_world(node.world)
                node.world = None

    async def close(self) -> None:
        """Close all worlds that are still open."""
        for world in list(self._open):
            await self._close_world(world)

    async def _sampled(self, node: Node, numbers: Sequence[int]) -> list[AIMessage]:
        """Sample turns, and keep the first of equal ones."""
        different: dict[tuple[str, str], AIMessage] = {}
        for message in await side_by_side(*(self._call(node.messages, number) for number in numbers)):
            different.setdefault(turn_of(message), message)
        return list(different.values())

    async def _call(self, messages: Sequence[BaseMessage], number: int) -> AIMessage:
        with use_rng(np.random.default_rng([self._seed, number])):
            message = await self._policy.ainvoke(list(messages))
        assert isinstance(message, AIMessage)
        return message

    async def _grow(self, node: Node, turns: Sequence[AIMessage]) -> list[Node]:
        assert node.world is not None
        world, node.world = node.world, None
        forks = [await self._forked(world, number) for number in range(1, len(turns))]
        for turn, place in zip(turns, [*forks, world], strict=True):
            node.children.append(await self._child(node, turn, place))
        return node.children

    async def _forked(self, world: Environment, number: int) -> Environment:
        seed = int(np.random.default_rng([self._seed, self.calls, number]).integers(2**62))
        twin = await world.fork(seed)
        self._open.add(twin)
        return twin

    async def _child(self, node: Node, turn: AIMessage, world: Environment) -> Node:
        thought, action = turn_of(turn)
        answer = await world.step(action)
        step = Step(action, answer.observation, thought, answer.reward)
        cut = not answer.done and len(node.trajectory.steps) + 1 == self._horizon
        trajectory = node.trajectory.extended(step, done=answer.done or cut, truncated=answer.truncated or cut)
        if trajectory.done:
            await self._close_world(world)
        messages = (*node.messages, turn, HumanMessage(answer.observation))
        return Node(trajectory, messages, None if trajectory.done else world, node)

    async def _evaluate(self, nodes: Sequence[Node]) -> None:
        """Predict the whole return of each state; that of an ended episode is known."""
        live = [node for node in nodes if not node.trajectory.done]
        for node in nodes:
            node.value = node.trajectory.return_
        if live:
            trajectories = [node.trajectory for node in live]
            values = checked_values(await self._critic.values(trajectories), len(live), "of the tree search")
            whole = getattr(self._critic, "predicts", "future") == "return"
            for node, value in zip(live, values, strict=True):
                node.value = float(value) + (0.0 if whole else node.trajectory.return_)

    async def _close_world(self, world: Environment) -> None:
        self._open.discard(world)
        await world.close()
