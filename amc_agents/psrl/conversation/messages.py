"""The part of a conversation that is one episode, as steps that a posterior learns from."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from amc_agents.messages import instruction_of, trajectory_from_messages
from amc_agents.types import Step, Trajectory


def newest_input(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """What came since the agent last did anything: what the episode that now begins is asked for."""
    done = [i for i, message in enumerate(messages) if isinstance(message, AIMessage | ToolMessage)]
    return list(messages[done[-1] + 1 if done else 0 :])


def told_of(messages: Sequence[BaseMessage]) -> str:
    """What the updater is told of an episode besides its steps: what the agent was asked."""
    asked = newest_input(messages)
    return f"Asked: {instruction_of(asked)}" if asked else ""


def ids_of(messages: Sequence[BaseMessage]) -> list[str]:
    """The messages' ids."""
    return [message.id for message in messages if message.id]


def episode_of(messages: Sequence[BaseMessage], before: Sequence[str]) -> Trajectory:
    """The episode in a conversation.

    Args:
        messages: the conversation.
        before: ids of the messages that were there when the episode began.
    """
    known = set(before)
    return trajectory_from_messages([message for message in messages if message.id not in known], done=False)


def learnable(trajectory: Trajectory) -> tuple[Step, ...]:
    """The steps that the world has answered; what the agent said last, and nobody answered, teaches nothing."""
    n_answered = max((i for i, step in enumerate(trajectory.steps, 1) if step.observation), default=0)
    return trajectory.steps[:n_answered]
