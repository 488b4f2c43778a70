"""Training data of a goal critic: transitions (state, thought, next state) and goals drawn for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from langchain_core.messages import convert_to_messages

from amc_agents.critics.goal.critic import Summary
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.messages import trajectory_from_messages
from amc_agents.quoting import quoted
from amc_agents.training.dataset import pyarrow_or_error, read_records, shards
from amc_agents.training.settings import GoalShares
from amc_agents.types import IntArray, Step, Task, Trajectory
from amc_agents.usage import Usage

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Episode:
    """A trajectory, and whether it was truncated."""

    trajectory: Trajectory
    truncated: bool = False
    """Whether the trajectory stopped before its episode ended, so that its future is unknown."""


def as_episodes(trajectories: Sequence[Trajectory | Episode]) -> list[Episode]:
    """Wrap plain trajectories in `Episode`."""
    return [each if isinstance(each, Episode) else Episode(each) for each in trajectories]


def read_episodes(path: str | Path, *, horizon_ends: bool = False) -> list[Episode]:
    """Read trajectories from a folder that `amc collect` wrote, or from JSONL or Parquet files with messages.

    Your own data is a file, or a folder of `*.jsonl` and `*.parquet`, with one conversation per row: `messages` (role
    and content in the format of chat APIs, including tool calls), and optionally `task` (an id that separates held-out
    tasks; default: the first request), `done` (default true) and `truncated` (default false).

    A collected trajectory as long as its horizon counts as truncated.

    Args:
        path: the file or folder.
        horizon_ends: count such a trajectory as ended, because the agent will also be stopped there in use.

    Raises:
        CheckpointError: nothing can be read, or a row is not a conversation.
        MissingExtra: a Parquet file needs pyarrow, which is not installed.
    """
    path = Path(path)
    if path.is_dir() and shards(path):
        return [_collected(record.trajectory, record.settings, horizon_ends) for record in read_records(path)]
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.parquet")]) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise CheckpointError(f"no trajectories in {path}: expected a folder of `amc collect`, *.jsonl or *.parquet")
    return [_conversation(row, where) for file in files for where, row in _rows(file)]


def thought_of(step: Step) -> str:
    """Return a step's thought, or its action if it has no thought."""
    return step.thought or step.action


class GoalBatch(NamedTuple):
    """`[n]` transitions with a goal each; texts are indexes into `GoalData.texts`."""

    state: IntArray
    thought: IntArray
    next_state: IntArray
    goal: IntArray
    reached: BoolArray
    """Whether the next state is the goal; the target of Q is 1."""
    ended: BoolArray
    """Whether the next state is terminal; the target is 0 unless the goal is reached."""
    already: BoolArray
    """Whether the state itself is the goal; V is trained towards 1, Q is not trained."""
    kept: BoolArray
    """False if the transition was truncated before the goal; nothing is trained."""


@dataclass(frozen=True)
class GoalData:
    """All transitions of some episodes, with a shared list of texts. `S` states, `M` transitions."""

    texts: tuple[str, ...]
    """Distinct texts of states, goals and thoughts."""
    state_text: IntArray
    """`[S]` text of each state; the states of an episode are consecutive."""
    goal_text: IntArray
    """`[S]` text of each state as a goal; equal texts are the same goal."""
    first: IntArray
    """`[S]` first state of the episode."""
    last: IntArray
    """`[S]` last state of the episode."""
    truncated: BoolArray
    """`[S]` whether the episode is truncated."""
    task: IntArray
    """`[S]` number of the task."""
    at: IntArray
    """`[M]` state that each transition starts from; it leads to the next state."""
    thought_text: IntArray
    """`[M]` text of each transition's thought."""
    usage: Usage = field(default_factory=Usage)
    """Usage of the summaries."""

    def sample(self, rng: np.random.Generator, n: int, shares: GoalShares, discount: float) -> GoalBatch:
        """Draw transitions uniformly, and a goal for each."""
        chosen = rng.integers(len(self.at), size=n)
        at = self.at[chosen]
        weights = np.array([shares.future, shares.random, shares.current])
        kind = rng.choice(3, size=n, p=weights / weights.sum())
        goal = np.choose(kind, [self.later(rng, at, discount), self.elsewhere(rng, at), at])
        return self.batch(chosen, self.goal_text[goal])

    def batch(self, transitions: IntArray, goal: IntArray) -> GoalBatch:
        """Combine transitions with goals (indexes into `texts`)."""
        at = self.at[transitions]
        last = at + 1 == self.last[at]
        reached, already = self.goal_text[at + 1] == goal, self.goal_text[at] == goal
        return GoalBatch(
            state=self.state_text[at],
            thought=self.thought_text[transitions],
            next_state=self.state_text[at + 1],
            goal=goal,
            reached=reached,
            ended=last,
            already=already,
            kept=already | reached | ~(last & self.truncated[at]),
        )

    def later(self, rng: np.random.Generator, at: IntArray, discount: float) -> IntArray:
        """Draw a later state of the same episode, k steps ahead with probability proportional to discount^(k-1)."""
        most = self.last[at] - at
        uniform = rng.random(len(at))
        # The inverse of a geometric distribution cut at `most`; at discount 1 it is uniform.
        if discount < 1:
            steps = np.log1p(-uniform * (1 - discount**most)) / np.log(discount) if discount > 0 else np.zeros(len(at))
        else:
            steps = uniform * most
        states: IntArray = at + 1 + np.minimum(steps.astype(np.int64), most - 1)
        return states

    def elsewhere(self, rng: np.random.Generator, at: IntArray) -> IntArray:
        """Draw a state of any other episode, uniformly."""
        first, length = self.first[at], self.last[at] - self.first[at] + 1
        drawn = rng.integers(len(self.state_text) - length)
        return drawn + np.where(drawn >= first, length, 0)


