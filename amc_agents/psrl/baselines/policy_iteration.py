"""In-context policy iteration: three models imagine what would follow each action, and the best one is taken.

A rollout policy, a transition function and a reward function are each shown examples out of what was seen. Since the
rollout policy imitates what the agent did last, each decision is one step of policy improvement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amc_agents.concurrency.gather import side_by_side
from amc_agents.decisions.asking import Answers
from amc_agents.models.seeding import use_rng
from amc_agents.psrl.possible_actions import Actions, possible_actions
from amc_agents.psrl.roles import DECIMAL, Role, after, read_step
from amc_agents.types import FloatArray, Step, Task, Trajectory

START = "The episode begins."
"""The state before the first step."""


class _Seen(NamedTuple):
    state: str
    action: str
    reward: float
    next: str


class InContextPolicyIteration:
    """Acts greedily by imagined returns; ties are broken at random.

    Until something was seen there is nothing to imagine from: the first episode's actions are random.

    Args:
        policy: asks the model that chooses actions in imagined states.
        transition: asks the model that says what an action leads to.
        reward: asks the model that says what it pays.
        horizon: steps of an episode; a rollout goes on to its end.
        actions: what can be done: all that there is, or a function of the state; None: what the task's world lists.
        n_examples: drawn from what was seen, for each request; the newest are as likely as the oldest.
        prompts: of policy, transition and reward, in place of the library's; they use the same fields.
        world: the rules; None: the instruction of the episode's task.
        timeout: see `amc_agents.psrl.roles.Role`.
    """

    def __init__(
        self,
        policy: Answers,
        transition: Answers,
        reward: Answers,
        *,
        horizon: int,
        actions: Actions | None = None,
        n_examples: int = 20,
        prompts: tuple[str, str, str] | None = None,
        world: str | None = None,
        timeout: float | None = None,
    ) -> None:
        acts, leads, pays = prompts or (POLICY, TRANSITION, REWARD)
        self._policy = Role("rollout policy", policy, acts, ("world", "examples", "state"), timeout)
        fields = ("world", "examples", "state", "action")
        self._transition = Role("transition function", transition, leads, fields, timeout)
        self._reward = Role("reward function", reward, pays, fields, timeout, marked=True)
        self._horizon, self._actions, self._n_examples, self._told_world = horizon, actions, n_examples, world
        self._seen: list[_Seen] = []
        self._rng = np.random.default_rng(0)

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Nothing is decided before a step."""
        self._rng = rng

    async def act(self, trajectory: Trajectory) -> Step:
        """The action with the largest imagined return. Raises `RoleError` where one of the models fails."""
        actions = list(possible_actions(self._actions, trajectory))
        returns = np.zeros(len(actions))
        if self._seen:
            world = self._told_world or trajectory.task.instruction
            n_left = self._horizon - len(trajectory.steps)
            with use_rng(self._rng):
                returns = await self._imagined(world, _state(trajectory), actions, n_left)
        return Step(actions[int(self._rng.choice(np.flatnonzero(returns == returns.max())))])

    async def observe(self, trajectory: Trajectory) -> None:
        """Keep the step as an example."""
        before = trajectory.prefix(len(trajectory.steps) - 1)
        step = trajectory.steps[-1]
        self._seen.append(_Seen(_state(before), step.action, step.reward, step.observation))

    async def end(self, trajectory: Trajectory) -> None:
        """All was kept on the way."""

    async def _imagined(self, world: str, state: str, actions: Sequence[str], n_left: int) -> FloatArray:
        """`[A]` the return of each action, followed by the rollout policy: all rollouts side by side."""
        states, doing = [state] * len(actions), list(actions)
        returns = np.zeros(len(actions))
        for left in range(n_left, 0, -1):
            rows = [
                {"world": world, "state": here, "action": action} for here, action in zip(states, doing, strict=True)
            ]
            paid, states = await side_by_side(
                self._reward.ask_all(_number, [{**row, "examples": self._examples(_PAID)} for row in rows]),
                self._transition.ask_all(
                    lambda text: after(text, NEXT), [{**row, "examples": self._examples(_LED)} for row in rows]
                ),
            )
            returns += paid
            if left > 1:
                told = [{"world": world, "state": here, "examples": self._examples(_DID)} for here in states]
                doing = [step.action for step in await self._policy.ask_all(read_step, told)]
        return returns

    def _examples(self, template: str) -> str:
        n = min(self._n_examples, len(self._seen))
        rows = np.sort(self._rng.choice(len(self._seen), size=n, replace=False))
        return "\n\n".join(template.format(**self._seen[row]._asdict()) for row in rows)


def _state(trajectory: Trajectory) -> str:
    return trajectory.steps[-1].observation if trajectory.steps else START


def _number(text: str) -> float | None:
    told = after(text, PAYS)
    match = re.fullmatch(DECIMAL, told.rstrip(".")) if told else None
    found = float(match[0]) if match else math.nan
    return found if math.isfinite(found) else None


NEXT, PAYS = "Observation:", "Reward:"
_PAID = "State: {state}\nAction: {action}\nReward: {reward:g}"
_LED = "State: {state}\nAction: {action}\nObservation: {next}"
_DID = "State: {state}\nAction: {action}"

_SHOWN = """\
This is a world in which an agent acts:

<world>
{world}
</world>

Examples of what was seen in it:

<examples>
{examples}
</examples>

The present state:

<state>
{state}
</state>

"""

POLICY = (
    _SHOWN
    + """\
Which action would the agent of the examples take? Answer with one line of this form:

Action: <one of the actions that the world allows>\
"""
)

TRANSITION = (
    _SHOWN
    + """\
The agent takes this action: {action}

What would the world answer? Keep to the style of the examples. Answer in this form:

Observation: <the answer, and nothing after it>\
"""
)

REWARD = (
    _SHOWN
    + """\
The agent takes this action: {action}

What reward would it get for it? Answer with one line of this form, a decimal number:

Reward: <number>\
"""
)
