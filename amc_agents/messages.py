"""Build trajectories from an agent's messages: the same code for collecting data and for running.

A critic therefore reads exactly the text that it was trained on, whatever agent produced it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, convert_to_messages

from amc_agents.errors import AgentContractError
from amc_agents.types import Step, Task, Trajectory

_ACTION = re.compile(r"\bAction:")
_THOUGHTS = ("Thought:", "Reflection:")
"""Words that open a thought: of ReAct, and of ReflAct."""


def split_turn(text: str) -> tuple[str, str]:
    r"""Split an agent's text into (thought, action); a text without `Action:` is all action.

    >>> split_turn("Thought: look first\nAction: open the door")
    ('look first', 'open the door')
    >>> split_turn("Reflection: I am at the door.\nAction: open it")
    ('I am at the door.', 'open it')
    >>> split_turn("finish")
    ('', 'finish')
    """
    # A single regular expression for both parts backtracks: cubic in a run of spaces.
    turn = text.strip()
    opening = next((word for word in _THOUGHTS if turn.startswith(word)), "")
    action = _ACTION.search(turn, len(opening)) if opening else _ACTION.match(turn)
    if action is None:
        return "", turn
    thought = turn[len(opening) : action.start()] if opening else ""
    return thought.strip(), turn[action.end() :].strip()


def turn_of(message: AIMessage) -> tuple[str, str]:
    """Split a message into (thought, action).

    Tool calls become canonical JSON, and the text next to them is the thought. If a reasoning model wrote no thought
    into its text, its reasoning is the thought.
    """
    if not message.tool_calls:
        thought, action = split_turn(message.text)
        return thought or reasoning_of(message), action
    calls = [{"name": call["name"], "args": call["args"]} for call in message.tool_calls]
    action = json.dumps(calls[0] if len(calls) == 1 else calls, sort_keys=True, ensure_ascii=False, default=str)
    return message.text.strip() or reasoning_of(message), action


def reasoning_of(message: AIMessage) -> str:
    """Return the visible reasoning of a reasoning model; empty if the message has none."""
    if isinstance(message.content, str) and "reasoning_content" not in message.additional_kwargs:
        return ""
    try:
        blocks = message.content_blocks
    except (TypeError, ValueError, AttributeError, KeyError):  # a server's blocks have a form unknown to LangChain
        return ""
    texts = (block.get("reasoning") for block in blocks if block["type"] == "reasoning")
    return "\n".join(text for text in texts if isinstance(text, str)).strip()


def instruction_of(messages: Sequence[BaseMessage]) -> str:
    """Return the text of the messages before the agent's first turn, with roles if there are several."""
    if len(messages) == 1:
        return messages[0].text
    return "\n".join(lines_of(messages))


