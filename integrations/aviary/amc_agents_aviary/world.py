"""An environment of aviary as a text world: an action is one or several tool calls, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from aviary.core import Environment, Message, Messages, Tool, ToolCall, ToolRequestMessage
from aviary.tools import ToolCallFunction

from amc_agents.concurrency.background import run_in_background
from amc_agents.envs import CopyFork, ReplayFork
from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.types import Task, TimeStep

FORMAT = 'Act by calling a tool: {"name": "TOOL", "args": {"ARGUMENT": VALUE}}, or a list of such calls.'


@dataclass(frozen=True)
class AviaryTask:
    """Payload of a `Task` for an `AviaryWorld`."""

    make: Callable[[], Environment[Any]]
    """Creates the environment of this task."""


class AviaryWorld:
    """One episode of an aviary environment (a `World`).

    A text that holds no tool call is passed on as a message, which aviary answers. Errors that a tool raises are the
    environment's to handle; those it does not handle are raised.
    """

    def __init__(self) -> None:
        self._env: Environment[Any] | None = None
        self._steps = 0
        self._active = False

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with an `AviaryTask` payload."""
        if not isinstance(task.payload, AviaryTask):
            raise EnvironmentStateError(
                f"AviaryWorld.reset expected a Task with an AviaryTask payload, got {type(task.payload).__name__} "
                f"(task {task.id!r})"
            )
        await self.close()
        self._env = task.payload.make()
        messages, tools = await self._env.reset()
        self._steps, self._active = 0, True
        return TimeStep.restart(_instruction(messages, tools))

    async def step(self, action: str) -> TimeStep:
        """Execute the tool calls of an action."""
        if self._env is None or not self._active:
            raise EnvironmentStateError("AviaryWorld.step was called before reset or after the end: call reset")
        self._steps += 1
        messages, reward, done, truncated = await self._env.step(self._request(action))
        self._active = not (done or truncated)
        return TimeStep(_text(messages), float(reward), bool(done), bool(truncated and not done))

    async def close(self) -> None:
        """Close the environment; safe to call twice."""
        env, self._env, self._active = self._env, None, False
        if env is not None:
            await env.close()

    def _request(self, action: str) -> Message:
        calls = _calls(action)
        if not calls:
            return Message(content=action.encode("utf-8", "replace").decode())
        functions = [ToolCallFunction(name=call["name"], arguments=dict(call["args"])) for call in calls]
        # Ids by position, so that a replay sends the same requests.
        numbered = [ToolCall(id=f"{self._steps}-{n}", function=function) for n, function in enumerate(functions)]
        return ToolRequestMessage(tool_calls=numbered)


def aviary_world(
    name: str,
    environment: Callable[[int], Environment[Any]],
    *,
    horizon: int,
    splits: Mapping[str, Sequence[int]],
    fork: Literal["replay", "copy"] = "replay",
    success: float = 1.0,
) -> WorldSpec:
    """Describe aviary environments as a world, ready for `amc()`, `amc bench` and an entry point.

    Args:
        name: prefix of the task ids.
        environment: number of a task -> its environment, such as a dataset's `get_new_env_by_idx`.
        horizon: maximum number of steps of an episode.
        splits: the task numbers of each split.
        fork: "replay" repeats the tool calls in a new environment and checks each answer. "copy" copies the environment
            by `copy.deepcopy`: not for environments whose tools are closures, which the copy would share.
        success: smallest return that counts as a success.

    Raises:
        ConfigurationError: `fork` is unknown.
    """
    if fork not in ("replay", "copy"):
        raise ConfigurationError(f"fork must be replay or copy, got {fork!r}")

    def make() -> ReplayFork | CopyFork:
        return ReplayFork(lambda _: AviaryWorld()) if fork == "replay" else CopyFork(AviaryWorld())

    return WorldSpec(make, partial(_tasks, name, environment, splits), horizon, success=success)


def _tasks(
    name: str,
    environment: Callable[[int], Environment[Any]],
    splits: Mapping[str, Sequence[int]],
    n_tasks: int,
    split: str,
    first: int,
) -> Iterator[Task]:
    if split not in splits or not 0 <= first <= len(splits[split]) - n_tasks:
        sizes = ", ".join(f"{known} ({len(numbers)} tasks)" for known, numbers in splits.items())
        raise ConfigurationError(f"expected tasks of {sizes}, got {split!r} {first} to {first + n_tasks - 1}")
    for number in splits[split][first : first + n_tasks]:
        payload = AviaryTask(partial(environment, number))
        yield run_in_background(_task(f"{name}/{number}", payload), n_workers=1)


async def _task(name: str, payload: AviaryTask) -> Task:
    world = AviaryWorld()
    try:
        first = await world.reset(Task(name, "", payload))
    finally:
        await world.close()
    return Task(name, first.observation, payload)


def _instruction(messages: Messages, tools: Sequence[Tool]) -> str:
    return "\n\n".join([_text(messages), "Tools:", *(tool.info.describe_str() for tool in tools), FORMAT])


def _text(messages: Messages) -> str:
    return "\n".join(message.content or "" for message in messages)


def _calls(action: str) -> list[dict[str, Any]]:
    """Parse tool calls from JSON; empty if the text holds anything else."""
    try:
        read = json.loads(action)
    except (ValueError, RecursionError):
        return []
    calls = read if isinstance(read, list) else [read]
    good = all(
        isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("args"), dict)
        for call in calls
    )
    return calls if good else []
