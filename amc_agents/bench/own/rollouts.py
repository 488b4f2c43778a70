"""Play the tasks of the user's own agent, to collect a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from amc_agents.bench.own.agent import OwnAgent
from amc_agents.bench.run_files import HOPELESS, causes_of, described, stops
from amc_agents.errors import AmcError
from amc_agents.training.collecting import Rollouts, independent_trajectories
from amc_agents.types import Task, Trajectory


@dataclass
class OwnRollouts:
    """Plays tasks, and counts what failed. An instance is a `Rollouts` of `amc_agents.training.collecting`."""

    own: OwnAgent
    n_trajectories: int
    """Trajectories of each task."""
    temperature: float
    horizon: int
    play: Rollouts | None = None
    """Draws the trajectories elsewhere; None: here."""
    collected: int = 0
    """Trajectories that were stored; set by the caller."""
    lost: int = 0
    """Trajectories that failed, in tasks that did not."""
    errors: list[str] = field(default_factory=list)
    """The error of each task that failed."""
    _succeeded: int = field(default=0, repr=False)

    async def __call__(self, task: Task, seed: int) -> Sequence[Trajectory]:
        """Draw the trajectories of a task, and count them."""
        trajectories = await (self.play or self.draw)(task, seed)
        self._succeeded += 1
        self.lost += self.n_trajectories - len(trajectories)
        return trajectories

    async def draw(self, task: Task, seed: int) -> Sequence[Trajectory]:
        """Draw the trajectories of a task in this process."""
        graph = self.own.make_agent(self.temperature)
        trajectories = await independent_trajectories(
            graph, self.own.input_of(task), self.n_trajectories, horizon=self.horizon, seed=seed,
            **self.own.arguments_for(task, graph),
        )  # fmt: skip
        # The instruction is the text that runs in production show the critic; only the id comes from the file.
        return [replace(path, task=Task(task.id, path.task.instruction, task.payload)) for path in trajectories]

    def failed(self, task: Task, error: Exception) -> None:
        """Record a task that failed; it is in no dataset, so the next collection plays it again.

        Raises:
            AmcError: every task would meet the error, or the first tasks all failed.
        """
        if stops(error):
            raise error
        self.errors.append(described(error))
        if len(self.errors) >= HOPELESS and not self._succeeded:
            raise AmcError(f"the first {len(self.errors)} tasks all failed, the last with {self.errors[-1]}") from error

    def notes(self) -> list[str]:
        """Return a sentence for each kind of failure."""
        notes = []
        if self.lost:
            notes.append(f"{self.lost} trajectories failed and are not in the dataset: it shows only those that ended.")
        if self.errors:
            notes.append(
                f"{len(self.errors)} tasks failed and are not in the dataset; the same command plays them again. "
                f"Causes: {', '.join(causes_of(self.errors))}"
            )
        return notes