def lines_of(messages: Iterable[BaseMessage]) -> list[str]:
    """Return the text of each message with its role."""
    return [f"{message.type}: {message.text}" for message in messages]


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads an agent's growing list of messages into a trajectory, incrementally.

    Immutable, so that a forked particle shares what its parent has read. The agent may shorten or reorder its list:
    steps that were read are kept. A message is known by its id, or by its object if it has none, or else by its content
    and its place. The text of a message that was replaced under its own id is the current one.
    """

    trajectory: Trajectory
    seen: Mapping[str | int, Any]
    """Key -> the message read last under it. Holding it keeps the number of a freed object from being used again. None:
    the message left the list before a restart."""
    listed: tuple[Any, ...] = ()
    """The agent's list at the last read. If the next list starts with the same objects, only the rest is examined."""
    given: tuple[BaseMessage, ...] = ()
    """The messages of which the instruction consists; empty if the task came from elsewhere."""

    @classmethod
    def start(cls, messages: Sequence[Any], task: Task | None = None) -> MessageReader:
        """Start from the agent's input messages; they are the instruction if `task` is None."""
        given = tuple(map(as_message, messages)) if task is None else ()
        task = task or Task(id="", instruction=instruction_of(given))
        return cls(Trajectory(task), _keyed(messages), tuple(messages), given)

    def read(
        self,
        messages: Iterable[Any],
        *,
        reward: float = 0.0,
        done: bool = False,
        truncated: bool = False,
        stepped: bool = False,
    ) -> MessageReader:
        """Read the new messages. Each AI message opens a step; the messages after it are its observation.

        Args:
            messages: the agent's current list.
            reward: earned since the last read, in the world's units; added to the last step.
            done: the trajectory ends here.
            truncated: a step limit ended it.
            stepped: the agent has written messages since the last read, even if the list is equal.

        Raises:
            AgentContractError: an item of the list is not a message.
            ValueError: a reward came before the agent's first message.
        """
        listed = tuple(messages)
        known = len(self.listed)
        same = known <= len(listed) and all(map(is_, self.listed, listed))
        copied = {} if same else self._copied(listed, stepped=stepped)
        reader, seen, new = self, {**self.seen}, []
        for item in listed[known:] if same else listed:
            key = message_key(item)
            if id(item) in copied:
                seen.pop(message_key(copied[id(item)]), None)
            elif key in seen:
                reader = reader if seen[key] is item else reader._edited(key, item, seen)
            elif seen.get(id(item)) is not item:  # a stream gives ids to messages that were read without
                new.append(item)
            seen[key] = item
        steps = list(reader.trajectory.steps)
        for message in map(as_message, new):
            if isinstance(message, AIMessage):
                thought, action = turn_of(message)
                steps.append(Step(action, thought=thought, message_ids=_ids(message)))
            elif steps:
                steps[-1] = _answered(steps[-1], message)
        if reward and not steps:
            raise ValueError(f"a reward of {reward} came before the agent's first message: no step can carry it")
        if reward:
            steps[-1] = _rewarded(steps[-1], reward)
        trajectory = Trajectory(reader.trajectory.task, tuple(steps), done, truncated)
        return MessageReader(trajectory, seen, listed, reader.given)

    def _copied(self, listed: Sequence[Any], *, stepped: bool) -> dict[int, Any]:
        """Find copies of the last list's messages without ids: number of the object -> the original.

        A list that begins with copies of the whole last list has grown. Otherwise, an agent that keeps some objects and
        creates equal others has made the others anew; if it keeps none, the order of time decides.
        """
        old, now = ([item for item in items if isinstance(message_key(item), int)] for items in (self.listed, listed))
        grown = len(now) >= len(old) and now[: len(old)] == old and (len(now) > len(old) or not stepped)
        if not (grown and len(now) > len(old)) and any(self.seen.get(id(item)) is item for item in now):
            return {}
        turns = [at for at, item in enumerate(now) if stepped and not grown and isinstance(as_message(item), AIMessage)]
        copied: dict[int, Any] = {}
        at = 0
        for item in now[: turns[-1]] if turns else now:
            try:
                at = old.index(item, at) + 1
            except ValueError:
                if isinstance(as_message(item), AIMessage):  # what comes after a new message is new
                    break
            else:
                copied[id(item)] = old[at - 1]
        return copied

    def _edited(self, key: str | int, item: Any, seen: Mapping[str | int, Any]) -> MessageReader:
        """Return the reader with the current text of a message that was read before.

        Args:
            key: of the message.
            item: the message as it is now.
            seen: the messages as they were read last.
        """
        if seen[key] is None or seen[key] == item:
            return self
        message, before = as_message(item), as_message(seen[key])
        if any(each.id == key for each in self.given):
            given = tuple(message if each.id == key else each for each in self.given)
            task = replace(self.trajectory.task, instruction=instruction_of(given))
            return replace(self, given=given, trajectory=replace(self.trajectory, task=task))
        steps = list(self.trajectory.steps)
        for at, step in enumerate(steps):
            if key in step.message_ids:
                answers = [as_message(seen[name]) for name in step.message_ids[1:] if seen.get(name) is not None]
                steps[at] = _with_edit(step, before, message, answers)
        return replace(self, trajectory=replace(self.trajectory, steps=tuple(steps)))


def step_of(messages: Sequence[BaseMessage], reward: float = 0.0) -> Step:
    """Build a step from the messages that it consists of, as `MessageReader` does.

    Args:
        messages: an AI message, and those that answer it.
        reward: of the step.
    """
    opening, *answers = messages
    assert isinstance(opening, AIMessage)
    thought, action = turn_of(opening)
    step = Step(action, thought=thought, message_ids=_ids(opening))
    for answer in answers:
        step = _answered(step, answer)
    return _rewarded(step, reward)


