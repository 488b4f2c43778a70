"""Settings of the study: seeds, bands of difficulty, methods, and the shards that run separately."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from amc_agents.bench import methods
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.plan import CRAFTING, ComparisonPlan
from amc_agents.bench.tuned import tuned_of
from amc_agents.smc import Never

HOME = Path("reproduce/study")
"""Relative to the root of the repository, the working directory of every script of the study."""
MODELS = HOME / "models"
CHOSEN = HOME / "chosen.json"
"""Settings chosen on training tasks (tune.py), by band and regime."""
RAW = Path("docs/results/study/raw")

SEEDS = (0, 1, 2)
"""Each seed has its own training tasks, trajectories, value models, controls and random draws."""
SHIPPED, FROM_SCRATCH = 0, 1
"""Policies. The study treats a policy as a given black box; the second is trained like the first, with another seed."""
BANDS: dict[str, tuple[int, int] | None] = {"hard": (12, 16), "middle": (8, 11), "easy": (4, 7), "official": None}
"""Steps of the planner's solution, of 20 allowed. The official TextCraft has no limits."""
N_TASKS = {"hard": 500, "middle": 500, "easy": 500, "official": 100}
"""Held-out tasks; for the official recipes, the published test split."""
POOL = 20
"""Independent trajectories per task, which are subsampled for Best-of-N at every smaller N."""
SIZES = (5, 10, 15, 20)
OFFICIAL, RENAMED = "official", "textcraft-renamed"
TAUGHT, LARGER = "taught", "larger"
"""Bases of value models pretrained on the noisy expert's play, of the policy's size and larger."""
HOT, TUNED = "hot", "tuned"
"""Sampling at temperature 1 with all else tuned, and with every method's temperature tuned too."""
TEMPERATURES = {HOT: 1.0, TUNED: 0.5}
"""Temperature of a regime's training trajectories."""
PAPERS_BETA = 1.0


def policy_of(policy: int) -> str:
    """Return the policy's name or folder."""
    return "crafting" if policy == SHIPPED else str(MODELS / str(policy))


def base_of(policy: int, kind: str = "") -> str:
    """Return the base weights of a value model's adapter: the policy, or a pretrained base."""
    return str(MODELS / str(policy) / f"base-{kind}") if kind in (TAUGHT, LARGER) else policy_of(policy)


def adapter_of(policy: int, seed: int, regime: str, kind: str = "") -> Path:
    """Return the folder of a value model trained on the policy's own trajectories in this regime.

    Kinds: "shuffled" is trained on targets of other trajectories, "official" on the official training tasks; the kinds
    of the ablations are in `ablations.TRAINED`.
    """
    return MODELS / str(policy) / str(seed) / "-".join(["value", regime, *([kind] if kind else [])])


def critic_of(policy: int, seed: int, regime: str, kind: str = "") -> str:
    """Return the critic's string."""
    return f"embedded:{base_of(policy, kind)}?adapter={adapter_of(policy, seed, regime, kind)}"


