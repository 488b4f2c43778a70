"""What is known of a task: the states of its world that any run has reached, and where actions lead.

The worlds are deterministic, so that an action in a state is executed once. States are equal if the worlds are,
whatever the way there.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from amc_agents.envs.workshop import WorkshopTask, WorkshopWorld, solution_from
from amc_agents.messages import split_turn
from amc_agents.models.tokenizers import ASSISTANT, USER, WordTokenizer
from amc_agents.types import Task, TimeStep

HORIZON = 20
T = TypeVar("T")


@dataclass(frozen=True)
class After:
    """Where an action leads."""

    state: int
    heard: tuple[int, ...]
    """What the dialogue is extended by after the policy's turn."""
    done: bool
    reward: float


class Known:
    """The states of a task of the workshop.

    Args:
        task: the task.
        tokenizer: of the policy.
    """

    def __init__(self, task: Task, tokenizer: WordTokenizer) -> None:
        self.task, self._tokenizer = task, tokenizer
        world = WorkshopWorld()
        _now(world.reset(task))
        self._worlds = [world]
        self._numbers = {_key(world): 0}
        self._by_turn: dict[tuple[int, tuple[int, ...]], After] = {}
        self._by_action: dict[tuple[int, str], tuple[int, TimeStep]] = {}
        self._ahead: dict[int, int | None] = {}
        self.opening = tuple(tokenizer.encode_chat([("user", task.instruction)]))

    def after(self, state: int, said: Sequence[int]) -> After:
        """Return where a turn leads."""
        key = state, tuple(said)
        if key not in self._by_turn:
            self._by_turn[key] = self._executed(*key)
        return self._by_turn[key]

    def _executed(self, state: int, said: Sequence[int]) -> After:
        _, action = split_turn(self._tokenizer.decode(said))
        if (state, action) not in self._by_action:
            world = _now(self._worlds[state].fork(0))
            answer = _now(world.step(action))
            number = self._numbers.setdefault(_key(world), len(self._worlds))
            if number == len(self._worlds):
                self._worlds.append(world)
            self._by_action[state, action] = number, answer
        number, answer = self._by_action[state, action]
        vocabulary = self._tokenizer.vocabulary
        ended = () if said and said[-1] == self._tokenizer.end_id else (self._tokenizer.end_id,)
        seen = self._tokenizer.encode(answer.observation, special=False)
        heard = *ended, vocabulary[USER], *seen, vocabulary[ASSISTANT]
        return After(number, heard, answer.done, float(answer.reward or 0.0))

    def steps_ahead(self, state: int) -> int | None:
        """Return the planner's number of steps to a success, or None in a dead end."""
        if state not in self._ahead:
            payload = self.task.payload
            assert isinstance(payload, WorkshopTask)
            best = solution_from(payload, self._worlds[state])
            self._ahead[state] = None if best is None else best.n_steps
        return self._ahead[state]


def _key(world: WorkshopWorld) -> object:
    stock = world.stock
    return tuple(world.inventory.items()), tuple(sorted(stock.items())) if stock else None, world.spoiled, world._done


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine that never waits returns."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        returned: T = stop.value
        return returned
    raise RuntimeError("the world waited for something")
