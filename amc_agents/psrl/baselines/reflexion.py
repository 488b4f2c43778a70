"""Reflexion: after each episode a model writes advice, and the policy is shown all advice there is."""

from __future__ import annotations

import numpy as np

from amc_agents.decisions.asking import Answers
from amc_agents.models.seeding import use_rng
from amc_agents.psrl.experience import experience
from amc_agents.psrl.roles import Role, after, read_step
from amc_agents.types import Step, Task, Trajectory


class Reflexion:
    """Learns by advice to itself.

    Args:
        policy: asks the model that acts.
        reflector: asks the model that writes the advice.
        policy_prompt: uses {world}, {advice} and {episode}.
        reflector_prompt: uses {world} and {episode}.
        world: the rules; None: the instruction of the episode's task.
        timeout: see `amc_agents.psrl.roles.Role`.
    """

    def __init__(
        self,
        policy: Answers,
        reflector: Answers,
        *,
        policy_prompt: str | None = None,
        reflector_prompt: str | None = None,
        world: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self.advice: list[str] = []
        """One piece for each episode, the oldest first."""
        self._policy = Role("policy", policy, policy_prompt or ACT, ("world", "advice", "episode"), timeout)
        self._reflector = Role("reflection", reflector, reflector_prompt or REFLECT, ("world", "episode"), timeout)
        self._told_world = world
        self._rng = np.random.default_rng(0)

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Nothing is decided before a step."""
        self._rng = rng

    async def act(self, trajectory: Trajectory) -> Step:
        """Ask for an action, in view of all advice. Raises `RoleError` where it names none."""
        world = self._told_world or trajectory.task.instruction
        advice = "\n".join(f"- {one}" for one in self.advice) or "None."
        with use_rng(self._rng):
            return await self._policy.ask(read_step, world=world, advice=advice, episode=experience(trajectory.steps))

    async def observe(self, trajectory: Trajectory) -> None:
        """Within an episode nothing is learnt."""

    async def end(self, trajectory: Trajectory) -> None:
        """Write advice on the episode. Raises `RoleError` where there is none; earlier advice stays."""
        world = self._told_world or trajectory.task.instruction
        with use_rng(self._rng):
            self.advice.append(
                await self._reflector.ask(
                    lambda text: after(text, ADVICE), world=world, episode=experience(trajectory.steps)
                )
            )


ADVICE = "Advice:"

ACT = """\
You act in this world, over many episodes, and want to earn as much as you can:

<world>
{world}
</world>

This is the advice that earlier episodes have led to:

<advice>
{advice}
</advice>

This is what happened in the present episode until now:

<episode>
{episode}
</episode>

Choose your next action by the advice. Think first where that helps, then end with one line of this form:

Action: <one of the actions that the world allows>\
"""

REFLECT = """\
An agent acts in this world, over many episodes, and wants to earn as much as it can:

<world>
{world}
</world>

This is the episode that has just ended:

<episode>
{episode}
</episode>

What should it do in the next episodes, and what should it leave? Be short and exact. Answer in this form:

Advice: <one to three sentences, and nothing after them>\
"""