@dataclass(frozen=True)
class Shard:
    """A part of the study that runs separately, in at most 20 minutes on two cores."""

    band: str
    regime: str
    group: str
    policy: int
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder and of its packed file."""
        return f"{self.band}-{self.regime}-{self.group}-policy{self.policy}-seed{self.seed}"

    @property
    def plan(self) -> ComparisonPlan:
        """The comparison that the shard runs."""
        official = self.band == OFFICIAL
        return ComparisonPlan(
            methods=tuple(methods_of(self, chosen_of(self.band, self.regime, self.policy))),
            n_tasks=N_TASKS[self.band],
            world=RENAMED if official else CRAFTING,
            band=BANDS[self.band],
            seeds=(self.seed,),
            critic=critic_of(self.policy, self.seed, self.regime, OFFICIAL if official else ""),
            model=policy_of(self.policy),
            plain=True,
        )


@dataclass(frozen=True)
class TrainingShard:
    """A part of the study that runs on training tasks of the hardest band, with the shipped policy."""

    name: str
    """Name of its folder and of its packed file."""
    methods: Callable[[], Iterable[Method]]
    first: int
    """Number of its first task."""
    n_tasks: int
    critic: str = "uniform"

    @property
    def plan(self) -> ComparisonPlan:
        """The comparison that the shard runs."""
        return ComparisonPlan(
            methods=tuple(self.methods()),
            n_tasks=self.n_tasks,
            band=BANDS["hard"],
            split="train",
            first=self.first,
            critic=self.critic,
            model=policy_of(SHIPPED),
            plain=True,
        )


GROUPS, OTHERWISE = {"hard": ("pool", "amc", "control", "keep", "curve")}, ("pool", "amc", "keep")
"""Groups of a band, in order of importance; groups of the other bands."""


def shards() -> list[Shard]:
    """List all shards in running order. The first shards already give complete tables, with fewer seeds."""
    of_shipped = [
        Shard(band, regime, group, SHIPPED, seed)
        for band in BANDS
        for seed in SEEDS
        for group in GROUPS.get(band, OTHERWISE)
        for regime in (HOT, TUNED)
    ]
    others = [Shard("hard", regime, group, FROM_SCRATCH, 0) for group in ("pool", "amc") for regime in (HOT, TUNED)]
    return of_shipped + others


def chosen_for(band: str, policy: int) -> str:
    """Return the key of a band and a policy in `CHOSEN`."""
    return band if policy == SHIPPED else f"{band}-policy{policy}"


def chosen_of(band: str, regime: str, policy: int = SHIPPED) -> dict[str, Tuned]:
    """Return the chosen settings by method; methods not tuned for a policy use the shipped policy's settings."""
    settings = json.loads(CHOSEN.read_text(encoding="utf-8"))
    chosen = settings[band][regime] | settings.get(chosen_for(band, policy), {}).get(regime, {})
    return {name: tuned_of(values) for name, values in chosen.items()}


def methods_of(shard: Shard, chosen: dict[str, Tuned]) -> list[Method]:
    """List the methods of a shard."""
    best, amc = chosen[methods.BEST_OF_N], chosen[methods.AMC]
    pool = replace(methods.best_of_n(replace(best, beta=amc.beta)), name=f"{shard.regime}-pool", n_particles=POOL)
    mine = replace(methods.amc(amc), name=f"{shard.regime}-amc")
    if shard.group == "pool":
        # Greedy play has no temperature; it belongs to the tuned regime.
        alone = [methods.react(chosen[methods.REACT]), methods.react_greedy()] if shard.regime == TUNED else []
        return [pool, *alone]
    if shard.group == "amc":
        hidden = replace(methods.amc_hidden(amc), name=f"{shard.regime}-amc-hidden")
        return [sized(mine, 15), sized(hidden, 15)]
    if shard.group == "control":
        # With rewards only at the end, SMC without a critic weighs all particles equally: at AMC's temperature it shows
        # what AMC would be without its critic.
        rewards = replace(methods.smc(amc), name=f"{shard.regime}-smc")
        blind = replace(
            mine,
            name=f"{shard.regime}-amc-shuffled",
            critic=critic_of(shard.policy, shard.seed, shard.regime, "shuffled"),
        )
        paper = [replace(sized(mine, 15), name="hot-amc-15-paper", beta=PAPERS_BETA)] if shard.regime == HOT else []
        return [sized(rewards, 15), sized(blind, 15), *paper]
    if shard.group == "keep":
        return [replace(sized(mine, 15), name=f"{shard.regime}-amc-keep-15", finished="keep")]
    return [sized(mine, size) for size in SIZES if size != 15]


def sized(method: Method, size: int) -> Method:
    """Give a method N particles, and add N to its name."""
    assert method.resample != Never(), method
    return replace(method, name=f"{method.name}-{size}", n_particles=size)
