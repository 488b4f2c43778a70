"""Build trajectories from an agent's messages: the same code for collecting data and for running.

A critic therefore reads exactly the text that it was trained on, whatever agent produced it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import is_

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

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
    return "\n".join(f"{message.type}: {message.text}" for message in messages)


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads an agent's growing list of messages into a trajectory, incrementally.

    Immutable, so that a forked particle shares what its parent has read. Messages are recognised by id, so the agent
    may shorten or reorder its list; steps that were read are kept.
    """

    trajectory: Trajectory
    seen: frozenset[str | int]
    """Ids of the messages read so far."""
    listed: tuple[BaseMessage, ...] = ()
    """The agent's list at the last read. If the next list starts with the same objects, only the rest is examined."""

    @classmethod
    def start(cls, messages: Sequence[BaseMessage], task: Task | None = None) -> MessageReader:
        """Start from the agent's input messages; they are the instruction if `task` is None."""
        task = task or Task(id="", instruction=instruction_of(messages))
        return cls(Trajectory(task), frozenset(map(message_key, messages)), tuple(messages))

    def read(
        self, messages: Iterable[BaseMessage], *, reward: float = 0.0, done: bool = False, truncated: bool = False
    ) -> MessageReader:
        """Read the new messages. Each AI message opens a step; the messages after it are its observation.

        Args:
            messages: the agent's current list.
            reward: earned since the last read, in the world's units; added to the last step.
            done: the trajectory ends here.
            truncated: a step limit ended it.

        Raises:
            ValueError: a reward came before the agent's first message.
        """
        listed = tuple(messages)
        known = len(self.listed)
        grown = known <= len(listed) and all(map(is_, self.listed, listed))
        new = [message for message in (listed[known:] if grown else listed) if message_key(message) not in self.seen]
        steps = list(self.trajectory.steps)
        for message in new:
            if isinstance(message, AIMessage):
                thought, action = turn_of(message)
                steps.append(Step(action, thought=thought, message_ids=_ids(message)))
            elif steps:
                steps[-1] = _answered(steps[-1], message)
        if reward and not steps:
            raise ValueError(f"a reward of {reward} came before the agent's first message: no step can carry it")
        if reward:
            steps[-1] = _rewarded(steps[-1], reward)
        trajectory = Trajectory(self.trajectory.task, tuple(steps), done, truncated)
        return MessageReader(trajectory, self.seen.union(map(message_key, new)), listed)


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
    return MessageReader.start(messages[:first], task).read(messages[first:], done=done).trajectory


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


def _ids(message: BaseMessage) -> tuple[str, ...]:
    return (message.id,) if message.id else ()


def message_key(message: BaseMessage) -> str | int:
    """Return the message's id, or its object's if it has none: particles share messages by reference."""
    return message.id or id(message)
