"""The one builder of a trajectory from an agent's messages, for collecting and for running alike.

A critic is then scored on exactly the text that it was trained on, whatever agent produced it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import is_

from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.types import Step, Task, Trajectory

_ACTION = re.compile(r"\bAction:")
_THOUGHT = "Thought:"


def split_turn(text: str) -> tuple[str, str]:
    r"""(thought, action) of an agent's text; a text without `Action:` is an action as a whole.

    >>> split_turn("Thought: look first\nAction: open the door")
    ('look first', 'open the door')
    >>> split_turn("finish")
    ('', 'finish')
    """
    # One regular expression over both parts backtracks: cubic in a run of spaces.
    turn = text.strip()
    thinks = turn.startswith(_THOUGHT)
    action = _ACTION.search(turn, len(_THOUGHT)) if thinks else _ACTION.match(turn)
    if action is None:
        return "", turn
    thought = turn[len(_THOUGHT) : action.start()] if thinks else ""
    return thought.strip(), turn[action.end() :].strip()


def turn_of(message: AIMessage) -> tuple[str, str]:
    """(thought, action) of one message: tool calls become canonical JSON, their text the thought.

    Where a reasoning model wrote no thought into its text, its reasoning is the thought.
    """
    if not message.tool_calls:
        thought, action = split_turn(message.text)
        return thought or reasoning_of(message), action
    calls = [{"name": call["name"], "args": call["args"]} for call in message.tool_calls]
    action = json.dumps(calls[0] if len(calls) == 1 else calls, sort_keys=True, ensure_ascii=False, default=str)
    return message.text.strip() or reasoning_of(message), action


def reasoning_of(message: AIMessage) -> str:
    """What a reasoning model shows of its reasoning, apart from its text; empty where it shows none."""
    if isinstance(message.content, str) and "reasoning_content" not in message.additional_kwargs:
        return ""
    return "\n".join(
        block.get("reasoning", "") for block in message.content_blocks if block["type"] == "reasoning"
    ).strip()


def instruction_of(messages: Sequence[BaseMessage]) -> str:
    """What the agent was told before it first spoke: one message's text, or all with their roles."""
    if len(messages) == 1:
        return messages[0].text
    return "\n".join(f"{message.type}: {message.text}" for message in messages)


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads an agent's growing list of messages into a trajectory, a piece at a time.

    Immutable, so that a forked particle shares what its parent has read. Messages are recognised by id, so
    an agent may shorten or reorder its list; what was once read stays read.
    """

    trajectory: Trajectory
    seen: frozenset[str | int]
    """What has been read, by id."""
    listed: tuple[BaseMessage, ...] = ()
    """The agent's list at the last read: of one that begins with the same objects, only the rest is looked at."""

    @classmethod
    def start(cls, messages: Sequence[BaseMessage], task: Task | None = None) -> MessageReader:
        """Begin at the messages that the agent is given; they are the instruction where `task` is None."""
        task = task or Task(id="", instruction=instruction_of(messages))
        return cls(Trajectory(task), frozenset(map(_key, messages)), tuple(messages))

    def read(
        self, messages: Iterable[BaseMessage], *, reward: float = 0.0, done: bool = False, truncated: bool = False
    ) -> MessageReader:
        """Take in what is new. Each AI message opens a step; what follows it is its observation.

        Args:
            messages: the agent's list as it stands now.
            reward: earned since the last read, in the world's units; it goes to the last step.
            done: the trajectory ends here.
            truncated: a limit of steps ends it.
        """
        listed = tuple(messages)
        known = len(self.listed)
        grown = known <= len(listed) and all(map(is_, self.listed, listed))
        new = [message for message in (listed[known:] if grown else listed) if _key(message) not in self.seen]
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
            steps[-1] = replace(steps[-1], reward=steps[-1].reward + reward)
        trajectory = Trajectory(self.trajectory.task, tuple(steps), done, truncated)
        return MessageReader(trajectory, self.seen.union(map(_key, new)), listed)


def trajectory_from_messages(
    messages: Sequence[BaseMessage], *, task: Task | None = None, done: bool = True
) -> Trajectory:
    """A whole conversation as a trajectory: what precedes the first AI message is the instruction."""
    first = next((i for i, message in enumerate(messages) if isinstance(message, AIMessage)), len(messages))
    return MessageReader.start(messages[:first], task).read(messages[first:], done=done).trajectory


def _answered(step: Step, message: BaseMessage) -> Step:
    observation = f"{step.observation}\n{message.text}" if step.observation else message.text
    return Step(step.action, observation, step.thought, step.reward, step.message_ids + _ids(message))


def _ids(message: BaseMessage) -> tuple[str, ...]:
    return (message.id,) if message.id else ()


def _key(message: BaseMessage) -> str | int:
    # A message without an id is known by its object: particles share messages by reference.
    return message.id or id(message)
