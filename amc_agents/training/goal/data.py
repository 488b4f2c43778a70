"""What the goal critic's training reads: transitions (state, thought, next state) and goals drawn for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from langchain_core.messages import convert_to_messages

from amc_agents.critics.goal.summaries import Summary
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.messages import trajectory_from_messages
from amc_agents.training.dataset import pyarrow_or_error, read_records, shards
from amc_agents.types import IntArray, Step, Task, Trajectory
from amc_agents.usage import Usage

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Episode:
    """A trajectory and how it stopped."""

    trajectory: Trajectory
    truncated: bool = False
    """It was cut rather than ended: what would have come next is not known."""


def read_episodes(path: str | Path, *, horizon_ends: bool = False) -> list[Episode]:
    """Trajectories of a folder that `amc collect` wrote, or of your own JSONL or Parquet with messages.

    Own data: a file, or a folder of `*.jsonl` and `*.parquet`, one conversation a row: `messages` (role and content, as
    chat APIs write them, tool calls included), and where known `task` (an id; by default what was asked, which is also
    what held-out tasks are told apart by), `done` (default true) and `truncated` (default false).

    A collected trajectory that is as long as its horizon counts as truncated: it may have been cut there.

    Args:
        path: where they are.
        horizon_ends: count it as ended, since the agent will be stopped there at work too.

    Raises:
        CheckpointError: there is nothing to read, or a row is not a conversation.
        MissingExtra: Parquet is to be read and pyarrow is not installed.
    """
    path = Path(path)
    if path.is_dir() and shards(path):
        return [_collected(record.trajectory, record.settings, horizon_ends) for record in read_records(path)]
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.parquet")]) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise CheckpointError(f"no trajectories in {path}: expected a folder of `amc collect`, *.jsonl or *.parquet")
    return [_conversation(row, where) for file in files for where, row in _rows(file)]


def thought_of(step: Step) -> str:
    """What is judged of a step: its thought, or its action where the agent wrote none."""
    return step.thought or step.action


@dataclass(frozen=True)
class GoalShares:
    """Where the goals of a batch come from; the shares are normalised to 1."""

    future: float = 0.5
    """A later state of the same trajectory, nearer ones more often (geometric, with the discount)."""
    random: float = 0.4
    """Any state of another trajectory: most cannot be reached from here, and that has to be seen too."""
    current: float = 0.1
    """The state itself: trains V(g, g) = 1 and nothing else."""

    def __post_init__(self) -> None:
        """Refuse a share of 0 where it would make every goal look alike."""
        if not (self.future > 0 and self.random > 0 and self.current >= 0):
            raise ConfigurationError(
                f"goal shares future {self.future}, random {self.random}, current {self.current}: the first two must "
                "be above 0, as goals are otherwise never, or always, reached in the data"
            )


class GoalBatch(NamedTuple):
    """`[n]` transitions and a goal for each; texts as indexes into `GoalData.texts`."""

    state: IntArray
    thought: IntArray
    next_state: IntArray
    goal: IntArray
    reached: BoolArray
    """The next state is the goal: the target of Q is 1."""
    ended: BoolArray
    """The next state is terminal: the target is 0 unless the goal is reached."""
    already: BoolArray
    """The state itself is the goal: V is trained towards 1, Q is not trained."""
    kept: BoolArray
    """False where the transition was cut short of the goal: nothing is trained."""


@dataclass(frozen=True)
class GoalData:
    """All transitions of some episodes, over one list of texts. `S` states, `M` transitions."""

    texts: tuple[str, ...]
    """Distinct texts of states, goals and thoughts."""
    state_text: IntArray
    """`[S]` the text of each state; those of an episode follow each other."""
    goal_text: IntArray
    """`[S]` the text of each state as a goal: two states with the same are the same goal."""
    first: IntArray
    """`[S]` first state of the same episode."""
    last: IntArray
    """`[S]` last state of the same episode."""
    truncated: BoolArray
    """`[S]` whether the state's episode was cut."""
    task: IntArray
    """`[S]` number of the state's task."""
    at: IntArray
    """`[M]` the state that each transition starts from; it leads to the next one."""
    thought_text: IntArray
    """`[M]`"""
    usage: Usage = field(default_factory=Usage)
    """What the summaries cost."""

    def sample(self, rng: np.random.Generator, n: int, shares: GoalShares, discount: float) -> GoalBatch:
        """Draws transitions uniformly, and a goal for each."""
        chosen = rng.integers(len(self.at), size=n)
        at = self.at[chosen]
        weights = np.array([shares.future, shares.random, shares.current])
        kind = rng.choice(3, size=n, p=weights / weights.sum())
        goal = np.choose(kind, [self.later(rng, at, discount), self.elsewhere(rng, at), at])
        return self.batch(chosen, self.goal_text[goal])

    def batch(self, transitions: IntArray, goal: IntArray) -> GoalBatch:
        """Those transitions with those goals (indexes into `texts`), and how they relate."""
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
        """A later state of the same episode, k steps on with probability proportional to discount^(k-1)."""
        most = self.last[at] - at
        uniform = rng.random(len(at))
        # The inverse of a geometric distribution cut at `most`; at discount 1 it is uniform.
        if discount < 1:
            steps = np.log1p(-uniform * (1 - discount**most)) / np.log(discount) if discount > 0 else np.zeros(len(at))
        else:
            steps = uniform * most
        found: IntArray = at + 1 + np.minimum(steps.astype(np.int64), most - 1)
        return found

    def elsewhere(self, rng: np.random.Generator, at: IntArray) -> IntArray:
        """Any state of any other episode, uniformly."""
        first, own = self.first[at], self.last[at] - self.first[at] + 1
        found = rng.integers(len(self.state_text) - own)
        return found + np.where(found >= first, own, 0)


