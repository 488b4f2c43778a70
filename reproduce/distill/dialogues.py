"""Token ids of the dialogues that a policy imitates, and the loss weight of each token."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from amc_agents.critics.render import turn
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import Trajectory
from reproduce.distill.imitated import Imitated

Message = tuple[str, str]
"""Role and content."""
EncodeChat = Callable[[Sequence[Message]], list[int]]
"""A dialogue -> the token ids of the prompt of its next turn."""


class PolicyRow(NamedTuple):
    """A dialogue of `S` tokens."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]
    """`[S]`: the share of the trajectory for the tokens of the agent's turns, their ends included; otherwise 0."""


class PolicyRows(NamedTuple):
    """The rows of several tasks."""

    rows: list[PolicyRow]
    too_long: int
    """Number of trajectories that were left out."""


def rows_of(
    tasks: Iterable[Sequence[Imitated]],
    encode: EncodeChat,
    ends: Collection[int],
    *,
    system: str | None,
    limit: int | None,
) -> PolicyRows:
    """Tokenize what is imitated, as the policy reads and writes it.

    Args:
        tasks: the weighted trajectories of each task.
        encode: renders a dialogue by the policy's chat template.
        ends: tokens that end a turn.
        system: the message before the instruction; None: none.
        limit: maximum number of tokens; None: no limit.

    Raises:
        ConfigurationError: a trajectory has tool calls, or the chat template rewrites earlier turns.
    """
    rows, too_long = [], 0
    for task in tasks:
        for trajectory, share in task:
            row = _row(trajectory, share, encode, ends, system)
            if limit is None or len(row.ids) <= limit:
                rows.append(row)
            else:
                too_long += 1
    return PolicyRows(rows, too_long)


def _row(
    trajectory: Trajectory, share: float, encode: EncodeChat, ends: Collection[int], system: str | None
) -> PolicyRow:
    dialogue: list[Message] = [*([("system", system)] if system else []), ("user", trajectory.task.instruction)]
    ids = encode(dialogue)
    weights = [0.0] * len(ids)
    for step in trajectory.steps:
        _refuse_tool_calls(step.action)
        dialogue += [("assistant", turn(step)), ("user", step.observation)]
        longer = encode(dialogue)
        if longer[: len(ids)] != ids:
            raise ConfigurationError(
                "the chat template rewrites earlier turns, so that a dialogue is not one row: use a base model whose "
                "template only appends"
            )
        new = longer[len(ids) :]
        said = 1 + next(index for index, token in enumerate(new) if token in ends)
        weights += [share] * said + [0.0] * (len(new) - said)
        ids = longer
    last = max((index for index, weight in enumerate(weights) if weight), default=0)
    return PolicyRow(tuple(ids[: last + 1]), tuple(weights[: last + 1]))


def _refuse_tool_calls(action: str) -> None:
    try:
        call = json.loads(action)
    except ValueError:
        return
    first = call[0] if isinstance(call, list) and call else call
    if isinstance(first, dict) and first.keys() == {"name", "args"}:
        raise ConfigurationError(
            f"the dataset has tool calls, such as {quoted(excerpt(action, 60))}: expected a text agent's, because a "
            "dataset does not hold the messages around a call"
        )
