"""Render a trajectory as a conversation for a model that reads chats."""

from __future__ import annotations

import json
from collections.abc import Iterable

from amc_agents.critics.judge.style import without_role_tokens
from amc_agents.critics.render import turn
from amc_agents.types import Trajectory

Message = dict[str, str]
"""`role` and `content`."""


def chat(trajectory: Trajectory) -> list[Message]:
    """Render the task and the observations as the user's messages, and the agent's turns as the assistant's.

    Most chat templates want the two to alternate, so neighbours with the same role are joined. Role tokens in a text
    are broken by a zero-width space.
    """
    messages = [_message("user", trajectory.task.instruction)]
    for step in trajectory.steps:
        messages += [_message("assistant", turn(step)), _message("user", step.observation)]
    return _alternating(message for message in messages if message["content"])


def openhands_chat(trajectory: Trajectory, system: str) -> list[Message]:
    """Render a trajectory as OpenHands' own client renders a conversation for its critic.

    That client keeps the role and the text of every message. Of a tool call, it keeps the text beside it; its result is
    a message of the role "tool"; and reasoning is left out.

    Args:
        trajectory: as amc reads it from an agent's messages; results of parallel tool calls are one message.
        system: the agent's system prompt; "": none.
    """
    messages = [_message("system", system)] if system else []
    messages.append(_message("user", trajectory.task.instruction))
    for step in trajectory.steps:
        called = is_tool_call(step.action)
        messages.append(_message("assistant", step.thought if called else turn(step)))
        if step.observation:
            messages.append(_message("tool" if called else "user", step.observation))
    return messages


def is_tool_call(action: str) -> bool:
    """Return whether an action is tool calls, as `amc_agents.messages` writes them: `{"args": ..., "name": ...}`."""
    if not action.startswith(("{", "[")):
        return False
    try:
        calls = json.loads(action)
    except (ValueError, RecursionError):
        return False
    every = calls if isinstance(calls, list) else [calls]
    return bool(every) and all(isinstance(call, dict) and call.keys() == {"name", "args"} for call in every)


def _message(role: str, text: str) -> Message:
    return {"role": role, "content": without_role_tokens(text)}


def _alternating(messages: Iterable[Message]) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"]:
            joined[-1] = {**message, "content": f"{joined[-1]['content']}\n{message['content']}"}
        else:
            joined.append(message)
    return joined
