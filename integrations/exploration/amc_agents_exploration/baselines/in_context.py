"""In-context reinforcement learning: at every step the policy sees each earlier episode with probability p."""

from __future__ import annotations

import numpy as np

from amc_agents.decisions import Answers
from amc_agents.errors import ConfigurationError
from amc_agents.models.seeding import use_rng
from amc_agents.psrl.roles import Role, experience, read_step
from amc_agents.types import Step, Task, Trajectory


class InContextRl:
    """Explores only through the random choice of the episodes it is shown.

    Args:
        policy: sends prompts to the model that acts.
        keep: p, the probability that an earlier episode is shown, drawn for each episode and step. 1 always shows all
            episodes.
        prompt: a template with {world}, {past} and {episode}.
        world: the rules; None for the instruction of the episode's task.
        timeout: see `amc_agents.psrl.roles.Role`.

    Raises:
        ConfigurationError: `keep` is not a probability.
    """

    def __init__(
        self,
        policy: Answers,
        *,
        keep: float = 1.0,
        prompt: str | None = None,
        world: str | None = None,
        timeout: float | None = None,
    ) -> None:
        if not 0 <= keep <= 1:
            raise ConfigurationError(f"keep is the probability that an episode is shown: expected 0 to 1, got {keep}")
        self.past: list[str] = []
        """Earlier episodes as text, oldest first."""
        self._policy = Role("policy", policy, prompt or ACT, ("world", "past", "episode"), timeout)
        self._keep, self._world = keep, world
        self._rng = np.random.default_rng(0)

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Set the generator of the episode."""
        self._rng = rng

    async def act(self, trajectory: Trajectory) -> Step:
        """Return the model's action given the episodes drawn. Raises `RoleError` if it names no action."""
        shown = self._rng.random(len(self.past)) < self._keep
        past = "\n\n".join(episode for episode, kept in zip(self.past, shown, strict=True) if kept)
        world = self._world or trajectory.task.instruction
        with use_rng(self._rng):
            return await self._policy.ask(
                read_step, world=world, past=past or "None.", episode=experience(trajectory.steps)
            )

    async def observe(self, trajectory: Trajectory) -> None:
        """Do nothing: the agent learns at the end of an episode."""

    async def end(self, trajectory: Trajectory) -> None:
        """Store the episode."""
        self.past.append(f"Episode {len(self.past) + 1}\n{experience(trajectory.steps)}")


ACT = """\
You act in this world, over many episodes, and want to earn as much as you can:

<world>
{world}
</world>

Earlier episodes:

<past>
{past}
</past>

This is what happened in the present episode until now:

<episode>
{episode}
</episode>

Choose your next action in view of all that you have seen. Think first where that helps, then end with one line of \
this form:

Action: <one of the actions that the world allows>\
"""