async def goal_data(episodes: Sequence[Episode], summary: Summary) -> GoalData:
    """Describes every state of the episodes, and lines the transitions up.

    Raises:
        ConfigurationError: fewer than two episodes have a step.
    """
    used = [one for one in episodes if one.trajectory.steps]
    if len(used) < 2:
        raise ConfigurationError(f"{len(used)} trajectories have a step: 2 are needed, as goals come of others")
    lengths = np.array([len(one.trajectory.steps) + 1 for one in used])
    states = [one.trajectory.prefix(t) for one, length in zip(used, lengths, strict=True) for t in range(length)]
    described = await summary.describe(states)
    index = _Index()
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    last = np.repeat(np.cumsum(lengths) - 1, lengths)
    tasks = _Index()
    return GoalData(
        state_text=index.of(described.states),
        goal_text=index.of(described.goals),
        thought_text=index.of(thought_of(step) for one in used for step in one.trajectory.steps),
        first=first,
        last=last,
        truncated=np.repeat([one.truncated or not one.trajectory.done for one in used], lengths),
        task=np.repeat(tasks.of(one.trajectory.task.id for one in used), lengths),
        at=np.flatnonzero(np.arange(lengths.sum()) < last),
        texts=index.texts,
        usage=described.usage,
    )


class _Index:
    """Numbers distinct texts in the order in which they come."""

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
        found = trajectory_from_messages(messages, done=_flag(row, "done", True))
        task = str(row.get("task") or "") or found.task.instruction
        return Episode(
            Trajectory(Task(task, found.task.instruction), found.steps, found.done), _flag(row, "truncated", False)
        )
    except (KeyError, TypeError, ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"{where} is not a conversation ({error!r}): expected "
            '{"messages": [{"role": "user", "content": "..."}, ...]}'
        ) from error


def _flag(row: Mapping[str, Any], name: str, default: bool) -> bool:
    value = row.get(name)
    return default if value is None else bool(value)


def _without_empty(message: Any) -> Any:
    # Parquet gives every message every column.
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
