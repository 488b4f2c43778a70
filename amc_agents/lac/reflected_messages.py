"""Reflections in a conversation of LangChain messages.

A reflection is written before the decision that follows the step. It is stored in the `response_metadata` of the
message chosen then, and shown to actor and critic as the last line of the world's answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.lac.reflection import ChatReflector, with_reflection
from amc_agents.messages import trajectory_of

KEY = "lac"
"""Key of `response_metadata` for the summary of a decision."""


def with_past_reflections(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Append each stored reflection to the message that it is about."""
    shown = list(messages)
    for i, message in enumerate(messages[1:], start=1):
        reflection = message.response_metadata.get(KEY, {}).get("reflection")
        if reflection and not isinstance(shown[i - 1], AIMessage):
            shown[i - 1] = _reflected(shown[i - 1], reflection)
    return shown


async def reflect(
    messages: Sequence[BaseMessage], reflector: ChatReflector, *, system_is_task: bool
) -> tuple[list[BaseMessage], str]:
    """Return the conversation with all reflections, and the new one on its newest step.

    The new reflection is empty if the newest message is the model's own.

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
