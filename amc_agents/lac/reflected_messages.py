"""A conversation as LAC reads it: its trajectory, and the reflections on past steps.

A reflection is written before the decision that follows the step. It stays with the message that was chosen then, in
its `response_metadata`, and is shown to actor and critic as the last line of what the world had answered.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from amc_agents.decisions.reflection import ChatReflector, with_reflection
from amc_agents.messages import trajectory_from_messages
from amc_agents.types import Trajectory

KEY = "lac"
"""Key of `response_metadata` under which a chosen message says how it was chosen."""


def trajectory_of(messages: Sequence[BaseMessage], *, system_is_task: bool) -> Trajectory:
    """What the critic reads of a conversation.

    Args:
        messages: the conversation as the policy is asked.
        system_is_task: a leading system message belongs to the task. An agent's system prompt does not: it is not in
            the agent's state, so a critic trained on what agents did has never read it.
    """
    has_prompt = len(messages) > 1 and isinstance(messages[0], SystemMessage) and not system_is_task
    return trajectory_from_messages(messages[1:] if has_prompt else messages, done=False)


def with_past_reflections(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The conversation with each kept reflection where it belongs."""
    shown = list(messages)
    for i, message in enumerate(messages[1:], start=1):
        reflection = message.response_metadata.get(KEY, {}).get("reflection")
        if reflection and not isinstance(shown[i - 1], AIMessage):
            shown[i - 1] = _reflected(shown[i - 1], reflection)
    return shown


async def reflect(
    messages: Sequence[BaseMessage], reflector: ChatReflector, *, system_is_task: bool
) -> tuple[list[BaseMessage], str]:
    """The conversation with a reflection on its newest step, and that reflection; empty where nothing is new.

    Raises:
        CriticError: the model failed.
    """
    shown = with_past_reflections(messages)
    if isinstance(shown[-1], AIMessage):
        return shown, ""
    (reflection,) = await reflector.reflections([trajectory_of(shown, system_is_task=system_is_task)])
    return ([*shown[:-1], _reflected(shown[-1], reflection)] if reflection else shown), reflection


def _reflected(message: BaseMessage, reflection: str) -> BaseMessage:
    content = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": with_reflection(content, reflection)})
    block = {"type": "text", "text": with_reflection("\n", reflection)}
    return message.model_copy(update={"content": [*content, block]})
