"""Ablations on training tasks of the hardest band.

Each method is the chosen AMC with a single change. The policy is the shipped policy, and the value models are those of
seed 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from amc_agents.bench import methods
from amc_agents.bench.methods import Method
from amc_agents.smc import AtSteps, EssBelow, EveryStep
from reproduce.study.settings import LARGER, SHIPPED, TAUGHT, TUNED, TrainingShard, adapter_of, chosen_of, critic_of

BAND, SEED = "hard", 0
FIRST_TASK, N_TASKS = 600_000, 200
"""Training tasks that no training and no tuning used."""
BASE, BEST = "chosen", "best-of-15"
PLANNER = "reproduce.study.slack:SlackCritic"
"""An oracle (slack.py)."""
STEPS = ((4,), (6,), (8,), (10,), (12,), (4, 8, 12), (8, 12), (3, 6, 9, 12, 15))
SHARES = (0.1, 0.5, 0.9)
"""ESS thresholds of the paper's figures 5 to 7."""
BETAS = (0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
SCHEMES = ("multinomial", "stratified", "residual")
TRAINED = {
    "squared": "eq. 7, squared error",
    "weighted": "exponentially weighted (beta 0.5)",
    "soft": "eq. 5 (beta 0.1)",
    "500": "500 trajectories",
    "1000": "1,000 trajectories",
    "2000": "2,000 trajectories",
    "surrogate": "collected by another policy",
    TAUGHT: "on weights that were taught the noisy expert's play first",
    LARGER: "the same with six layers, not three",
}
"""Value models with a single change from the study's (`models.py 0 --only ablations`)."""
SOFT_BETA = 0.1
SUCCESS = 1.0


def schedules(base: Method) -> Iterable[Method]:
    """Vary the resampling schedule."""
    for steps in STEPS:
        yield replace(base, name="at-" + "-".join(map(str, steps)), resample=AtSteps(*steps))
    for share in SHARES:
        yield replace(base, name=f"ess-{share:g}", resample=EssBelow(share))
    yield replace(base, name="every-step", resample=EveryStep())


def weighing(base: Method) -> Iterable[Method]:
    """Vary beta, with values of eq. 7 and with potentials of eq. 5."""
    for beta in BETAS:
        yield replace(base, name=f"mean-beta-{beta:g}", beta=beta, success_reward=None)
        yield replace(base, name=f"soft-beta-{beta:g}", beta=beta, success_reward=SUCCESS)


def resampling(base: Method) -> Iterable[Method]:
    """Vary the resampling scheme, and keep finished particles."""
    for scheme in SCHEMES:
        yield replace(base, name=scheme, scheme=scheme)
    yield replace(base, name="keep", finished="keep")


def critics(base: Method) -> Iterable[Method]:
    """Vary the critic. A model of eq. 5 needs no conversion; the last critic is an oracle."""
    for kind in TRAINED:
        changed = replace(base, name=f"value-{kind}", critic=critic_of(SHIPPED, SEED, TUNED, kind))
        if adapter_of(SHIPPED, SEED, TUNED, kind).exists():
            yield replace(changed, beta=SOFT_BETA, success_reward=None) if kind == "soft" else changed
    yield replace(base, name="planner", critic=PLANNER)


def ceiling(base: Method) -> Iterable[Method]:
    """Compare the study's critic, a better critic and an oracle with Best-of-15, at two settings for a weak critic."""
    best = chosen_of(BAND, TUNED)[methods.BEST_OF_N]
    yield replace(methods.best_of_n(best), name=BEST)
    gentle = methods.amc(replace(best, steps=(6, 9, 12, 15), beta=0.2, success_reward=SUCCESS))
    yield replace(gentle, name="chosen-gentle")
    for name, critic in ((TAUGHT, critic_of(SHIPPED, SEED, TUNED, TAUGHT)), ("planner", PLANNER)):
        yield replace(base, name=name, critic=critic)
        yield replace(gentle, name=f"{name}-gentle", critic=critic)


GROUPS: dict[str, Callable[[Method], Iterable[Method]]] = {
    "schedules": schedules,
    "weighing": weighing,
    "resampling": resampling,
    "critics": critics,
    "ceiling": ceiling,
}
AGAIN = {"schedules": "at-3-6-9-12-15", "weighing": "mean-beta-0.1"}
"""The chosen settings under other names, and so with other random draws."""
REFERENCE = {"ceiling": BEST}
"""Reference method of a group; the default is the mean of all runs of the chosen AMC."""


def group_methods(group: str) -> list[Method]:
    """The chosen AMC, then the methods of a group."""
    base = replace(methods.amc(chosen_of(BAND, TUNED)[methods.AMC]), name=BASE)
    return [base, *GROUPS[group](base)]


ABLATIONS = {
    group: TrainingShard(
        f"ablation-{group}", partial(group_methods, group), FIRST_TASK, N_TASKS, critic_of(SHIPPED, SEED, TUNED)
    )
    for group in GROUPS
}
"""Group -> its shard."""
