"""The methods that are compared, each with settings of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from amc_agents.critics.spec import KINDS
from amc_agents.errors import ConfigurationError
from amc_agents.lac.types import LacSettings
from amc_agents.settings import Finished
from amc_agents.smc import AtSteps, Never
from amc_agents.smc.schedule import Schedule


@dataclass(frozen=True)
class Method:
    """One way to act in a task: an `amc` run with certain settings."""

    name: str
    """Short and without spaces: the command line and the results name it so."""
    label: str
    """As tables print it."""
    temperature: float = 1.0
    """Sampling temperature of the policy."""
    resample: Schedule = Never()  # noqa: RUF009  (frozen)
    beta: float = 1.0
    """Temperature of the target, in reward units."""
    success_reward: float | None = None
    """As `amc()` takes it: the one return besides 0, from which eq. 5 follows exactly."""
    n_particles: int | None = None
    """None: the comparison's N."""
    critic: str | None = None
    """A critic's string; None: the comparison's critic."""
    hide_rewards: bool = False
    """The run looks at no reward, so its own pick can be deployed."""
    decision: LacSettings | None = None
    """How each step is decided among several candidates (LAC); the critic then judges these. None: it is sampled."""
    oracle: bool = False
    """The critic knows the world: an upper bound, which nobody could deploy."""
    scheme: str = "systematic"
    """Of resampling."""
    finished: Finished = "retire"
    """What becomes of finished particles: "retire" puts them away, "keep" resamples them with the rest."""
    listed: bool = False
    """The candidates are all actions that the world lists; samples only lend their thoughts."""

    @property
    def single(self) -> bool:
        """One trajectory, which needs no choice."""
        return self.n_particles == 1

    @property
    def asks_the_critic(self) -> bool:
        """Its decisions are judged by the comparison's own critic."""
        return self.critic is None and self.decision is not None and self.decision.use_critic

    def as_plain(self) -> dict[str, Any]:
        """The settings as plain values: what the results keep, and what a resumed run must share."""
        return {
            "temperature": self.temperature,
            "resample": repr(self.resample),
            "beta": self.beta,
            "n_particles": self.n_particles,
            "critic": self.critic,
            "hide_rewards": self.hide_rewards,
            **({} if self.decision is None else {"decision": _plain(self.decision), "oracle": self.oracle}),
            **({"listed": True} if self.listed else {}),
            **({} if self.success_reward is None else {"success_reward": self.success_reward}),
            **({"scheme": self.scheme} if self.scheme != "systematic" else {}),
            **({"finished": self.finished} if self.finished != "retire" else {}),
        }


@dataclass(frozen=True)
class Tuned:
    """What is chosen for one method on training tasks."""

    temperature: float = 1.0
    steps: tuple[int, ...] = ()
    """Where to resample; empty: nowhere."""
    beta: float = 1.0
    success_reward: float | None = None
    """As `Method` has it."""
    alpha: float = 1.0
    """Weight of the critic in a decision."""
    k: int = 5
    """K, samples that a decision is made among."""

    @property
    def schedule(self) -> Schedule:
        """The steps as a schedule."""
        return AtSteps(*self.steps) if self.steps else Never()


REACT, REACT_GREEDY, BEST_OF_N, SMC, AMC, AMC_HIDDEN = (
    "react", "react-greedy", "best-of-n", "smc", "amc", "amc-hidden",
)  # fmt: skip
VOTE, VOTE_GREEDY, LAC, LAC_GREEDY, CRITIC_ONLY = "vote", "vote-greedy", "lac", "lac-greedy", "critic-only"
LAC_ORACLE, LAC_ORACLE_GREEDY = "lac-oracle", "lac-oracle-greedy"
VOTE_LIST, LAC_LIST, LAC_LIST_ORACLE = "vote-list", "lac-list", "lac-list-oracle"
ALPHAS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Weights of the critic that the paper tries (LAC, table 12)."""
GROUPS = {
    "decisions": (REACT, REACT_GREEDY, VOTE, VOTE_GREEDY, LAC, LAC_GREEDY, CRITIC_ONLY),
    "alphas": tuple(f"lac-alpha-{alpha:g}" for alpha in ALPHAS),
}
"""A name for several methods at once."""


def react(tuned: Tuned = Tuned()) -> Method:
    """One sampled trajectory."""
    return Method(REACT, "ReAct", temperature=tuned.temperature, n_particles=1, critic="uniform")


def react_greedy() -> Method:
    """One trajectory of likeliest tokens."""
    return Method(REACT_GREEDY, "ReAct, greedy", temperature=0.0, n_particles=1, critic="uniform")


def best_of_n(tuned: Tuned = Tuned()) -> Method:
    """N independent trajectories, made and chosen among without rewards: only the oracle's pick looks at them."""
    return Method(BEST_OF_N, "Best-of-N", temperature=tuned.temperature, beta=tuned.beta, hide_rewards=True)


def smc(tuned: Tuned) -> Method:
    """Resampling by the rewards seen alone: f = 0."""
    return Method(SMC, "SMC, rewards only", tuned.temperature, tuned.schedule, tuned.beta, critic="uniform")


def amc(tuned: Tuned) -> Method:
    """Resampling by the rewards seen and the critic's prediction of those to come."""
    return Method(AMC, "AMC", tuned.temperature, tuned.schedule, tuned.beta, tuned.success_reward)


def amc_hidden(tuned: Tuned) -> Method:
    """The whole run by the critic alone, as one would deploy it."""
    return replace(amc(tuned), name=AMC_HIDDEN, label="AMC, rewards hidden", hide_rewards=True)


