"""The messages of a conversation that belong to one episode, as steps for the posterior."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from amc_agents.messages import instruction_of, trajectory_from_messages
from amc_agents.types import Step, Trajectory


def newest_input(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages after the agent's last action: the input of the episode that begins now."""
    actions = [i for i, message in enumerate(messages) if isinstance(message, AIMessage | ToolMessage)]
    return list(messages[actions[-1] + 1 if actions else 0 :])


def request_text(messages: Sequence[BaseMessage]) -> str:
    """Return the user's request of the episode that begins now, for the updater; empty without any."""
    request = newest_input(messages)
    return f"Asked: {instruction_of(request)}" if request else ""


def message_ids(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the ids of the messages that have an id."""
    return [message.id for message in messages if message.id]


def episode_of(messages: Sequence[BaseMessage], before: Sequence[str]) -> Trajectory:
    """Return the current episode of a conversation.

    Args:
        messages: the conversation.
        before: ids of the messages that precede the episode.
    """
    earlier = set(before)
    return trajectory_from_messages([message for message in messages if message.id not in earlier], done=False)


def answered_steps(trajectory: Trajectory) -> tuple[Step, ...]:
    """Return the steps up to the last that has an observation. A final message without an answer is not evidence."""
    n_answered = max((i for i, step in enumerate(trajectory.steps, 1) if step.observation), default=0)
    return trajectory.steps[:n_answered]