async def goal_data(episodes: Sequence[Episode], summary: Summary) -> GoalData:
    """Describe every state of the episodes and collect their transitions.

    Raises:
        ConfigurationError: fewer than two episodes have a step.
    """
    used = [episode for episode in episodes if episode.trajectory.steps]
    if len(used) < 2:
        raise ConfigurationError(
            f"{len(used)} trajectories have a step: expected at least 2, since goals come from other trajectories"
        )
    lengths = np.array([len(episode.trajectory.steps) + 1 for episode in used])
    states = [episode.trajectory.prefix(t) for episode, n in zip(used, lengths, strict=True) for t in range(n)]
    described = await summary.describe(states)
    index = _Index()
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    last = np.repeat(np.cumsum(lengths) - 1, lengths)
    tasks = _Index()
    return GoalData(
        state_text=index.of(described.states),
        goal_text=index.of(described.goals),
        thought_text=index.of(thought_of(step) for episode in used for step in episode.trajectory.steps),
        first=first,
        last=last,
        truncated=np.repeat([episode.truncated or not episode.trajectory.done for episode in used], lengths),
        task=np.repeat(tasks.of(episode.trajectory.task.id for episode in used), lengths),
        at=np.flatnonzero(np.arange(lengths.sum()) < last),
        texts=index.texts,
        usage=described.usage,
    )


class _Index:
    """Number distinct texts in order of appearance."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, texts: Iterable[str]) -> IntArray:
        return np.array([self._known.setdefault(text, len(self._known)) for text in texts], dtype=np.int64)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._known)


def _collected(trajectory: Trajectory, settings: str, horizon_ends: bool) -> Episode:
    horizon = json.loads(settings).get("horizon")
    at_horizon = horizon is not None and len(trajectory.steps) >= horizon
    return Episode(trajectory, truncated=at_horizon and not horizon_ends)


def _conversation(row: Mapping[str, Any], where: str) -> Episode:
    try:
        messages = convert_to_messages([_without_empty(message) for message in row["messages"]])
        trajectory = trajectory_from_messages(messages, done=_flag(row, "done", True))
        task = Task(str(row.get("task") or "") or trajectory.task.instruction, trajectory.task.instruction)
        return Episode(Trajectory(task, trajectory.steps, trajectory.done), _flag(row, "truncated", False))
    except (KeyError, TypeError, ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"{where} is not a conversation ({quoted(error)}): expected "
            '{"messages": [{"role": "user", "content": "..."}, ...]}'
        ) from error


def _flag(row: Mapping[str, Any], name: str, default: bool) -> bool:
    value = row.get(name)
    return default if value is None else bool(value)


def _without_empty(message: Any) -> Any:
    # In Parquet, every message has every column.
    return {key: value for key, value in message.items() if value is not None} if isinstance(message, dict) else message


def _rows(file: Path) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if file.suffix == ".parquet":
        _, parquet = pyarrow_or_error()
        yield from ((f"{file} row {n}", row) for n, row in enumerate(parquet.read_table(file).to_pylist(), 1))
        return
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                yield f"{file} line {number}", json.loads(line)
            except json.JSONDecodeError as error:
                raise CheckpointError(f"{file} line {number} is not JSON: {error}") from error
