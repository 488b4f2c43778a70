"""Training data of a verdict critic: labelled steps, and labelled candidate actions of the same state.

`C` is the number of candidate actions of a state.
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
from amc_agents.quoting import quoted
from amc_agents.runtime.sampling_actor import ChatActor
from amc_agents.training.verdict.labels import LABELS, Label, Labeller
from amc_agents.types import Step, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate action of a state."""

    step: Step
    """Thought and action, without an observation."""
    label: Label = "UNKNOWN"
    n: int = 0
    """Number of samples with this action."""
    greedy: bool = False
    """Whether the policy's greedy turn has this action."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A trajectory with labelled steps, and the candidates of its states."""

    trajectory: Trajectory
    labels: tuple[Label, ...]
    """`[T]` labels of the steps."""
    options: tuple[tuple[Option, ...], ...] = ()
    """`[T]` candidates of the states s_0 to s_{T-1}, `[C]` distinct actions each; empty if none were sampled."""

    def disagree(self, state: int) -> bool:
        """Whether some candidates of a state are GOOD and others are not, so that a critic matters."""
        return bool(self.options) and len({option.label == "GOOD" for option in self.options[state]}) > 1


def labelled(
    trajectories: Sequence[Trajectory],
    labeller: Labeller,
    options: Sequence[Sequence[Sequence[Option]]] | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> list[Judged]:
    """Label trajectories and their candidates.

    Args:
        trajectories: finished trajectories.
        labeller: labels steps; a candidate is passed as the last step, without an observation.
        options: the candidates of each trajectory's states, from `sample_options`.
        progress: called with the number of labelled trajectories.

    Raises:
        ConfigurationError: the labeller returns a wrong number of labels, or unknown labels.
    """
    judged = []
    for number, trajectory in enumerate(trajectories):
        labels = _checked(labeller(trajectory), trajectory)
        states = options[number] if options is not None else ()
        labelled_options = tuple(
            tuple(replace(option, label=_label_of(option, trajectory.prefix(t), labeller)) for option in state)
            for t, state in enumerate(states)
        )
        judged.append(Judged(trajectory, labels, labelled_options))
        if progress is not None:
            progress(number + 1)
    return judged


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
    """Sample candidates for every state of trajectories from the policy.

    Args:
        trajectories: the trajectories.
        model: the policy.
        k: samples per state and temperature; equal actions are merged to a candidate.
        temperatures: sampling temperatures; several give the critic both likely and unlikely actions.
        greedy: add the greedy turn.
        seed: base seed, for models with a field `seed`; each request has a different seed.
        n_concurrent: maximum number of concurrent trajectories.
        inputs: task -> input of the policy, as in `collect`.
        progress: called with the number of finished trajectories.

    Returns:
        `[N][T][C]` candidates; a candidate has the thought of the first sample of its action.
    """
    seeds, done = count(seed << 32), count(1)
    seeded = "seed" in type(model).model_fields

    def copied(temperature: float) -> BaseChatModel:
        return model.model_copy(update={"temperature": temperature} | ({"seed": next(seeds) % 2**31} if seeded else {}))

    async def at(messages: Sequence[BaseMessage]) -> list[Option]:
        candidates: dict[str, Option] = {}
        for temperature in temperatures:
            for sample in await ChatActor(copied(temperature), messages).sample(k):
                if sample.action.strip():
                    known = candidates.get(sample.action) or Option(Step(sample.action, thought=sample.thought))
                    candidates[sample.action] = replace(known, n=known.n + 1)
        if greedy:
            best = await ChatActor(copied(0.0), messages).greedy()
            if best.action.strip():
                known = candidates.get(best.action) or Option(Step(best.action, thought=best.thought))
                candidates[best.action] = replace(known, greedy=True)
        return list(candidates.values())

    async def along(trajectory: Trajectory) -> list[list[Option]]:
        first = inputs(trajectory.task)["messages"] if inputs else [("user", trajectory.task.instruction)]
        messages = convert_to_messages(first)
        states = []
        for step in trajectory.steps:
            states.append(await at(messages))
            messages = [*messages, AIMessage(turn(step)), HumanMessage(step.observation)]
        if progress is not None:
            progress(next(done))
        return states

    return await side_by_side(*map(along, trajectories), limit=n_concurrent)


def write_judged(path: str | Path, judged: Sequence[Judged]) -> None:
    """Write judged trajectories atomically, one JSON object per line.

    Raises:
        StorageError: the file cannot be written.
    """
    path = Path(path)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(unfinished: Path) -> None:
        with unfinished.open("w", encoding="utf-8") as file:
            for each in judged:
                trajectory = each.trajectory
                task = {"id": trajectory.task.id, "instruction": trajectory.task.instruction}
                steps = [asdict(step) for step in trajectory.steps]
                options = [[asdict(option) for option in state] for state in each.options]
                line = {"task": task, "done": trajectory.done, "steps": steps, "labels": each.labels}
                file.write(json.dumps(line | {"options": options}) + "\n")

    replace_file(path, write)


def read_judged(path: str | Path) -> list[Judged]:
    """Read a file that `write_judged` wrote.

    Raises:
        CheckpointError: the file cannot be read, or has another format.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            return [_judged(json.loads(line)) for line in file]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a file of judged trajectories: {quoted(error)}") from error


def _judged(values: dict[str, Any]) -> Judged:
    trajectory = Trajectory(Task(**values["task"]), tuple(map(_step, values["steps"])), values["done"])
    options = tuple(
        tuple(Option(**{**option, "step": _step(option["step"])}) for option in state) for state in values["options"]
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
            f"a labeller must return {', '.join(LABELS)} for each of {len(trajectory.steps)} steps, got {list(labels)}"
        )
    return tuple(labels)
