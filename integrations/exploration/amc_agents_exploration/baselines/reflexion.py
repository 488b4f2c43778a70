"""Reflexion: a model writes advice after each episode, and the policy sees all advice."""

from __future__ import annotations

import numpy as np

from amc_agents.decisions import Answers
from amc_agents.models.seeding import use_rng
from amc_agents.psrl.roles import Role, after, experience, read_step
from amc_agents.types import Step, Task, Trajectory


class Reflexion:
    """Learns through written advice to itself.

    Args:
        policy: sends prompts to the model that acts.
        reflector: sends prompts to the model that writes the advice.
        policy_prompt: a template with {world}, {advice} and {episode}.
        reflector_prompt: a template with {world} and {episode}.
        world: the rules; None for the instruction of the episode's task.
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
        """Advice from each episode, oldest first."""
        self._policy = Role("policy", policy, policy_prompt or ACT, ("world", "advice", "episode"), timeout)
        self._reflector = Role("reflection", reflector, reflector_prompt or REFLECT, ("world", "episode"), timeout)
        self._world = world
        self._rng = np.random.default_rng(0)

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Set the generator of the episode."""
        self._rng = rng

    async def act(self, trajectory: Trajectory) -> Step:
        """Return the model's action given all advice. Raises `RoleError` if it names no action."""
        world = self._world or trajectory.task.instruction
        advice = "\n".join(f"- {piece}" for piece in self.advice) or "None."
        with use_rng(self._rng):
            return await self._policy.ask(read_step, world=world, advice=advice, episode=experience(trajectory.steps))

    async def observe(self, trajectory: Trajectory) -> None:
        """Do nothing: the agent learns at the end of an episode."""

    async def end(self, trajectory: Trajectory) -> None:
        """Write advice on the episode. Raises `RoleError` if the model gives none; earlier advice is kept."""
        world = self._world or trajectory.task.instruction
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
