"""The methods of a comparison, and the settings of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from amc_agents.errors import ConfigurationError
from amc_agents.lac.types import LacSettings
from amc_agents.pnlc.types import PnlcSettings
from amc_agents.population.race_settings import By, Race
from amc_agents.quoting import quoted
from amc_agents.settings import AmcSettings, Beta, Finished
from amc_agents.smc import Adaptive, AtSteps, Never
from amc_agents.smc.resampling import Schedule


@dataclass(frozen=True)
class Method:
    """One way to act in a task: a run of `amc` with these settings."""

    name: str
    """Short name without spaces, for the command line and the results."""
    label: str
    """Name in tables."""
    temperature: float = 1.0
    """Sampling temperature of the policy."""
    resample: Schedule = Never()  # noqa: RUF009  (frozen)
    beta: Beta = 1.0
    success_reward: float | None = AmcSettings.success_reward
    n_particles: int | Adaptive | None = None
    """None: the comparison's N."""
    critic: str | None = None
    """Critic string; None: the comparison's critic."""
    hide_rewards: bool = False
    """The run does not use rewards, so its own pick can be deployed."""
    decision: LacSettings | None = None
    """Settings for deciding each step among candidates that the critic judges (LAC); None: the step is sampled."""
    oracle: bool = False
    """The critic sees the world's hidden state: an upper bound that cannot be deployed."""
    scheme: str = AmcSettings.scheme
    finished: Finished = AmcSettings.finished
    listed: bool = False
    """The candidates are all actions that the world lists; samples only contribute their thoughts."""
    stop_at: float | None = AmcSettings.stop_at
    """A return at which the run ends; None: never."""
    tree: TreeSettings | None = None
    """Settings of a tree search instead of a run of particles; None: no tree search."""
    trials: int | None = None
    """Number of trials of Reflexion, which takes the place of a run of particles; None: no Reflexion."""
    planning: PnlcSettings | None = None
    """Settings by which the policy chooses among its own turns, without a critic; None: the step is sampled."""
    system: str | None = None
    """System message before the task's instruction; None: no such message."""
    temperatures: tuple[float, ...] = ()
    """Temperatures of the particles, in turn (`amc(proposals=...)`); empty: `temperature` for all."""
    race: Race | None = None
    """The first particles to finish decide, and the others are stopped: the answer alone is scored. None: no race."""

    def __post_init__(self) -> None:
        """Refuse several temperatures where no population of particles is run.

        Raises:
            ConfigurationError: a tree search or Reflexion with several temperatures.
        """
        if self.temperatures and (self.tree is not None or self.trials is not None):
            raise ConfigurationError(
                f"the method {quoted(self.name)} has several temperatures, which are for a population's particles; "
                "a tree search and Reflexion have none: set `temperature` instead"
            )

    @property
    def single(self) -> bool:
        """True if the run has a single trajectory."""
        return self.n_particles == 1

    @property
    def asks_the_critic(self) -> bool:
        """True if the comparison's own critic judges the decisions."""
        return self.critic is None and self.decision is not None and self.decision.use_critic

    def as_plain(self) -> dict[str, Any]:
        """Return the settings as plain values, which results store and a resumed run must share.

        Settings that were added later are left out at their default, so that older folders can be resumed.
        """
        plain = {
            "temperature": self.temperature,
            "resample": repr(self.resample),
            "beta": self.beta,
            "n_particles": plain_size(self.n_particles),
            "critic": self.critic,
            "hide_rewards": self.hide_rewards,
        }
        if self.decision is not None:
            plain |= {"decision": _plain(self.decision), "oracle": self.oracle}
        defaults = {setting.name: setting.default for setting in fields(self)}
        later = ("listed", "success_reward", "scheme", "finished", "stop_at", "trials", "system")
        if self.tree is not None:
            plain["tree"] = asdict(self.tree)
        if self.planning is not None:
            plain["planning"] = asdict(self.planning) | {"returns": list(self.planning.returns)}
        if self.temperatures:
            plain["temperatures"] = list(self.temperatures)
        if self.race is not None:
            plain["race"] = self.race.as_plain()
        return plain | {name: getattr(self, name) for name in later if getattr(self, name) != defaults[name]}


