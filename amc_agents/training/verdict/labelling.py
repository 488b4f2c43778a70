"""Training data of a verdict critic: labelled steps, and labelled candidate actions of the same state.

A step is GOOD if the goal needs it or it reveals necessary information, BAD if it is useless or wrong, and UNKNOWN if
neither can be decided (LAC's reflections, appendix B.2). `C` is the number of candidate actions of a state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.render import turn
from amc_agents.envs.crafting import CraftingTask, CraftingWorld, plan
from amc_agents.envs.crafting.tasks import parse_instruction
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import replace_file, storage_errors
from amc_agents.quoting import quoted
from amc_agents.runtime.inner_calls import ChatActor
from amc_agents.types import Step, Task, Trajectory

Label = Literal["GOOD", "BAD", "UNKNOWN"]
LABELS: tuple[Label, ...] = ("GOOD", "BAD", "UNKNOWN")

Labeller = Callable[[Trajectory], Sequence[Label]]
"""A trajectory -> `[T]` labels of its steps. A last step without an observation is a candidate that was not taken."""


@dataclass(frozen=True)
class OutcomeLabels:
    """Label steps from the trajectory only, for worlds without an expert. Most labels are UNKNOWN.

    The last steps before a success are GOOD. A step that repeats the previous step and its observation is BAD.
    """

    success: float = 1.0
    """Minimum return of a success."""
    last: int = 3
    """Number of GOOD steps before a success."""

    def __call__(self, trajectory: Trajectory) -> list[Label]:
        """Label the steps: `[T]`."""
        steps = trajectory.steps
        succeeded = trajectory.done and trajectory.return_ >= self.success
        labels: list[Label] = []
        for number, step in enumerate(steps):
            before = steps[number - 1] if number else None
            if before and step.observation and (step.action, step.observation) == (before.action, before.observation):
                labels.append("BAD")
            else:
                labels.append("GOOD" if succeeded and number >= len(steps) - self.last else "UNKNOWN")
        return labels


@dataclass(frozen=True)
class CraftingLabels:
    """Label steps of the crafting world by the planner's remaining steps.

    Fewer remain: GOOD. More remain, or the world refused the action: BAD. Equally many remain: `useless`.
    """

    useless: Label = "BAD"
    """Label of a step without progress, including `inventory`, which reveals nothing new."""

    def __call__(self, trajectory: Trajectory) -> list[Label]:
        """Label the steps: `[T]`.

        Raises:
            ConfigurationError: the task is not a crafting task.
        """
        payload = trajectory.task.payload
        # A dataset does not store the payload, but the instruction lists the recipes.
        task = trajectory.task if payload is not None else parse_instruction(trajectory.task.instruction)
        if not isinstance(task.payload, CraftingTask):
            raise ConfigurationError(
                f"labels by the crafting planner need crafting tasks, got {quoted(trajectory.task.id)}"
            )
        world = CraftingWorld()
        _result(world.reset(Task(task.id, task.instruction, task.payload)))
        labels: list[Label] = []
        carried = world.inventory
        left = self._remaining(task.payload, carried)
        for step in trajectory.steps:
            answer = _result(world.step(step.action))
            before, carried = carried, world.inventory
            if answer.done:
                labels.append("GOOD")
                break
            now = left if carried == before else self._remaining(task.payload, carried)
            refused = carried == before and step.action.strip() != "inventory"
            if now == left and not refused:
                labels.append(self.useless)
            else:
                labels.append("GOOD" if now < left else "BAD")
            left = now
        if len(labels) != len(trajectory.steps):
            raise ConfigurationError(f"task {quoted(task.id)}: the trajectory continues after its goal is reached")
        return labels

    @staticmethod
    def _remaining(task: CraftingTask, inventory: dict[str, int]) -> int:
        steps = plan(task.book, task.goal, inventory=inventory)
        # A goal that can never be made has no plan; no step then makes progress.
        return 0 if steps is None else len(steps)


def _result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a crafting world's coroutine without an event loop, which may already be running: it never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a crafting world does not wait")


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
