"""A comparison with an embedded policy in a world that is found by name, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from amc_agents.bench import crafting
from amc_agents.bench.embedded_imagination import EmbeddedImagination
from amc_agents.bench.methods import Method
from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.runner import Comparison
from amc_agents.critics.value.checkpoint import weights_hash
from amc_agents.critics.value.embedded import ADAPTER
from amc_agents.envs.registry import WorldSpec, world
from amc_agents.errors import ConfigurationError
from amc_agents.lac.embedded_text_scorer import EmbeddedScorer
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.runtime.text_agent import text_agent
from amc_agents.types import Task

CRAFTING = "crafting"


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared, on what: a worker process is given this."""

    methods: tuple[Method, ...]
    n_tasks: int
    world: str = CRAFTING
    """Its name, as `amc_agents.envs.registry.world` takes it."""
    band: tuple[int, int] | None = None
    """Difficulty, which the crafting world alone has: least and most steps of the planner's way. None: the demo's."""
    split: str = "test"
    first: int = 0
    """Number of the first task of the split."""
    seeds: tuple[int, ...] = (0,)
    n_particles: int = 15
    critic: str | None = None
    """None: the value model beside the policy, "uniform" where there is none."""
    model: str | None = None
    """The policy: a shipped one's name, or a folder. None: the world's own."""
    plain: bool = False
    """Drive the agent by a plain loop instead of its graph: the same results, in half the time."""

    def __post_init__(self) -> None:
        """Refuse a difficulty that the world does not have."""
        if self.band is not None and self.world != CRAFTING:
            raise ConfigurationError(
                f"a band of difficulty is the crafting world's, and this is {self.world}: leave it out"
            )

    @property
    def world_spec(self) -> WorldSpec:
        """The world."""
        return world(self.world)

    @property
    def policy(self) -> str:
        """The policy's name or folder.

        Raises:
            ConfigurationError: none was given, and the world brings none.
        """
        chosen = self.world_spec.model if self.model is None else self.model
        if chosen is None:
            raise ConfigurationError(f"the world {self.world} brings no policy: name one (--model FOLDER)")
        return chosen

    @property
    def critic_spec(self) -> str:
        """The critic's string."""
        if self.critic is not None:
            return self.critic
        return f"embedded:{self.policy}" if self.has_critic else "uniform"

    @property
    def has_critic(self) -> bool:
        """One was named, or a value model is beside the policy."""
        return self.critic is not None or (model_folder(self.policy) / ADAPTER).is_dir()

    def tasks(self, part: int = 0, of: int = 1) -> list[Task]:
        """The tasks, or every `of`-th of them from number `part` on."""
        return list(_tasks(self.world, self.band, self.n_tasks, self.split, self.first)[part::of])

    def comparison(self, tasks: Sequence[Task] | None = None) -> Comparison:
        """The comparison on these tasks; None: on all."""
        found, policy = self.world_spec, self.policy
        folder = model_folder(policy)
        banded = {"band": list(self.band or crafting.BAND)} if self.world == CRAFTING else {}
        return Comparison(
            policy=lambda temperature: EmbeddedChatModel(model=policy, temperature=temperature),
            environment=found.make,
            tasks=self.tasks() if tasks is None else tasks,
            methods=self.methods,
            seeds=self.seeds,
            n_particles=self.n_particles,
            critic=self.critic_spec,
            horizon=found.horizon,
            success=found.success,
            about={
                "world": self.world,
                "policy": folder.name,
                "policy_weights": weights_hash(folder),
                **banded,
                "split": self.split,
            },
            imagination=lambda depth: EmbeddedImagination(policy, depth=depth),
            scorer=lambda: EmbeddedScorer.load(policy),
            actions=found.actions,
            agent=plain_text_agent if self.plain else text_agent,
        )


@lru_cache(maxsize=8)
def _tasks(name: str, band: tuple[int, int] | None, n_tasks: int, split: str, first: int) -> tuple[Task, ...]:
    """Kept, for a world may play each task to learn how hard it is."""
    if name == CRAFTING:
        return tuple(crafting.tasks(n_tasks, band or crafting.BAND, split=split, first=first))
    return tuple(world(name).tasks(n_tasks, split, first))
