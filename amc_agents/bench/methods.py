"""The methods that are compared, each with settings of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from amc_agents.critics.spec import KINDS
from amc_agents.errors import ConfigurationError
from amc_agents.smc import AtSteps, Never
from amc_agents.smc.schedule import Schedule


@dataclass(frozen=True)
class Method:
    """One way to act in a task: an `amc` run with certain settings. Always `finished="retire"`."""

    name: str
    """Short and without spaces: the command line and the results name it so."""
    label: str
    """As tables print it."""
    temperature: float = 1.0
    """Sampling temperature of the policy."""
    resample: Schedule = Never()  # noqa: RUF009  (frozen)
    beta: float = 1.0
    """Temperature of the target, in reward units."""
    n_particles: int | None = None
    """None: the comparison's N."""
    critic: str | None = None
    """A critic's string; None: the comparison's critic."""
    hide_rewards: bool = False
    """The run looks at no reward, so its own pick can be deployed."""

    @property
    def single(self) -> bool:
        """One trajectory, which needs no choice."""
        return self.n_particles == 1

    def as_plain(self) -> dict[str, Any]:
        """The settings as plain values: what the results keep, and what a resumed run must share."""
        return {
            "temperature": self.temperature,
            "resample": repr(self.resample),
            "beta": self.beta,
            "n_particles": self.n_particles,
            "critic": self.critic,
            "hide_rewards": self.hide_rewards,
        }


@dataclass(frozen=True)
class Tuned:
    """What is chosen for one method on training tasks."""

    temperature: float = 1.0
    steps: tuple[int, ...] = ()
    """Where to resample; empty: nowhere."""
    beta: float = 1.0

    @property
    def schedule(self) -> Schedule:
        """The steps as a schedule."""
        return AtSteps(*self.steps) if self.steps else Never()


REACT, REACT_GREEDY, BEST_OF_N, SMC, AMC, AMC_HIDDEN = (
    "react", "react-greedy", "best-of-n", "smc", "amc", "amc-hidden",
)  # fmt: skip


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
    return Method(AMC, "AMC", tuned.temperature, tuned.schedule, tuned.beta)


def amc_hidden(tuned: Tuned) -> Method:
    """The whole run by the critic alone, as one would deploy it."""
    return Method(AMC_HIDDEN, "AMC, rewards hidden", tuned.temperature, tuned.schedule, tuned.beta, hide_rewards=True)


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
    """The methods of these names, in the order of `methods`; None: all.

    Raises:
        ConfigurationError: a name that is not among them.
    """
    if names is None:
        return list(methods)
    wanted = list(names)
    known = [method.name for method in methods]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ConfigurationError(f"no method {', '.join(unknown) or 'given'}; there are: {', '.join(known)}")
    return [method for method in methods if method.name in wanted]
