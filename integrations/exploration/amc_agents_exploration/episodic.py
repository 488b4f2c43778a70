"""Agents that learn over many episodes: their protocol, the loop of one episode, and LLM-PSRL and LLM-IDS as agents.

Each of the roles may be a language model, any object with the role's method, or "exact": computed by Bayes' rule.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.models.seeding import use_rng
from amc_agents.psrl.ids import Estimator, IdsDecision, InformationDirectedChoice
from amc_agents.psrl.posterior.memory import PosteriorMemory
from amc_agents.psrl.posterior.updates import EpisodeProgress, Learner, Learning
from amc_agents.psrl.roles import Sampler, Updater
from amc_agents.quoting import quoted
from amc_agents.types import Environment, Step, Task, Trajectory
from amc_agents_exploration.exact.known import exact_model
from amc_agents_exploration.exact.roles import ExactEstimator, ExactPolicy, ExactSampler, ExactUpdater
from amc_agents_exploration.policy import SamplePolicy
from amc_agents_exploration.worlds import Instance

Exact = Literal["exact"]
"""Replaces a role by the exact computation for the task's world (`amc_agents_exploration.exact.exact_model`)."""
Actions = Sequence[str] | Callable[[Trajectory], Sequence[str]]
"""All actions, or a function of the trajectory."""


class EpisodicAgent(Protocol):
    """Plays a sequence of episodes in worlds of one kind, and carries what it learns from one to the next."""

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Begin an episode, for example by drawing a hypothesis. All draws of the episode come from `rng`."""
        ...

    async def act(self, trajectory: Trajectory) -> Step:
        """Return thought and action in the trajectory's last state, without observation and reward."""
        ...

    async def observe(self, trajectory: Trajectory) -> None:
        """Process the outcome of the last action, for example by updating a posterior."""
        ...

    async def end(self, trajectory: Trajectory) -> None:
        """Process the end of the episode, for example by updating a posterior once per episode."""
        ...


async def play_episode(
    world: Environment, task: Task, agent: EpisodicAgent, rng: np.random.Generator, *, horizon: int
) -> Trajectory:
    """Play one episode, from the world's reset to its end or to `horizon` steps.

    Before its first step, the agent has seen the task's instruction.
    """
    await world.reset(task)
    trajectory = Trajectory(task)
    await agent.begin(task, rng)
    while not trajectory.done:
        step = await agent.act(trajectory)
        answer = await world.step(step.action)
        cut = not answer.done and len(trajectory.steps) + 1 >= horizon
        observed = Step(step.action, answer.observation, step.thought, answer.reward)
        trajectory = trajectory.extended(observed, done=answer.done or cut, truncated=answer.truncated or cut)
        await agent.observe(trajectory)
    await agent.end(trajectory)
    return trajectory


class LearningAgent:
    """Base of agents with a posterior: stores each episode's steps as evidence and updates the posterior.

    The steps of an interrupted episode are applied when the next episode begins.

    Args:
        memory: where the posterior is stored, with its prior.
        updater: writes the new posterior.
        learning: settings of the updates.
        world: the rules, for all roles; None for the instruction of the episode's task.
    """

    def __init__(
        self, memory: PosteriorMemory, updater: Updater | Exact, learning: Learning, world: str | None
    ) -> None:
        self.memory = memory
        """The stored posterior."""
        self._updater, self._learning, self._given_world = updater, learning, world
        self._world, self._posterior, self._rng = "", "", np.random.default_rng(0)
        self._learner: Learner | None = None
        self._progress = EpisodeProgress()
        self._seen: tuple[Step, ...] = ()

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Apply pending evidence.

        Raises:
            UpdateError: earlier observations could not be applied. They remain stored.
        """
        self._rng = rng
        if self._learner is None:
            updater = resolved(self._updater, "updater", task)
            # An exact update drops nothing, whatever its text looks like.
            learning = replace(self._learning, guard=None) if isinstance(updater, ExactUpdater) else self._learning
            self._learner = Learner(self.memory, updater, learning)
        with use_rng(rng):
            await self._learner.keep(self._progress, self._seen)
            self._progress, self._seen = EpisodeProgress(f"{task.id}#{uuid.uuid4().hex[:8]}"), ()
            self._world = self._given_world or task.instruction
            self._posterior = (await self._learner.catch_up(self._world)).text

    async def observe(self, trajectory: Trajectory) -> None:
        """Learn from the last step if updates happen after each step."""
        self._seen = trajectory.steps
        if self._learning.update == "step":
            await self._learn()

    async def end(self, trajectory: Trajectory) -> None:
        """Learn from the remaining steps."""
        self._seen = trajectory.steps
        await self._learn()

    async def _learn(self) -> None:
        assert self._learner is not None  # Set by `begin`.
        evidence = await self._learner.keep(self._progress, self._seen)
        if evidence is not None:
            with use_rng(self._rng):
                self._posterior = (await self._learner.learn(self._world, evidence)).text


class LlmPosteriorSampling(LearningAgent):
    """Draws a hypothesis per episode, acts optimally under it, and updates a textual posterior from the outcome.

    With a typed prior and the updater "exact", the posterior is the true one. With all three roles "exact", this is
    classic PSRL, which is Thompson sampling on a bandit.

    Args:
        memory: where the posterior is stored, with its prior.
        sampler: draws the hypothesis.
        policy: acts on the hypothesis.
        updater: writes the new posterior.
        learning: settings of the updates.
        cache_by: maps a trajectory to a state. The policy's action in each state is then reused for the rest of the
            episode (appendix A.2), so it cannot depend on the time that is left. None calls the policy at every step.
        world: the rules, for all roles; None for the instruction of the episode's task.
    """

    def __init__(
        self,
        memory: PosteriorMemory,
        sampler: Sampler | Exact,
        policy: SamplePolicy | Exact,
        updater: Updater | Exact,
        *,
        learning: Learning | None = None,
        cache_by: Callable[[Trajectory], Hashable] | None = None,
        world: str | None = None,
    ) -> None:
        super().__init__(memory, updater, learning or Learning(), world)
        self.hypothesis = ""
        """Hypothesis of the current episode."""
        self._sampler, self._given_policy, self._cache_by = sampler, policy, cache_by
        self._policy: SamplePolicy | None = None
        self._chosen: dict[Hashable, Step] = {}

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Apply pending evidence, then draw a hypothesis.

        Raises:
            RoleError: no hypothesis could be drawn. Nothing has changed, and the call can be repeated.
            UpdateError: earlier observations could not be applied. They remain stored.
        """
        await super().begin(task, rng)
        self._chosen = {}
        self._policy = self._policy or resolved(self._given_policy, "policy", task)
        sampler: Sampler = resolved(self._sampler, "sampler", task)
        self.hypothesis = await sampler.sample(self._world, self._posterior, rng)

    async def act(self, trajectory: Trajectory) -> Step:
        """Return the optimal action under the hypothesis.

        Raises:
            RoleError: the policy named no action. The steps so far are stored.
        """
        assert self._policy is not None
        if self._cache_by is None:
            return await self._policy_action(trajectory)
        state = self._cache_by(trajectory)
        if state not in self._chosen:
            self._chosen[state] = await self._policy_action(trajectory)
        return self._chosen[state]

    async def _policy_action(self, trajectory: Trajectory) -> Step:
        assert self._policy is not None
        with use_rng(self._rng):
            return await self._policy.act(self._world, self.hypothesis, trajectory)


