"""In-context reinforcement learning: the policy is shown earlier episodes, each with probability p at every step."""

from __future__ import annotations

import numpy as np

from amc_agents.decisions.asking import Answers
from amc_agents.errors import ConfigurationError
from amc_agents.models.seeding import use_rng
from amc_agents.psrl.experience import experience
from amc_agents.psrl.roles import Role, read_step
from amc_agents.types import Step, Task, Trajectory


class InContextRl:
    """Explores, if at all, by what it happens to be shown of the past.

    Args:
        policy: asks the model that acts.
        keep: p, the probability that an earlier episode is shown, drawn anew for each episode and step. 1: all of
            them, always.
        prompt: uses {world}, {past} and {episode}.
        world: the rules; None: the instruction of the episode's task.
        timeout: see `amc_agents.psrl.roles.Role`.

    Raises:
        ConfigurationError: `keep` is no probability.
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
            raise ConfigurationError(f"keep is the probability that an episode is shown, 0 to 1, got {keep}")
        self.past: list[str] = []
        """The episodes until now, as text."""
        self._policy = Role("policy", policy, prompt or ACT, ("world", "past", "episode"), timeout)
        self._keep, self._told_world = keep, world
        self._rng = np.random.default_rng(0)

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Nothing is decided before a step."""
        self._rng = rng

    async def act(self, trajectory: Trajectory) -> Step:
        """Ask for an action, in view of the episodes that were drawn. Raises `RoleError` where it names none."""
        shown = self._rng.random(len(self.past)) < self._keep
        past = "\n\n".join(one for one, kept in zip(self.past, shown, strict=True) if kept)
        world = self._told_world or trajectory.task.instruction
        with use_rng(self._rng):
            return await self._policy.ask(
                read_step, world=world, past=past or "None.", episode=experience(trajectory.steps)
            )

    async def observe(self, trajectory: Trajectory) -> None:
        """Within an episode nothing is learnt."""

    async def end(self, trajectory: Trajectory) -> None:
        """Keep the episode."""
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
