"""Choose a method's temperature, resampling steps and beta on training tasks.

One setting after the other: the temperature first (from two starting points), then the resampling steps, then beta,
each with the best values of the others so far. The merit of a setting is the average of its pick and its top 5, because
the pick alone is noisy on few tasks; the mean particle breaks ties. The pick is the oracle's, or the deployable pick
for methods that hide rewards.

Jointly, by successive halving: every combination starts on a few training tasks. The best third goes on to three times
as many tasks, and so on until the last combinations have played all of them (Jamieson and Talwalkar 2016,
arXiv:1502.07943, with thirds). A search of one setting after the other can miss combinations: the best temperature
rises with the quality of the critic and with the number of resampling points. `regret_of` measures what it would have
lost, on other tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amc_agents.bench.comparison import Comparison, predicts_return, ready_critic, steered_blindly
from amc_agents.bench.runner import PlannedRuns, compare
from amc_agents.bench.tuned import MAKERS, cells_of, check_names, method_of
from amc_agents.concurrency.background import run_in_background

if TYPE_CHECKING:
    from amc_agents.bench.plan import Plan

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from amc_agents.bench import methods
from amc_agents.bench.methods import Tuned
from amc_agents.bench.statistics import Estimate, Paired, paired
from amc_agents.bench.tuned import RESAMPLED, SCORED, Cell, Setting, Tuning
from amc_agents.errors import ConfigurationError

_OF_20 = ((4, 8, 12), (4, 8), (6, 12), (8,), (8, 12), (3, 6, 9, 12, 15), (9, 12, 15), (8, 11, 14, 17))
"""Schedules for an episode of 20 steps, with few or many resampling points, early or late."""


@dataclass(frozen=True)
class Grid:
    """The values to try."""

    temperatures: tuple[float, ...] = (0.4, 0.6, 0.8, 1.0, 1.2)
    steps: tuple[tuple[int, ...], ...] = _OF_20
    betas: tuple[float, ...] = (0.05, 0.1, 0.2)
    """In reward units, for weights by the predicted mean return."""
    success_reward: float | None = None
    """The return of a success, if every other return is 0; weights by eq. 5 are then tried too."""
    soft_betas: tuple[float, ...] = (0.2, 0.4)
    """Values of beta for weights by eq. 5."""
    n_particles: tuple[int, ...] = ()
    """Values of N, which only a joint search tries (`joint.choose_jointly`); empty: the comparison's."""

    @classmethod
    def of_horizon(cls, horizon: int, **settings: Any) -> Grid:
        """Return the default grid, with schedules for episodes of `horizon` steps.

        Args:
            horizon: maximum number of steps of an episode.
            **settings: other fields.
        """
        return cls(steps=tuple(dict.fromkeys(scaled(steps, horizon) for steps in _OF_20)), **settings)

    @property
    def starts(self) -> tuple[Tuned, Tuned]:
        """Two starting points with different best temperatures: more resampling favours more diverse particles."""
        many = max(self.steps, key=len)
        return Tuned(steps=self.steps[0], beta=self.betas[len(self.betas) // 2]), Tuned(steps=many, beta=self.betas[0])


def scaled(steps: Iterable[int], horizon: int) -> tuple[int, ...]:
    """Scale a schedule for 20 steps to another horizon."""
    return tuple(sorted({max(1, round(step * horizon / 20)) for step in steps}))


def tuning_grid(
    names: Sequence[str], plan: Plan, temperatures: tuple[float, ...] | None, success_reward: float | None
) -> Grid:
    """Return the grid for a plan.

    Args:
        names: the methods to tune.
        plan: what to run.
        temperatures: the temperatures to try; None: the default ones.
        success_reward: the return of a success, if every other return is 0.

    Raises:
        ConfigurationError: a method cannot be tuned, or not with the plan's critic.
    """
    check_names(names)
    scale = plan.reward_scale
    settings: dict[str, Any] = {} if temperatures is None else {"temperatures": temperatures}
    if scale != 1:
        settings |= {name: tuple(scale * beta for beta in getattr(Grid, name)) for name in ("betas", "soft_betas")}
    grid = Grid.of_horizon(plan.horizon, success_reward=success_reward, **settings)
    for name in names:
        if steered_blindly(MAKERS[name](grid.starts[0])) and not predicts_return(ready_critic(plan.critic_spec)):
            raise ConfigurationError(
                f"{name}: the critic must predict the whole return: choose another critic, or leave the method out"
            )
    return grid


STAGES = 3
Score = Callable[[Sequence[Setting]], list[Cell]]
"""Runs and scores (method, setting) pairs."""


def choose(names: Sequence[str], grid: Grid, score: Score, *, full: bool = False) -> Tuning:
    """Try settings of the named methods, and choose the best.

    Args:
        names: keys of `MAKERS`.
        grid: the values to try.
        score: runs and scores settings.
        full: try every combination of temperature, steps and beta, instead of one setting after the other.
    """
    tried: dict[str, Cell] = {}
    best: dict[str, Cell] = {}
    for stage in range(1 if full else STAGES):
        settings = [setting for name in names for setting in _to_try(name, best.get(name), stage, grid, full=full)]
        # In a small grid the two starting points can be equal.
        for cell in score(list(dict.fromkeys(settings))) if settings else []:
            tried[cell.name] = cell
        for name in names:
            best[name] = max((cell for cell in tried.values() if cell.method == name), key=lambda cell: cell.merit)
    return Tuning(list(tried.values()), best)


def _to_try(name: str, best: Cell | None, stage: int, grid: Grid, *, full: bool) -> list[Setting]:
    """Return the settings of a method that a stage tries."""
    if full and name in RESAMPLED:
        return [(name, Tuned(*values)) for values in product(grid.temperatures, grid.steps, grid.betas)]
    if best is None:
        starts = grid.starts if name in RESAMPLED else (Tuned(beta=grid.starts[0].beta),)
        return [(name, replace(start, temperature=t)) for start in starts for t in grid.temperatures]
    return [(name, tuned) for tuned in _changed(name, best.tuned, stage, grid)] if name in RESAMPLED else []


def _changed(name: str, best: Tuned, stage: int, grid: Grid) -> list[Tuned]:
    """Return the best setting so far with other steps (stage 1) or another beta (stage 2)."""
    if stage == 1:
        return [replace(best, steps=steps) for steps in grid.steps]
    means = [replace(best, beta=beta) for beta in grid.betas]
    if grid.success_reward is None or name == methods.SMC:
        return means
    return means + [replace(best, beta=beta, success_reward=grid.success_reward) for beta in grid.soft_betas]


def tune(comparison: Comparison, out: str | Path, *, grid: Grid | None = None, full: bool = False) -> Tuning:
    """Choose the settings of a comparison's methods by running it with other settings.

    Args:
        comparison: what to run, with any policy, agent and world, on training tasks. The settings of its methods are
            ignored.
        out: folder that stores every run; stored runs are not repeated.
        grid: the values to try; None: the default grid.
        full: try every combination, instead of one setting after the other.

    Raises:
        ConfigurationError: a method cannot be tuned, or `out` holds results of another comparison.
    """
    names = [method.name for method in comparison.methods]
    check_names(names)

    def score(settings: Sequence[Setting]) -> list[Cell]:
        tried = replace(comparison, methods=[method_of(name, tuned) for name, tuned in settings])
        return cells_of(settings, run_in_background(compare(tried, out, resume=True), n_workers=1))

    return choose(names, grid or Grid.of_horizon(comparison.horizon), score, full=full)


KEPT = 3
"""A third of the combinations goes on to the next round."""
FEWEST_TASKS = 6
"""Number of tasks in the first round, at least, unless there are fewer."""
ONE_TRAJECTORY = (methods.REACT,)
ScoreOn = Callable[[Sequence[Setting], int], list[Cell]]
"""Runs and scores (method, setting) pairs on this number of tasks, the first ones."""


def rounds(n_tasks: int) -> list[int]:
    """Return the number of tasks of each round, the last with all tasks."""
    sizes = [n_tasks]
    while (smaller := math.ceil(sizes[0] / KEPT)) >= FEWEST_TASKS:
        sizes.insert(0, smaller)
    return sizes


def combinations(name: str, grid: Grid) -> list[Setting]:
    """Return every combination of a method's settings."""
    sizes: Sequence[int | None] = (grid.n_particles if name not in ONE_TRAJECTORY else ()) or (None,)
    if name not in RESAMPLED:
        start = Tuned(beta=grid.starts[0].beta)
        return [(name, replace(start, temperature=t, n_particles=n)) for t, n in product(grid.temperatures, sizes)]
    weights: list[tuple[float, float | None]] = [(beta, None) for beta in grid.betas]
    if grid.success_reward is not None and name != methods.SMC:
        weights += [(beta, grid.success_reward) for beta in grid.soft_betas]
    return [
        (name, Tuned(temperature, steps, beta, success, n_particles=n))
        for temperature, steps, (beta, success), n in product(grid.temperatures, grid.steps, weights, sizes)
    ]


def choose_jointly(
    names: Sequence[str], grid: Grid, score: ScoreOn, n_tasks: int, *, max_calls: float | None = None
) -> Tuning:
    """Try all combinations of the named methods' settings, and choose the best that played all tasks.

    Args:
        names: keys of `tuning.MAKERS`.
        grid: the values to try.
        score: runs and scores settings.
        n_tasks: number of training tasks.
        max_calls: policy calls of a run, at most, in the mean over tasks; None: any number. Needed to compare
            different N, since more particles rarely score worse.

    Raises:
        ConfigurationError: `grid` has several N and `max_calls` is None, or no combination keeps to `max_calls`.
    """
    if len(grid.n_particles) > 1 and max_calls is None:
        raise ConfigurationError(
            "several N are compared at equal cost only: expected max_calls, the policy calls of a run, and got None"
        )
    left = {name: combinations(name, grid) for name in names}
    tried: dict[str, Cell] = {}
    ranked: dict[str, list[Cell]] = {}
    sizes = rounds(n_tasks)
    for size in sizes:
        cells = score([setting for name in names for setting in left[name]], size)
        tried |= {cell.name: cell for cell in cells}
        for name in names:
            ranked[name] = _ranked([cell for cell in cells if cell.method == name], name, max_calls)
            kept = ranked[name][: math.ceil(len(left[name]) / KEPT)]
            left[name] = [(name, cell.tuned) for cell in kept]
    return Tuning(list(tried.values()), {name: cells[0] for name, cells in ranked.items()})


def _ranked(cells: Sequence[Cell], name: str, max_calls: float | None) -> list[Cell]:
    """Sort the cells of a method that are cheap enough, the best first."""
    # A single trajectory cannot cost less.
    cheap = [cell for cell in cells if max_calls is None or name in ONE_TRAJECTORY or cell.calls <= max_calls]
    if not cheap:
        raise ConfigurationError(
            f"{name}: expected at most {max_calls:g} policy calls a run, and the cheapest setting makes "
            f"{min(cell.calls for cell in cells):.0f}: allow more, or try fewer particles"
        )
    return sorted(cheap, key=lambda cell: cell.merit, reverse=True)


def regret_of(chosen: Mapping[str, Cell], other: Mapping[str, Cell], score: ScoreOn, n_tasks: int) -> dict[str, Paired]:
    """Measure what the settings of another search lose, on tasks that neither search saw.

    Args:
        chosen: method -> its cell of the joint search.
        other: method -> its cell of the other search.
        score: runs and scores settings on the other tasks.
        n_tasks: number of these tasks.

    Returns:
        Method -> the difference of the picks, chosen minus other, paired over tasks; of the methods whose settings
        differ.
    """
    differing = [name for name in chosen if chosen[name].tuned != other[name].tuned]
    settings = [(name, cells[name].tuned) for name in differing for cells in (chosen, other)]
    scored = {cell.name: cell for cell in score(settings, n_tasks)} if settings else {}
    return {name: paired(scored[chosen[name].name].picks, scored[other[name].name].picks) for name in differing}


@dataclass(frozen=True)
class TuningSearch:
    """Which settings are tried, and how."""

    names: Sequence[str]
    """The methods: keys of `tuning.MAKERS`."""
    grid: Grid
    n_tasks: int
    """Number of training tasks that the search may play."""
    full: bool = False
    """Try every combination, instead of one setting after the other."""
    joint: bool = False
    """Try combinations by successive halving."""
    max_calls: float | None = None
    """Policy calls of a run, at most, in a joint search."""
    regret: int | None = None
    """Number of further tasks on which the choice of a joint search is compared with the other search's."""

    def __post_init__(self) -> None:
        """Refuse a search without tasks."""
        if self.n_tasks < 1:
            raise ConfigurationError(f"a search needs training tasks, got {self.n_tasks}")

    def carry_out(self, score: ScoreOn, check: ScoreOn) -> Tuning:
        """Choose the settings.

        Args:
            score: runs and scores settings on the first training tasks.
            check: runs and scores settings on the further tasks, to measure the regret.
        """
        tuning, other = self._choices(score, score)
        if other is None or self.regret is None:
            return tuning
        return replace(tuning, regret=regret_of(tuning.best, other.best, check, self.regret))

    def planned(self, n_seeds: int) -> list[PlannedRuns]:
        """Count the runs at most, without playing any. `max_calls`, and settings that meet again, make them fewer."""
        # Which settings both searches try depends on scores: they are counted apart.
        searches: tuple[dict[Setting, int], dict[Setting, int]] = ({}, {})
        self._choices(*(partial(_count, most) for most in searches))
        total: dict[tuple[str, int | None], int] = {}
        for most in searches:
            for (name, tuned), n_tasks in most.items():
                total[name, tuned.n_particles] = total.get((name, tuned.n_particles), 0) + n_tasks
        for key in list(total) if self.regret else ():
            total[key] += 2 * (self.regret or 0)
        return [PlannedRuns(*key, n_tasks * n_seeds) for key, n_tasks in total.items()]

    def _choices(self, score: ScoreOn, score_other: ScoreOn) -> tuple[Tuning, Tuning | None]:
        """Return the choice, and the other search's if the regret is measured."""
        if not self.joint:
            return choose(self.names, self.grid, lambda settings: score(settings, self.n_tasks), full=self.full), None
        tuning = choose_jointly(self.names, self.grid, score, self.n_tasks, max_calls=self.max_calls)
        if self.regret is None:
            return tuning, None
        grid = replace(self.grid, n_particles=())
        return tuning, choose(self.names, grid, lambda settings: score_other(settings, self.n_tasks))


def _count(most: dict[Setting, int], settings: Sequence[Setting], n_tasks: int) -> list[Cell]:
    """Count the tasks of settings in the place of scoring them, in `most`."""
    # Runs are stored, so a setting that goes on plays only the tasks that it has not played.
    most.update((setting, max(n_tasks, most.get(setting, 0))) for setting in settings)
    # Which settings go on depends on scores, their number does not.
    return [Cell(name, tuned, dict.fromkeys(SCORED, _ALIKE)) for name, tuned in settings]


_ALIKE = Estimate(0.0, None, 1, 1)