class LlmInformationDirected(LearningAgent):
    """Draws each action by its regret and its information, and learns after every step.

    Args:
        memory: where the posterior is stored, with its prior.
        estimator: estimates regret and information.
        updater: writes the new posterior.
        actions: all actions, or a function of the trajectory. None for the actions that the task's world lists.
        learning: settings of the updates. Default: an update after each step, as in the paper.
        world: the rules, for all roles; None for the instruction of the episode's task.
    """

    def __init__(
        self,
        memory: PosteriorMemory,
        estimator: Estimator | Exact,
        updater: Updater | Exact,
        *,
        actions: Actions | None = None,
        learning: Learning | None = None,
        world: str | None = None,
    ) -> None:
        super().__init__(memory, updater, learning or Learning(update="step"), world)
        self.decision: IdsDecision | None = None
        """The last decision."""
        self._estimator, self._actions = estimator, actions
        self._choice: InformationDirectedChoice | None = None

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Apply pending evidence. Nothing is drawn before the first step."""
        await super().begin(task, rng)
        if self._choice is None:
            self._choice = InformationDirectedChoice(_estimator(self._estimator, task))

    async def act(self, trajectory: Trajectory) -> Step:
        """Draw an action.

        Raises:
            RoleError: an estimate failed. The steps so far are stored.
        """
        assert self._choice is not None
        with use_rng(self._rng):
            self.decision = await self._choice.choose(
                self._world, self._posterior, trajectory, possible_actions(self._actions, trajectory), self._rng
            )
        return Step(self.decision.action)


def possible_actions(given: Actions | None, trajectory: Trajectory) -> Sequence[str]:
    """Return the possible actions in a trajectory's last state.

    Args:
        given: the actions, or a function that lists them; None for the actions that the task's world lists.
        trajectory: the trajectory.

    Raises:
        ConfigurationError: `given` is None and the task's world lists no actions.
    """
    if given is not None:
        return given(trajectory) if callable(given) else given
    if isinstance(trajectory.task.payload, Instance):
        return trajectory.task.payload.actions
    raise ConfigurationError(
        f"this method chooses among actions, and the world of task {quoted(trajectory.task.id)} does not list them: "
        "give actions="
    )


def resolved(role: Any, name: Literal["sampler", "policy", "updater"], task: Task) -> Any:
    """Return the role, or the exact role for the task if it is "exact".

    Raises:
        ConfigurationError: the task's world has no exact model.
    """
    if role != "exact":
        return role
    if name == "sampler":
        return ExactSampler()
    return (ExactPolicy if name == "policy" else ExactUpdater)(exact_model(task))


def _estimator(given: Estimator | Exact, task: Task) -> Estimator:
    if given != "exact":
        return given
    model: Any = exact_model(task)
    if not hasattr(model, "stakes"):
        raise ConfigurationError(
            f"the world of task {quoted(task.id)} has no exact regret and information: give an estimator"
        )
    return ExactEstimator(model)
