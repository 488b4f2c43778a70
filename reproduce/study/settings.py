"""What the study compares: seeds, bands of difficulty, methods, and the shards that it is cut into."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from amc_agents.bench import methods
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.plan import CRAFTING, ComparisonPlan
from amc_agents.bench.tuning import tuned_of
from amc_agents.smc import Never

HOME = Path("reproduce/study")
"""From the root of the repository, where every script of the study is called."""
MODELS = HOME / "models"
CHOSEN = HOME / "chosen.json"
"""What was chosen on training tasks (tune.py), by band and regime."""
RAW = Path("docs/results/study/raw")

SEEDS = (0, 1, 2)
"""Each has value models of its own, trained on its own play of its own tasks, their controls, and its own luck."""
SHIPPED, FROM_SCRATCH = 0, 1
"""Policies. A policy is given, as a black box is; the second, trained alike with another seed, is another box."""
BANDS: dict[str, tuple[int, int] | None] = {"hard": (12, 16), "middle": (8, 11), "easy": (4, 7), "official": None}
"""Least and most steps of the planner's way, of 20 allowed; and the official TextCraft, which has what it has."""
N_TASKS = {"hard": 500, "middle": 500, "easy": 500, "official": 100}
"""Held-out tasks; of the official recipes, the published test split."""
POOL = 20
"""Independent trajectories of a task: Best-of-N for every N up to it comes from subsampling them."""
SIZES = (5, 10, 15, 20)
OFFICIAL, RENAMED = "official", "textcraft-renamed"
TAUGHT, LARGER = "taught", "larger"
"""Bases of value models that were taught on the noisy expert's play first, of the policy's size and larger."""
HOT, TUNED = "hot", "tuned"
"""Sampling at temperature 1, with the rest tuned; and with every method's temperature tuned too."""
TEMPERATURES = {HOT: 1.0, TUNED: 0.5}
"""At which a regime's value model was shown the policy at play."""
PAPERS_BETA = 1.0


def policy_of(policy: int) -> str:
    """The policy's name or folder."""
    return "crafting" if policy == SHIPPED else str(MODELS / str(policy))


def base_of(policy: int, kind: str = "") -> str:
    """The weights that a value model's adapter is put on: the policy's own, or some that were taught first."""
    return str(MODELS / str(policy) / f"base-{kind}") if kind in (TAUGHT, LARGER) else policy_of(policy)


def adapter_of(policy: int, seed: int, regime: str, kind: str = "") -> Path:
    """Where a value model is that was trained on the policy's own play in this regime.

    Kinds: "shuffled" was trained on targets of other trajectories, "official" on the official training tasks; those
    of the ablations are in `ablations.TRAINED`.
    """
    return MODELS / str(policy) / str(seed) / "-".join(["value", regime, *([kind] if kind else [])])


def critic_of(policy: int, seed: int, regime: str, kind: str = "") -> str:
    """The critic's string."""
    return f"embedded:{base_of(policy, kind)}?adapter={adapter_of(policy, seed, regime, kind)}"


@dataclass(frozen=True)
class Shard:
    """A part of the study that runs by itself, in at most 20 minutes on two cores."""

    band: str
    regime: str
    group: str
    policy: int
    seed: int

    @property
    def name(self) -> str:
        """Its folder's, and its packed file's."""
        return f"{self.band}-{self.regime}-{self.group}-policy{self.policy}-seed{self.seed}"

    @property
    def plan(self) -> ComparisonPlan:
        """What it runs."""
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
"""What is run in a band, the most needed first; and in the others."""


def shards() -> list[Shard]:
    """All of the study, in the order in which it is run: a part of it has whole tables, of fewer seeds."""
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
    """Where `CHOSEN` has a band's choices with a policy."""
    return band if policy == SHIPPED else f"{band}-policy{policy}"


def chosen_of(band: str, regime: str, policy: int = SHIPPED) -> dict[str, Tuned]:
    """What was chosen on training tasks, by method; what was not tuned for a policy is the shipped one's."""
    found = json.loads(CHOSEN.read_text(encoding="utf-8"))
    chosen = found[band][regime] | found.get(chosen_for(band, policy), {}).get(regime, {})
    return {name: tuned_of(one) for name, one in chosen.items()}


def methods_of(shard: Shard, chosen: dict[str, Tuned]) -> list[Method]:
    """The methods of one shard."""
    best, amc = chosen[methods.BEST_OF_N], chosen[methods.AMC]
    pool = replace(methods.best_of_n(replace(best, beta=amc.beta)), name=f"{shard.regime}-pool", n_particles=POOL)
    mine = replace(methods.amc(amc), name=f"{shard.regime}-amc")
    if shard.group == "pool":
        # Greedy play knows no temperature: it stands in the tuned regime.
        alone = [methods.react(chosen[methods.REACT]), methods.react_greedy()] if shard.regime == TUNED else []
        return [pool, *alone]
    if shard.group == "amc":
        hidden = replace(methods.amc_hidden(amc), name=f"{shard.regime}-amc-hidden")
        return [sized(mine, 15), sized(hidden, 15)]
    if shard.group == "control":
        # With a reward at the end alone, SMC without a critic weighs all alike: at AMC's own temperature it is the
        # pool that AMC would be without its critic.
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
    """A method with N particles, and a name that says so."""
    assert method.resample != Never(), method
    return replace(method, name=f"{method.name}-{size}", n_particles=size)