def trajectory_from_messages(
    messages: Sequence[BaseMessage], *, task: Task | None = None, done: bool = True
) -> Trajectory:
    """Convert a whole conversation to a trajectory; the messages before the first AI message are the instruction."""
    first = next((i for i, message in enumerate(messages) if isinstance(message, AIMessage)), len(messages))
    return MessageReader.start(messages[:first], task).read(messages, done=done).trajectory


def trajectory_of(messages: Sequence[BaseMessage], *, system_is_task: bool) -> Trajectory:
    """Convert the conversation of a chat model to the unfinished trajectory that a critic reads.

    Args:
        messages: the conversation as sent to the policy.
        system_is_task: a leading system message belongs to the task. An agent's system prompt does not: it is not in
            the agent's state, so a critic trained on what agents did has never read it.
    """
    has_prompt = len(messages) > 1 and isinstance(messages[0], SystemMessage) and not system_is_task
    return trajectory_from_messages(messages[1:] if has_prompt else messages, done=False)


def pending_states(trajectory: Trajectory, commit_tools: Collection[str]) -> Iterator[Trajectory]:
    """Yield the states in which a commit call was pending, as a critic reads them while the particle waits.

    The last step of such a state is the agent's message with the call, which nothing has answered yet.

    Args:
        trajectory: read from messages.
        commit_tools: names of the commit tools.
    """
    for number, step in enumerate(trajectory.steps):
        if any(name in commit_tools for name in called_tools(step.action)):
            call = Step(step.action, thought=step.thought, message_ids=step.message_ids[:1])
            yield trajectory.prefix(number).extended(call)


def called_tools(action: str) -> list[str]:
    """Return the names of the tools that an action calls, in order; empty if it is not made of tool calls.

    >>> called_tools('{"args": {"order": 7}, "name": "refund"}')
    ['refund']
    >>> called_tools("open the door")
    []
    """
    try:
        calls = json.loads(action) if action.startswith(("{", "[")) else []
    except (ValueError, RecursionError):
        return []
    listed = calls if isinstance(calls, list) else [calls]
    return [str(call["name"]) for call in listed if isinstance(call, dict) and "name" in call]


# Every step of every particle passes here: `dataclasses.replace` would take three times as long.
def _answered(step: Step, message: BaseMessage) -> Step:
    observation = f"{step.observation}\n{message.text}" if step.observation else message.text
    return Step(step.action, observation, step.thought, step.reward, step.message_ids + _ids(message))


def _rewarded(step: Step, reward: float) -> Step:
    return Step(step.action, step.observation, step.thought, step.reward + reward, step.message_ids)


def _with_edit(step: Step, before: BaseMessage, message: BaseMessage, answers: Sequence[BaseMessage]) -> Step:
    """Return a step one of whose messages was replaced.

    Args:
        step: read before.
        before: the message as it was read.
        message: the message as it is now.
        answers: the step's messages with ids after the first, as they were read; some may be missing.
    """
    if isinstance(message, AIMessage):
        thought, action = turn_of(message)
        return Step(action, step.observation, thought, step.reward, step.message_ids)
    if step_of([AIMessage(""), *answers]).observation == step.observation:
        now = [message if each.id == message.id else each for each in answers]
        observation = step_of([AIMessage(""), *now]).observation
    else:
        observation = step.observation.replace(before.text, message.text, 1) if before.text else step.observation
    return Step(step.action, observation, step.thought, step.reward, step.message_ids)


def _ids(message: BaseMessage) -> tuple[str, ...]:
    return (message.id,) if message.id else ()


def as_message(item: Any) -> BaseMessage:
    """Return an item of a state's `messages`, which may be a dict or a pair, as LangChain converts it.

    Raises:
        AgentContractError: it is not a message.
    """
    if isinstance(item, BaseMessage):
        return item
    try:
        return convert_to_messages([item])[0]
    except (KeyError, TypeError, ValueError, NotImplementedError) as error:
        raise AgentContractError(
            f"the agent's `messages` hold a {type(item).__name__} that is not a message ({type(error).__name__}): "
            'expected LangChain messages, {"role": ..., "content": ...}, or (role, text); or give trajectory='
        ) from error


def message_key(item: Any) -> str | int:
    """Return a message's id, or its object's if it has none: particles share messages by reference."""
    name = item.get("id") if isinstance(item, Mapping) else getattr(item, "id", None)
    return name if name and isinstance(name, str) else id(item)


def _keyed(items: Iterable[Any]) -> dict[str | int, Any]:
    return {message_key(item): item for item in items}