@dataclass(frozen=True)
class Tuned:
    """The settings of a method that are tuned on training tasks."""

    temperature: float = 1.0
    steps: tuple[int, ...] = ()
    """Steps after which to resample; empty: never."""
    beta: float = 1.0
    success_reward: float | None = AmcSettings.success_reward
    alpha: float = LacSettings.alpha
    k: int = LacSettings.k
    n_particles: int | None = None
    """None: the comparison's N."""

    @property
    def schedule(self) -> Schedule:
        """The steps as a schedule."""
        return AtSteps(*self.steps) if self.steps else Never()


@dataclass(frozen=True)
class TreeSettings:
    """Settings of a tree search. The policy proposes actions, and a critic evaluates the states that they lead to."""

    kind: Literal["beam", "mcts"]
    """"beam": Tree of Thoughts, breadth first. "mcts": LATS, without its reflections."""
    samples: int
    """K: turns sampled at each expanded state; equal turns become a single child."""
    width: int = 1
    """Beam only: states that are kept after each step."""
    max_calls: int = 200
    """MCTS only: no state is expanded if the policy's calls would exceed this number."""
    exploration: float = 1.0
    """MCTS only: w, the weight of the exploration term of UCT."""

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        if self.kind not in ("beam", "mcts") or min(self.samples, self.width) < 1 or self.exploration < 0:
            raise ConfigurationError(
                f"expected kind beam or mcts, samples and width of at least 1 and exploration of at least 0, got {self}"
            )
        if self.kind == "mcts" and self.max_calls < self.samples:
            raise ConfigurationError(
                f"max_calls={self.max_calls} does not allow a single expansion of {self.samples} samples: raise it"
            )


REACT, REACT_GREEDY, BEST_OF_N, SMC, AMC, AMC_SEVERAL, AMC_HIDDEN = (
    "react", "react-greedy", "best-of-n", "smc", "amc", "amc-several", "amc-hidden",
)  # fmt: skip
VOTE, VOTE_GREEDY, LAC, LAC_GREEDY, CRITIC_ONLY = "vote", "vote-greedy", "lac", "lac-greedy", "critic-only"
TREE_OF_THOUGHTS, LATS = "tot", "lats"
STOPPING = "-stop"
"""Ends the name of a method that ends at its first success."""
RACES: dict[By, str] = {by: f"race-{by}" for by in get_args(By)}
"""What is first -> the name of the race, as in `amc advise`."""
REFLACT, SELF_PLAN, REFLEXION = "reflact", "self-plan", "reflexion"
PROMPTED = (REFLACT, SELF_PLAN, REFLEXION)
"""The methods whose policy must follow instructions."""
LAC_ORACLE, LAC_ORACLE_GREEDY = "lac-oracle", "lac-oracle-greedy"
VOTE_LIST, LAC_LIST, LAC_LIST_ORACLE = "vote-list", "lac-list", "lac-list-oracle"
REFLECTING = """\
At every turn, first reflect: state where you are and what you have, in relation to the goal of the task. Then choose
the next action by this reflection. Answer in this form, and write nothing else:

Reflection: <your state in relation to the goal>
Action: <the next action>\
"""
"""Instruction of ReflAct (Kim et al. 2025), in our words."""
ALPHAS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Weights of the critic in the paper (LAC, table 12)."""
GROUPS = {
    "decisions": (REACT, REACT_GREEDY, VOTE, VOTE_GREEDY, LAC, LAC_GREEDY, CRITIC_ONLY),
    "trees": (TREE_OF_THOUGHTS, LATS),
    "prompted": PROMPTED,
    "race": tuple(RACES.values()),
    "alphas": tuple(f"lac-alpha-{alpha:g}" for alpha in ALPHAS),
}
"""Names of several methods at once."""


def react(tuned: Tuned = Tuned()) -> Method:
    """Sample one trajectory."""
    return Method(REACT, "ReAct", temperature=tuned.temperature, n_particles=1, critic="uniform")


def react_greedy() -> Method:
    """Decode one trajectory greedily."""
    return Method(REACT_GREEDY, "ReAct, greedy", temperature=0.0, n_particles=1, critic="uniform")


def best_of_n(tuned: Tuned = Tuned()) -> Method:
    """Sample N independent trajectories, and pick without rewards; only the oracle's pick uses them."""
    return Method(BEST_OF_N, "Best-of-N", temperature=tuned.temperature, beta=tuned.beta, hide_rewards=True)


def smc(tuned: Tuned) -> Method:
    """Resample by observed rewards only: f = 0."""
    return Method(SMC, "SMC, rewards only", tuned.temperature, tuned.schedule, tuned.beta, critic="uniform")


