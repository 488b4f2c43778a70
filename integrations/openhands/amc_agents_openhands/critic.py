"""The critic of OpenHands on vLLM: `openhands:http://host:8000?tools=tools.json`.

The rendering follows OpenHands' own client (openhands-sdk, `critic/impl/api`): the conversation goes through the chat
template of Qwen3 together with the definitions of the agent's tools, and label 0 of the answer is the success. The
served model's tokenizer must have that template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from amc_agents.critics.classifier import (
    SHARED_OPTIONS,
    ClassifierCritic,
    Message,
    Render,
    label_of,
    message_of,
    shared_options,
)
from amc_agents.critics.render import turn
from amc_agents.critics.spec import allow, needed, understood
from amc_agents.errors import ConfigurationError
from amc_agents.files import cause_and_remedy
from amc_agents.types import Trajectory


def openhands_render(tools: Sequence[Mapping[str, Any]], system: str = "") -> Render:
    """Return the rendering of trajectories for OpenHands' critic: `ClassifierCritic(url, render=...)`.

    Args:
        tools: definitions of the agent's tools in OpenAI's form; the critic was trained with them, so there must be
            one. `langchain_core.utils.function_calling.convert_to_openai_tool` makes them.
        system: the agent's system prompt, which a trajectory does not contain.

    Raises:
        ConfigurationError: there is no tool, or a definition has another form.
    """
    if not tools or not all(_is_tool(tool) for tool in tools):
        raise ConfigurationError(
            "OpenHands' critic needs the definitions of the agent's tools, at least one, in OpenAI's form: "
            '[{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}]'
        )
    return partial(_rendered, tools=list(tools), system=system)


def from_spec(target: str, options: Mapping[str, str], *, trusted: bool = True) -> ClassifierCritic:
    """The critic of `openhands:target?tools=FILE&system=FILE&model=&label=0&range=0,1`."""
    allow("openhands", options, *SHARED_OPTIONS, "label", "tools", "system")
    with understood("openhands"):
        if "tools" not in options:
            raise ConfigurationError("tools=FILE is missing: a JSON file with the definitions of the agent's tools")
        tools = _read("tools", options["tools"])
        system = _read("system", options["system"]) if "system" in options else ""
        try:
            definitions = json.loads(tools)
        except ValueError as error:
            raise ConfigurationError(f"tools={options['tools']} is not JSON: {error}") from error
        if not isinstance(definitions, list):
            raise ConfigurationError(f"tools={options['tools']}: expected a JSON list of tool definitions")
        render = openhands_render(definitions, system)
    return ClassifierCritic(
        needed("openhands", target, "http://host:8000"),
        label=label_of("openhands", options),
        render=render,
        **shared_options("openhands", options),
        trusted=trusted,
        kind="openhands",
    )


def openhands_chat(trajectory: Trajectory, system: str) -> list[Message]:
    """Render a trajectory as OpenHands' own client renders a conversation for its critic.

    That client keeps the role and the text of every message. Of a tool call, it keeps the text beside it; its result is
    a message of the role "tool"; and reasoning is left out.

    Args:
        trajectory: as amc reads it from an agent's messages; results of parallel tool calls are one message.
        system: the agent's system prompt; "": none.
    """
    messages = [message_of("system", system)] if system else []
    messages.append(message_of("user", trajectory.task.instruction))
    for step in trajectory.steps:
        called = is_tool_call(step.action)
        messages.append(message_of("assistant", step.thought if called else turn(step)))
        if step.observation:
            messages.append(message_of("tool" if called else "user", step.observation))
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


def _rendered(trajectory: Trajectory, *, tools: list[Mapping[str, Any]], system: str) -> dict[str, Any]:
    return {
        "messages": openhands_chat(trajectory, system),
        "add_generation_prompt": False,
        "chat_template_kwargs": {"tools": tools},
    }


def _is_tool(tool: Any) -> bool:
    match tool:
        case {"type": "function", "function": {"name": str()}}:
            return True
    return False


def _read(option: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{option}={path} is not UTF-8: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{option}={path}: {cause_and_remedy(error)}") from error
