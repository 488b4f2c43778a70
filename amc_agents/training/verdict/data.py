"""What a verdict critic is trained on: labelled steps, and candidates of the same state against each other.

`C` candidate actions of one state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.render import turn
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import replace_file, storage_errors
from amc_agents.runtime.sampling_actor import ChatActor
from amc_agents.training.verdict.labels import LABELS, Label, Labeller
from amc_agents.types import Step, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Option:
    """An action that could be taken in a state."""

    step: Step
    """Thought and action; no observation."""
    label: Label = "UNKNOWN"
    n: int = 0
    """Samples that do this."""
    greedy: bool = False
    """The policy's likeliest turn does this."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A trajectory whose steps have labels, and the candidates of its states."""

    trajectory: Trajectory
    labels: tuple[Label, ...]
    """`[T]` of the steps that were made."""
    options: tuple[tuple[Option, ...], ...] = ()
    """`[T]` of the states s_0 to s_{T-1}, `[C]` distinct actions each; empty where none were sampled."""

    def disagree(self, state: int) -> bool:
        """Whether the candidates of a state differ in what they are worth: where a critic matters."""
        return bool(self.options) and len({one.label == "GOOD" for one in self.options[state]}) > 1


def labelled(
    trajectories: Sequence[Trajectory],
    labeller: Labeller,
    options: Sequence[Sequence[Sequence[Option]]] | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> list[Judged]:
    """Trajectories with labels, and their candidates with theirs.

    Args:
        trajectories: finished ones.
        labeller: says what steps are worth; a candidate is shown as the last step, without an observation.
        options: for each trajectory the candidates of its states, from `sample_options`.
        progress: called with the number of trajectories done.

    Raises:
        ConfigurationError: the labeller gives another number of labels, or other ones.
    """
    found = []
    for number, trajectory in enumerate(trajectories):
        labels = _checked(labeller(trajectory), trajectory)
        states = options[number] if options is not None else ()
        told = tuple(
            tuple(replace(one, label=_label_of(one, trajectory.prefix(t), labeller)) for one in state)
            for t, state in enumerate(states)
        )
        found.append(Judged(trajectory, labels, told))
        if progress is not None:
            progress(number + 1)
    return found


async def sample_options(
    trajectories: Sequence[Trajectory],
    model: BaseChatModel,
    *,
    k: int = 8,
    temperatures: Sequence[float] = (1.0,),
    greedy: bool = True,
    seed: int = 0,
    n_concurrent: int = 32,
    inputs: Callable[[Task], Mapping[str, Any]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[list[list[Option]]]:
    """Candidates of every state of trajectories, sampled from the policy that met these states.

    Args:
        trajectories: played ones.
        model: the policy.
        k: samples of a state at each temperature; equal actions are one candidate.
        temperatures: at which they are sampled; a critic then knows what is unlikely and what is not.
        greedy: ask for the likeliest turn too.
        seed: seeds models that take one; no two requests share a seed.
        n_concurrent: trajectories worked on at the same time.
        inputs: what the policy was told of a task, as in `collect`.
        progress: called with the number of trajectories done.

    Returns:
        `[N][T][C]`; thoughts are those of the first sample of an action.
    """
    seeds, done = count(seed << 32), count(1)
    seeded = "seed" in type(model).model_fields

    def copied(temperature: float) -> BaseChatModel:
        return model.model_copy(update={"temperature": temperature} | ({"seed": next(seeds) % 2**31} if seeded else {}))

    async def at(messages: Sequence[BaseMessage]) -> list[Option]:
        found: dict[str, Option] = {}
        for temperature in temperatures:
            for one in await ChatActor(copied(temperature), messages).sample(k):
                if one.action.strip():
                    known = found.get(one.action) or Option(Step(one.action, thought=one.thought))
                    found[one.action] = replace(known, n=known.n + 1)
        if greedy:
            best = await ChatActor(copied(0.0), messages).greedy()
            if best.action.strip():
                known = found.get(best.action) or Option(Step(best.action, thought=best.thought))
                found[best.action] = replace(known, greedy=True)
        return list(found.values())

    async def along(trajectory: Trajectory) -> list[list[Option]]:
        given = inputs(trajectory.task)["messages"] if inputs else [("user", trajectory.task.instruction)]
        messages = convert_to_messages(given)
        states = []
        for step in trajectory.steps:
            states.append(await at(messages))
            messages = [*messages, AIMessage(turn(step)), HumanMessage(step.observation)]
        if progress is not None:
            progress(next(done))
        return states

    return await side_by_side(*map(along, trajectories), limit=n_concurrent)


def write_judged(path: str | Path, judged: Sequence[Judged]) -> None:
    """Write judged trajectories, one JSON object a line, atomically.

    Raises:
        StorageError: the file cannot be written.
    """
    path = Path(path)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(unfinished: Path) -> None:
        with unfinished.open("w", encoding="utf-8") as file:
            for one in judged:
                task = {"id": one.trajectory.task.id, "instruction": one.trajectory.task.instruction}
                steps = [asdict(step) for step in one.trajectory.steps]
                options = [[asdict(option) for option in state] for state in one.options]
                line = {"task": task, "done": one.trajectory.done, "steps": steps, "labels": one.labels}
                file.write(json.dumps(line | {"options": options}) + "\n")

    replace_file(path, write)


def read_judged(path: str | Path) -> list[Judged]:
    """Reads what `write_judged` wrote. Raises `CheckpointError` where it cannot be read."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return [_judged(json.loads(line)) for line in file]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a file of judged trajectories: {error!r}") from error


def _judged(values: dict[str, Any]) -> Judged:
    trajectory = Trajectory(Task(**values["task"]), tuple(map(_step, values["steps"])), values["done"])
    options = tuple(
        tuple(Option(**{**one, "step": _step(one["step"])}) for one in state) for state in values["options"]
    )
    return Judged(trajectory, tuple(values["labels"]), options)


def _step(values: dict[str, Any]) -> Step:
    return Step(**{**values, "message_ids": tuple(values["message_ids"])})


def _label_of(option: Option, state: Trajectory, labeller: Labeller) -> Label:
    candidate = state.extended(option.step)
    return _checked(labeller(candidate), candidate)[-1]


def _checked(labels: Sequence[Label], trajectory: Trajectory) -> tuple[Label, ...]:
    if len(labels) != len(trajectory.steps) or not set(labels) <= set(LABELS):
        raise ConfigurationError(
            f"a labeller gives one of {', '.join(LABELS)} for each of {len(trajectory.steps)} steps, got {list(labels)}"
        )
    return tuple(labels)