def amc(tuned: Tuned) -> Method:
    """Resample by observed rewards and the critic's prediction of future rewards."""
    return Method(AMC, "AMC", tuned.temperature, tuned.schedule, tuned.beta, tuned.success_reward)


def amc_several(tuned: Tuned, *, apart: float = 0.2) -> Method:
    """Run AMC with several proposals: particles at the tuned temperature, and that much below and above it."""
    temperatures = tuple(round(tuned.temperature + step, 6) for step in (-apart, 0.0, apart))
    return replace(amc(tuned), name=AMC_SEVERAL, label="AMC, several proposals", temperatures=temperatures)


def amc_hidden(tuned: Tuned) -> Method:
    """Resample and pick by the critic only, as in deployment."""
    return replace(amc(tuned), name=AMC_HIDDEN, label="AMC, rewards hidden", hide_rewards=True)


def tree_of_thoughts(tuned: Tuned = Tuned(), *, width: int = 5, samples: int = 3) -> Method:
    """Keep the best states of each step by the critic: as many policy calls per step as width x samples particles."""
    tree = TreeSettings("beam", samples, width)
    return Method(TREE_OF_THOUGHTS, "Tree of Thoughts", tuned.temperature, tree=tree)


def lats(tuned: Tuned = Tuned(), *, max_calls: int = 200, samples: int = 5) -> Method:
    """Search by UCT with the critic's values, within a number of policy calls."""
    return Method(LATS, "LATS", tuned.temperature, tree=TreeSettings("mcts", samples, max_calls=max_calls))


def reflexion(tuned: Tuned = Tuned(), *, trials: int = 3) -> Method:
    """Repeat the task after a reflection on each failure. The policy must be able to write reflections."""
    return Method(REFLEXION, "Reflexion", tuned.temperature, n_particles=1, critic="uniform", trials=trials)


def self_plan(tuned: Tuned = Tuned()) -> Method:
    """Let the policy itself choose among K of its turns at each step. It must be able to answer questions."""
    planning = PnlcSettings(critique="self", refine=False, k=tuned.k)
    return Method(SELF_PLAN, "Self-Plan", tuned.temperature, n_particles=1, critic="uniform", planning=planning)


def reflact(tuned: Tuned = Tuned()) -> Method:
    """Sample a trajectory whose thoughts compare the state with the goal. The policy must follow instructions."""
    return replace(with_reflection(react(tuned)), name=REFLACT, label="ReflAct")


def with_reflection(method: Method) -> Method:
    """Return a method whose policy writes ReflAct's reflections instead of thoughts."""
    return replace(method, name=f"{method.name}-reflact", label=f"{method.label} (ReflAct)", system=REFLECTING)


def stopping(method: Method, success: float = 1.0) -> Method:
    """Return the method with the end at its first success, as tree search ends, for comparisons at equal calls."""
    name, label = f"{method.name}{STOPPING}", f"{method.label}, first success ends it"
    return replace(method, name=name, label=label, hide_rewards=False, stop_at=success)


def stopping_methods(parallel: Method, steered: Method, success: float) -> list[Method]:
    """Return Best-of-N and AMC that end at their first success."""
    # Best-of-N in parallel with rewards in sight: f = 0 and no resampling.
    return [stopping(replace(parallel, critic="uniform"), success), stopping(steered, success)]


def races(parallel: Method, finish: int = 1) -> list[Method]:
    """Return races by the clock, by steps and by tokens.

    Args:
        parallel: Best-of-N, whose particles race.
        finish: number of particles that end a race; the critic chooses among them.
    """
    labels: dict[By, str] = {"clock": "race by the clock", "steps": "race by steps", "tokens": "race by tokens"}
    several = "" if finish == 1 else f", first {finish}"
    critic = "uniform" if finish == 1 else parallel.critic
    return [
        replace(parallel, name=RACES[by], label=label + several, critic=critic, race=Race(by=by, finish=finish))
        for by, label in labels.items()
    ]


def vote(tuned: Tuned = Tuned(), *, greedy: bool = False) -> Method:
    """Take the most frequent of K samples at each step: LAC without a critic.

    With `greedy`, the greedy turn votes too.
    """
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
    """Decide each step among K samples by prior x exp(alpha Q).

    Args:
        tuned: temperature, alpha and K.
        name: name of the method.
        label: name in tables.
        critic: judges candidate actions; None: the comparison's critic.
        **settings: fields of `LacSettings`; they override the tuned ones.
    """
    decision = LacSettings(**{"alpha": tuned.alpha, "k": tuned.k, **settings})
    return Method(name, label, tuned.temperature, n_particles=1, critic=critic, decision=decision)


