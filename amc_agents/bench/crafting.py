"""The comparison in the crafting world with the embedded policy: its tuned settings, in one place.

The constants come from `reproduce/crafting/tune.py`, on tasks of the training split that no model was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amc_agents.bench.embedded_imagination import EmbeddedImagination
from amc_agents.bench.methods import (
    Method,
    Tuned,
    amc,
    amc_hidden,
    best_of_n,
    judged,
    lac_variants,
    react,
    react_greedy,
    smc,
    vote,
)
from amc_agents.bench.runner import Comparison
from amc_agents.critics.checkpoint import weights_hash
from amc_agents.critics.rescoring_embedded import EmbeddedScorer
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.types import Task

HORIZON = 20
BAND = (12, 16)
"""Difficulty of the demo's tasks: least and most steps of the planner's way, as hard as a horizon of 20 allows."""

REACT = Tuned(temperature=0.4)
BEST_OF_N = Tuned(temperature=0.6, beta=0.1)
SMC = Tuned(temperature=0.6, steps=(6, 12), beta=0.1)
"""As Best-of-N: with a reward at the end alone, f = 0 gives all live particles the same weight."""
AMC = Tuned(temperature=0.4, steps=(6, 12), beta=0.1)
AMC_HIDDEN = AMC
VOTE = Tuned(temperature=0.6)
LAC = Tuned(temperature=0.6, alpha=1.0)
"""A first choice, on 20 training tasks and with the value model; `reproduce/crafting/lac.py` makes it for a critic."""
ORACLE = "amc_agents.bench.planner_critic:PlannerCritic"
"""Judges actions by the world's planner: what could be had at most, and never what an agent could have."""


def methods(judge: str | None = None) -> list[Method]:
    """The methods with their tuned settings; with a chat model as judge, those that it allows."""
    ours = [react(REACT), react_greedy(), best_of_n(BEST_OF_N), smc(SMC), amc(AMC), amc_hidden(AMC_HIDDEN)]
    return ours + (judged(judge, AMC) if judge else [])


def decision_methods(critic: str | None = None, k: int = 5) -> list[Method]:
    """The methods that decide each step among K candidates: run only where they are named.

    Args:
        critic: judges candidate actions; None: the comparison's.
        k: K.
    """
    return [
        vote(VOTE, k=k),
        vote(VOTE, k=k, greedy=True),
        *lac_variants(LAC, critic=critic, oracle=ORACLE, k=k),
    ]


def tasks(n_tasks: int, band: tuple[int, int] = BAND, *, split: str = "test", first: int = 0) -> list[Task]:
    """Crafting tasks of a band of difficulty; those of the split "test" were used for nothing before."""
    return list(generate_tasks(n_tasks, split, first_seed=first, optimal_steps=band))


@dataclass(frozen=True)
class Plan:
    """A comparison with the embedded policy, as plain values: what a worker process is given."""

    methods: tuple[Method, ...]
    n_tasks: int
    band: tuple[int, int] = BAND
    split: str = "test"
    first: int = 0
    """Number of the first task of the split."""
    seeds: tuple[int, ...] = (0,)
    n_particles: int = 15
    critic: str | None = None
    """None: the value model beside the policy."""
    model: str = "crafting"
    """The policy: a shipped one's name, or a folder."""

    @property
    def critic_spec(self) -> str:
        """The critic's string."""
        return f"embedded:{self.model}" if self.critic is None else self.critic

    def tasks(self, part: int = 0, of: int = 1) -> list[Task]:
        """The tasks, or every `of`-th of them from number `part` on."""
        return tasks(self.n_tasks, self.band, split=self.split, first=self.first)[part::of]

    def comparison(self, tasks: Sequence[Task] | None = None) -> Comparison:
        """The comparison on these tasks; None: on all."""
        folder = model_folder(self.model)
        return Comparison(
            policy=lambda temperature: EmbeddedChatModel(model=self.model, temperature=temperature),
            environment=CraftingWorld,
            tasks=self.tasks() if tasks is None else tasks,
            methods=self.methods,
            seeds=self.seeds,
            n_particles=self.n_particles,
            critic=self.critic_spec,
            horizon=HORIZON,
            about={
                "world": "crafting",
                "policy": folder.name,
                "policy_weights": weights_hash(folder),
                "band": list(self.band),
                "split": self.split,
            },
            imagination=lambda depth: EmbeddedImagination(self.model, depth=depth),
            scorer=lambda: EmbeddedScorer.load(self.model),
        )
