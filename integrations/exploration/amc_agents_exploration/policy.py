"""The policy of LLM-PSRL as a role of its own; in the core, the agent itself acts on the hypothesis."""

from __future__ import annotations

from typing import Protocol

from amc_agents.decisions import Answers
from amc_agents.psrl.options import RoleModel
from amc_agents.psrl.roles import Role, experience, read_step
from amc_agents.types import Step, Trajectory


class SamplePolicy(Protocol):
    """Acts as if a hypothesis were the truth (lines 4 and 5)."""

    async def act(self, world: str, hypothesis: str, trajectory: Trajectory) -> Step:
        """Return the thought and the optimal action in the trajectory's last state, under the hypothesis."""
        ...


class ChatPolicy:
    """A language model that acts on a hypothesis. The text before the action is the thought.

    Args:
        answers: sends prompts to the model.
        prompt: a template with {world}, {hypothesis} and {episode}.
        timeout: see `Role`.
    """

    def __init__(self, answers: Answers, *, prompt: str | None = None, timeout: float | None = None) -> None:
        self._role = Role("policy", answers, prompt or ACT, ("world", "hypothesis", "episode"), timeout)

    async def act(self, world: str, hypothesis: str, trajectory: Trajectory) -> Step:
        """Return thought and action. An action unknown to the world is the agent's mistake, which the world answers.

        Raises:
            RoleError: the model named no action.
        """
        episode = experience(trajectory.steps)
        return await self._role.ask(read_step, world=world, hypothesis=hypothesis, episode=episode)


def as_policy(given: RoleModel | SamplePolicy) -> SamplePolicy:
    """Return the role that acts on hypotheses."""
    if not isinstance(given, RoleModel):
        return given
    return ChatPolicy(given.answers("policy"), prompt=given.prompt, timeout=given.timeout)


ACT = """\
You act in this world:

<world>
{world}
</world>

Take the following as the whole truth about it:

<hypothesis>
{hypothesis}
</hypothesis>

This is what happened in the episode until now:

<episode>
{episode}
</episode>

Choose the action that earns the most over the rest of the episode if the hypothesis is true: what it pays at once and \
what it makes possible afterwards. Think first where that helps, then end with one line of this form:

Action: <one of the actions that the world allows>\
"""
