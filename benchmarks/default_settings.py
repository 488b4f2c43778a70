"""Compare the default schedule and beta="auto" with others: in a world of scripted steps, and with the shipped models.

    python benchmarks/default_settings.py ladder
    python benchmarks/default_settings.py play crafting [--tasks 100]

`ladder` plays AMC's filter without an agent (`amc_agents.smc`, N = 15): each step of a task is good with the task's own
probability, and a run succeeds if few enough steps were bad. Critics: a judge that answers in steps of .05 around the
true probability of success, with noise; a value model with little noise; and rewards alone, at each good step or at the
end. `play` runs `amc` with the policy and the value model of a registered world, rewards hidden. Shards of it resume.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amc_agents import smc
from amc_agents.bench.methods import Method
from amc_agents.bench.plan import ComparisonPlan, run_plan
from amc_agents.bench.report import measured
from amc_agents.bench.statistics import Measured, estimate, paired
from amc_agents.markdown import table
from amc_agents.settings import AmcSettings, Beta
from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never, Schedule
from amc_agents.types import FloatArray

N, N_TASKS, N_SEEDS, N_TRAINING = 15, 120, 5, 30
BETAS = (0.03, 0.1, 0.3)
RUNS = Path("runs/defaults")
DEFAULT = AmcSettings.resample
EARLIER = AtSteps(1, 2, 4, 8, 16, 32)


class LadderTask(NamedTuple):
    """A task of `length` steps, each good with probability `skill`; at most `allowed` bad ones are a success."""

    length: int
    skill: float
    allowed: int


class Judged(NamedTuple):
    """A critic: its answers from the true probabilities of success, and their resolution."""

    answer: Callable[[FloatArray, np.random.Generator], FloatArray]
    resolution: float = 0.0
    rewards: str | None = None
    """None: the critic alone; "dense" or "sparse": rewards alone."""


def noisy(sigma: float, rounding: float = 0.0) -> Callable[[FloatArray, np.random.Generator], FloatArray]:
    def answer(truth: FloatArray, rng: np.random.Generator) -> FloatArray:
        values = np.clip(truth + rng.normal(0.0, sigma, truth.shape), 0.0, 1.0)
        return np.round(values / rounding) * rounding if rounding else values

    return answer


CRITICS = {
    "judge, noise .1": Judged(noisy(0.1, 0.05), 0.01),
    "judge, noise .25": Judged(noisy(0.25, 0.05), 0.01),
    "value model, noise .03": Judged(noisy(0.03)),
    "rewards at each good step": Judged(noisy(0.0), rewards="dense"),
    "a reward at the end": Judged(noisy(0.0), rewards="sparse"),
}
SETTINGS: dict[str, tuple[Schedule, Beta | None]] = {
    "4, beta 1 (before)": (AtSteps(4), 1.0),
    "4, auto": (AtSteps(4), "auto"),
    "2 4 8 16 32, beta 1": (DEFAULT, 1.0),
    "2 4 8 16 32, auto": (DEFAULT, "auto"),
    "2 4 8 16 32, tuned": (DEFAULT, None),
    "1 2 4 8 16 32, auto": (EARLIER, "auto"),
    "every step, auto": (EveryStep(), "auto"),
    "every step, tuned": (EveryStep(), None),
    "ESS below .5, auto": (EssBelow(0.5), "auto"),
    "ESS below .5, tuned": (EssBelow(0.5), None),
    "never (Best-of-N)": (Never(), 1.0),
}
"""Schedule and beta; None: the best of `BETAS` on training tasks, for each critic."""
NEW = "2 4 8 16 32, auto"


def ladder_tasks(n_tasks: int, seed: int) -> list[LadderTask]:
    """Draw tasks in which a single run succeeds in 2% to 50% of the cases."""
    rng = np.random.default_rng(seed)
    tasks: list[LadderTask] = []
    while len(tasks) < n_tasks:
        made = LadderTask(int(rng.choice([3, 6, 12, 24])), float(rng.uniform(0.3, 0.95)), int(rng.integers(0, 5)))
        if 0.02 <= float(at_most(np.array(made.allowed), made.length, 1 - made.skill)) <= 0.5:
            tasks.append(made)
    return tasks


def at_most(allowed: Any, steps: int, miss: float) -> FloatArray:
    """Probability of at most `allowed` misses in some steps; 0 for a negative number."""
    mass = [math.comb(steps, k) * miss**k * (1 - miss) ** (steps - k) for k in range(steps + 1)]
    cumulated: FloatArray = np.append(np.cumsum(mass), 0.0)[np.clip(allowed, -1, steps)]
    return cumulated


def ladder_run(
    task: LadderTask, critic: Judged, schedule: Schedule, beta: Beta, rng: np.random.Generator
) -> tuple[float, float]:
    """Play one run; return whether its answer is a success, and the share of successful particles."""
    state, bad, step = smc.init(N), np.zeros(N, dtype=int), 0
    chosen: float | None = None if isinstance(beta, str) else beta
    while step < task.length:
        point = schedule.next_point(step)
        until = task.length if point is None else min(point, task.length)
        bad = bad + rng.binomial(until - step, 1 - task.skill, N)
        step = until
        returns, predicted, resolution = _seen(task, critic, step, bad, rng)
        if chosen is None:
            chosen = smc.halving_beta(returns, predicted, resolution)
        phi = np.zeros(N) if chosen is None else smc.potentials(returns, predicted, chosen)
        state = smc.weigh(state, phi)
        if step == task.length or chosen is None or not schedule.triggered(step, state.log_weights):
            continue
        state, info = smc.resample(rng, state, np.zeros(N, dtype=bool), scheme="systematic", mode="retire")
        bad = bad[info.ancestors]
    succeeds = bad <= task.allowed
    return float(succeeds[int(np.argmax(returns + predicted))]), float(succeeds.mean())


def _seen(
    task: LadderTask, critic: Judged, step: int, bad: Any, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, float]:
    """The returns so far, the predictions, and the resolution as `population.weighing` has it."""
    nothing, ended = np.zeros(N), step == task.length
    if critic.rewards == "dense":
        return (step - bad) / task.length + 1.0 * (ended & (bad <= task.allowed)), nothing, 1e-9
    if critic.rewards == "sparse":
        return 1.0 * (ended & (bad <= task.allowed)), nothing, 1e-9
    truth = at_most(task.allowed - bad, task.length - step, 1 - task.skill)
    predicted = critic.answer(truth, rng)
    return nothing, predicted, max(critic.resolution, 0.005 * float(predicted.max()))


def ladder_scores(
    tasks: Sequence[LadderTask], critic: Judged, schedule: Schedule, beta: Beta, seed: int
) -> tuple[Measured, Measured]:
    """The answers' successes, and the particles', by task and seed."""
    answers: dict[tuple[str, int], float] = {}
    particles: dict[tuple[str, int], float] = {}
    for number, task in enumerate(tasks):
        for run in range(N_SEEDS):
            key = (str(number), run)
            rng = np.random.default_rng([seed, number, run])
            answers[key], particles[key] = ladder_run(task, critic, schedule, beta, rng)
    return answers, particles


def ladder() -> None:
    """Play all settings with all critics, and write the table."""
    tasks, training = ladder_tasks(N_TASKS, 0), ladder_tasks(N_TRAINING, 1)
    rows = []
    for name, critic in CRITICS.items():
        found: dict[str, tuple[Measured, Measured]] = {}
        shown: dict[str, Beta] = {}
        for setting, (schedule, given) in SETTINGS.items():
            tried = {beta: estimate(ladder_scores(training, critic, schedule, beta, 2)[0]).mean for beta in BETAS} if (
                given is None) else {}  # fmt: skip
            beta: Beta = max(tried.items(), key=lambda each: each[1])[0] if given is None else given
            found[setting], shown[setting] = ladder_scores(tasks, critic, schedule, beta, 3), beta
            print(name, setting, beta, estimate(found[setting][0]), flush=True)
        for setting, (answers, particles) in found.items():
            against = "" if setting == NEW else _interval(found[NEW][0], answers)
            rows.append([name, setting if SETTINGS[setting][1] is not None else f"{setting} ({shown[setting]:g})",
                         f"{estimate(answers).mean:.3f}", f"{estimate(particles).mean:.3f}", against])  # fmt: skip
    _show(rows)


PLAYED = {
    "before": Method("before", "4, beta 1 (before)", 0.4, AtSteps(4), 1.0, hide_rewards=True),
    "default": Method("default", NEW, 0.4, DEFAULT, "auto", hide_rewards=True),
    "beta-1": Method("beta-1", "2 4 8 16 32, beta 1", 0.4, DEFAULT, 1.0, hide_rewards=True),
    "tuned": Method("tuned", "6 12, beta .1 (tuned)", 0.4, AtSteps(6, 12), 0.1, hide_rewards=True),
}
"""The temperature and the last setting are those tuned for AMC in the crafting world."""


def play(world: str, n_tasks: int) -> None:
    """Run `amc` with a world's own policy and value model; a task's settings one after the other."""
    plan = ComparisonPlan(tuple(PLAYED.values()), n_tasks, world, split="test", first=200, plain=True)
    folder = RUNS / world
    results = run_plan(plan, folder, resume=folder.exists(), n_concurrent=1)
    complete = {each.task for each in results}
    for name in PLAYED:
        complete &= {each.task for each in results if each.method == name}
    scores = {name: [each for each in results if each.method == name and each.task in complete] for name in PLAYED}
    rows = []
    for name, method in PLAYED.items():
        answers = measured(scores[name], "deployable")
        against = "" if name == "default" else _interval(measured(scores["default"], "deployable"), answers)
        rows.append([f"{world}, {len(complete)} tasks", method.label, f"{estimate(answers).mean:.3f}",
                     f"{estimate(measured(scores[name], 'mean')).mean:.3f}", against])  # fmt: skip
    _show(rows)


def _interval(new: Measured, other: Measured) -> str:
    found = paired(new, other)
    return f"{found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _show(rows: list[list[str]]) -> None:
    print(table(["critic", "setting", "answer", "particles", "default minus this"], rows, "llrrr"))


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["ladder", "play"])
    parser.add_argument("world", nargs="?", default="crafting")
    parser.add_argument("--tasks", type=int, default=100)
    asked = parser.parse_args()
    if asked.part == "ladder":
        ladder()
    else:
        play(asked.world, asked.tasks)


if __name__ == "__main__":
    main()