def lac_variants(tuned: Tuned, *, critic: str | None = None, oracle: str | None = None) -> list[Method]:
    """Return LAC and its ablations, all at one temperature.

    Args:
        tuned: temperature, alpha and K.
        critic: judges candidate actions; None: the comparison's critic.
        oracle: an oracle critic, for an upper bound with the same candidates.
    """
    variants = [
        lac(tuned, critic=critic),
        lac(tuned, name=LAC_GREEDY, label="LAC + greedy", critic=critic, greedy=True),
        lac(tuned, name=CRITIC_ONLY, label="LAC, critic only", critic=critic, alpha=math.inf),
        lac(tuned, name="lac-thoughts", label="LAC, prior of thoughts", critic=critic, prior="thoughts"),
        *(
            lac(tuned, name=f"lac-alpha-{alpha:g}", label=f"LAC, alpha {alpha:g}", critic=critic, alpha=alpha)
            for alpha in ALPHAS
        ),
    ]
    if oracle is not None:
        bound = lac(tuned, name=LAC_ORACLE, label="LAC, ORACLE critic", critic=oracle)
        greedy = lac(tuned, name=LAC_ORACLE_GREEDY, label="LAC + greedy, ORACLE", critic=oracle, greedy=True)
        variants += [replace(bound, oracle=True), replace(greedy, oracle=True)]
    return variants


def listed_variants(tuned: Tuned, *, critic: str | None = None, oracle: str | None = None) -> list[Method]:
    """Return voting and LAC over all actions that a world lists, with the mean exact prior of K thoughts.

    Args:
        tuned: temperature, alpha and K.
        critic: judges candidate actions; None: the comparison's critic.
        oracle: an oracle critic.
    """
    voting = lac(tuned, name=VOTE_LIST, label="vote, listed", critic="uniform", prior="thoughts", use_critic=False)
    variants = [voting, lac(tuned, name=LAC_LIST, label="LAC, listed", critic=critic, prior="thoughts")]
    if oracle is not None:
        bound = lac(tuned, name=LAC_LIST_ORACLE, label="LAC, listed, ORACLE", critic=oracle, prior="thoughts")
        variants.append(replace(bound, oracle=True))
    return [replace(method, listed=True) for method in variants]


def without_critic_first(methods: Iterable[Method]) -> list[Method]:
    """Sort methods so that each comes after the methods without a critic that it is compared with."""
    return sorted(methods, key=lambda method: method.decision is not None and method.decision.use_critic)


def judged(model: str, tuned: Tuned) -> list[Method]:
    """Return SMC with a chat model as critic: zero-shot, and with the prompt of Fleet of Agents (FoA).

    Args:
        model: the chat model, as `provider:model`.
        tuned: usually the settings of AMC.
    """
    labels = {"judge": ("smc-zero-shot", "SMC, zero-shot"), "foa": ("smc-foa", "SMC, FoA")}
    return [
        Method(name, label, tuned.temperature, tuned.schedule, tuned.beta, critic=f"{kind}:{model}")
        for kind, (name, label) in labels.items()
    ]


def chosen(methods: Sequence[Method], names: Iterable[str] | None) -> list[Method]:
    """Select methods by their names or the names of groups, in the order of `methods`; None: all.

    Raises:
        ConfigurationError: a name is unknown.
    """
    if names is None:
        return list(methods)
    wanted = named(names)
    known = [method.name for method in methods]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        groups = "; ".join(f"{name} = {', '.join(members)}" for name, members in GROUPS.items())
        raise ConfigurationError(
            f"no method {', '.join(unknown) or 'given'}; there are: {', '.join(known)}; and for several: {groups}"
        )
    return [method for method in methods if method.name in wanted]


def named(names: Iterable[str]) -> list[str]:
    """Return names with those of groups replaced by their members."""
    return [member for name in names for member in GROUPS.get(name, (name,))]


def plain_size(size: int | Adaptive | None) -> int | str | None:
    """Convert a number of particles to plain values."""
    return str(size) if isinstance(size, Adaptive) else size


def _plain(settings: LacSettings) -> dict[str, Any]:
    # JSON has no infinity.
    alpha = settings.alpha if math.isfinite(settings.alpha) else "infinity"
    return asdict(settings) | {"alpha": alpha, "returns": list(settings.returns)}