def vote(tuned: Tuned = Tuned(), *, greedy: bool = False) -> Method:
    """Each step is the most frequent of K samples: LAC without a critic. With `greedy`, the greedy turn votes too."""
    settings = LacSettings(k=tuned.k, greedy=greedy, use_critic=False)
    name, label = (VOTE_GREEDY, "vote + greedy") if greedy else (VOTE, "vote")
    return Method(name, label, tuned.temperature, n_particles=1, critic="uniform", decision=settings)


def lac(
    tuned: Tuned = Tuned(),
    *,
    name: str = LAC,
    label: str = "LAC",
    critic: str | None = None,
    **settings: Any,
) -> Method:
    """Each step is decided among K samples by prior x exp(alpha Q).

    Args:
        tuned: temperature, alpha and K.
        name: of the method.
        label: of the method.
        critic: judges candidate actions; None: the comparison's.
        **settings: of the decision, as `LacSettings` has them; they go before the tuned ones.
    """
    decision = LacSettings(**{"alpha": tuned.alpha, "k": tuned.k, **settings})
    return Method(name, label, tuned.temperature, n_particles=1, critic=critic, decision=decision)


def lac_variants(tuned: Tuned, *, critic: str | None = None, oracle: str | None = None) -> list[Method]:
    """LAC and what is left of it when a part is taken away or added, all at one temperature.

    Args:
        tuned: temperature, alpha and K.
        critic: judges candidate actions; None: the comparison's.
        oracle: a critic that knows the world: what could be had at most from these candidates.
    """
    variants = [
        lac(tuned, critic=critic),
        lac(tuned, name=LAC_GREEDY, label="LAC + greedy", critic=critic, greedy=True),
        lac(tuned, name=CRITIC_ONLY, label="LAC, critic only", critic=critic, alpha=math.inf),
        lac(tuned, name="lac-thoughts", label="LAC, prior of thoughts", critic=critic, prior="thoughts"),
        lac(tuned, name="lac-rollout", label="LAC, 1 step imagined", critic=critic, depth=1),
        lac(tuned, name="lac-rollout-4", label="LAC, 4 steps imagined", critic=critic, depth=4),
        *(
            lac(tuned, name=f"lac-alpha-{alpha:g}", label=f"LAC, alpha {alpha:g}", critic=critic, alpha=alpha)
            for alpha in ALPHAS
        ),
    ]
    if oracle is not None:
        best = lac(tuned, name=LAC_ORACLE, label="LAC, ORACLE critic", critic=oracle)
        more = lac(tuned, name=LAC_ORACLE_GREEDY, label="LAC + greedy, ORACLE", critic=oracle, greedy=True)
        variants += [replace(best, oracle=True), replace(more, oracle=True)]
    return variants


def listed_variants(tuned: Tuned, *, critic: str | None = None, oracle: str | None = None) -> list[Method]:
    """Vote and LAC over all actions that a world lists, under the mean over K thoughts of the exact prior.

    Args:
        tuned: temperature, alpha and K.
        critic: judges candidate actions; None: the comparison's.
        oracle: a critic that knows the world.
    """
    voting = lac(tuned, name=VOTE_LIST, label="vote, listed", critic="uniform", prior="thoughts", use_critic=False)
    variants = [voting, lac(tuned, name=LAC_LIST, label="LAC, listed", critic=critic, prior="thoughts")]
    if oracle is not None:
        best = lac(tuned, name=LAC_LIST_ORACLE, label="LAC, listed, ORACLE", critic=oracle, prior="thoughts")
        variants.append(replace(best, oracle=True))
    return [replace(one, listed=True) for one in variants]


def without_critic_first(methods: Iterable[Method]) -> list[Method]:
    """The methods in an order in which each comes after what it is held against."""
    return sorted(methods, key=lambda one: one.decision is not None and one.decision.use_critic)


def judged(model: str, tuned: Tuned) -> list[Method]:
    """SMC by what a chat model says of a trajectory: zero-shot, and with the prompt of Fleet of Agents (FoA).

    Args:
        model: the chat model, as `provider:model`.
        tuned: the settings of AMC are the natural ones.

    Returns:
        The methods whose kind of critic is known to `parse_critic`.
    """
    labels = {"judge": ("smc-zero-shot", "SMC, zero-shot"), "foa": ("smc-foa", "SMC, FoA")}
    return [
        Method(name, label, tuned.temperature, tuned.schedule, tuned.beta, critic=f"{kind}:{model}")
        for kind, (name, label) in labels.items()
        if kind in KINDS
    ]


def chosen(methods: Sequence[Method], names: Iterable[str] | None) -> list[Method]:
    """The methods of these names or of these groups of names, in the order of `methods`; None: all.

    Raises:
        ConfigurationError: a name that is not among them.
    """
    if names is None:
        return list(methods)
    wanted = [one for name in names for one in GROUPS.get(name, (name,))]
    known = [method.name for method in methods]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        groups = "; ".join(f"{name} = {', '.join(members)}" for name, members in GROUPS.items())
        raise ConfigurationError(
            f"no method {', '.join(unknown) or 'given'}; there are: {', '.join(known)}; and for several: {groups}"
        )
    return [method for method in methods if method.name in wanted]


def _plain(settings: LacSettings) -> dict[str, Any]:
    # JSON has no infinity.
    alpha = settings.alpha if math.isfinite(settings.alpha) else "infinity"
    return asdict(settings) | {"alpha": alpha, "returns": list(settings.returns)}
