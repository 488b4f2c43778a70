"""In-context policy iteration: three models simulate the outcome of each action, and the best action is taken.

A rollout policy, a transition function and a reward function each see examples from the agent's experience. The rollout
policy imitates the agent's recent actions, so each decision is one step of policy improvement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.judge.style import plain_lines
from amc_agents.decisions import Answers
from amc_agents.models.seeding import use_rng
from amc_agents.psrl.roles import DECIMAL, Role, after, read_step
from amc_agents.types import FloatArray, Step, Task, Trajectory
from amc_agents_exploration.episodic import Actions, possible_actions

START = "The episode begins."
"""The state before the first step."""


class _Transition(NamedTuple):
    state: str
    action: str
    reward: float
    next: str


class InContextPolicyIteration:
    """Acts greedily with respect to simulated returns; ties are broken at random.

    The first action is random, since the simulation requires examples.

    Args:
        policy: sends prompts to the model that chooses actions in simulated states.
        transition: sends prompts to the model that predicts the next state.
        reward: sends prompts to the model that predicts the reward.
        horizon: steps of an episode; a rollout continues to its end.
        actions: all actions, or a function of the trajectory; None for the actions that the task's world lists.
        n_examples: number of examples in each request, drawn uniformly from all experience.
        prompts: templates of policy, transition and reward with the library's fields; None for the library's templates.
        world: the rules; None for the instruction of the episode's task.
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
        self._horizon, self._actions, self._n_examples, self._world = horizon, actions, n_examples, world
        self._transitions: list[_Transition] = []
        self._rng = np.random.default_rng(0)

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Set the generator of the episode."""
        self._rng = rng

    async def act(self, trajectory: Trajectory) -> Step:
        """Return the action with the largest simulated return. Raises `RoleError` if a model fails."""
        actions = list(possible_actions(self._actions, trajectory))
        returns = np.zeros(len(actions))
        if self._transitions:
            world = self._world or trajectory.task.instruction
            n_left = self._horizon - len(trajectory.steps)
            with use_rng(self._rng):
                returns = await self._simulated(world, _state(trajectory), actions, n_left)
        return Step(actions[int(self._rng.choice(np.flatnonzero(returns == returns.max())))])

    async def observe(self, trajectory: Trajectory) -> None:
        """Store the step as an example."""
        before = trajectory.prefix(len(trajectory.steps) - 1)
        step = trajectory.steps[-1]
        self._transitions.append(_Transition(_state(before), step.action, step.reward, step.observation))

    async def end(self, trajectory: Trajectory) -> None:
        """Do nothing: every step is stored already."""

    async def _simulated(self, world: str, state: str, actions: Sequence[str], n_left: int) -> FloatArray:
        """Return `[A]` the return of each action followed by the rollout policy, with concurrent rollouts."""
        states, chosen = [state] * len(actions), list(actions)
        returns = np.zeros(len(actions))
        for left in range(n_left, 0, -1):
            rows = [
                {"world": world, "state": current, "action": action}
                for current, action in zip(states, chosen, strict=True)
            ]
            paid, states = await side_by_side(
                self._reward.ask_all(_number, [{**row, "examples": self._examples(_PAID)} for row in rows]),
                self._transition.ask_all(
                    lambda text: after(text, NEXT), [{**row, "examples": self._examples(_LED)} for row in rows]
                ),
            )
            returns += paid
            if left > 1:
                rows = [{"world": world, "state": current, "examples": self._examples(_DID)} for current in states]
                chosen = [step.action for step in await self._policy.ask_all(read_step, rows)]
        return returns

    def _examples(self, template: str) -> str:
        n = min(self._n_examples, len(self._transitions))
        rows = np.sort(self._rng.choice(len(self._transitions), size=n, replace=False))
        return "\n\n".join(template.format(**self._transitions[row]._asdict()) for row in rows)


def _state(trajectory: Trajectory) -> str:
    return trajectory.steps[-1].observation if trajectory.steps else START


def _number(text: str) -> float | None:
    answer = after("\n".join(plain_lines(text)), PAYS)
    match = re.fullmatch(DECIMAL, answer.rstrip(".")) if answer else None
    value = float(match[0]) if match else math.nan
    return value if math.isfinite(value) else None


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
