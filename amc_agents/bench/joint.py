"""Choose a method's temperature, resampling steps, beta and N jointly, by successive halving.

Every combination starts on a few training tasks. The best third goes on to three times as many tasks, and so on until
the last combinations have played all of them (Jamieson and Talwalkar 2016, arXiv:1502.07943, with thirds). A search of
one setting after the other can miss combinations: the best temperature rises with the quality of the critic and with
the number of resampling points. `regret_of` measures what it would have lost, on other tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from amc_agents.bench import methods
from amc_agents.bench.methods import Tuned
from amc_agents.bench.statistics import Paired, paired
from amc_agents.bench.tuning import RESAMPLED, Cell, Grid, Setting, Tuning
from amc_agents.errors import ConfigurationError

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
