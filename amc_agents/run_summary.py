"""A run in at most 20 lines, as `print(run)` shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from amc_agents.prices import cost
from amc_agents.quoting import excerpt

if TYPE_CHECKING:
    from amc_agents.types import Run

MOST_ROLES = 5
MOST_NOTES = 5
MOST_POINTS = 6
WIDTH = 160
"""Characters of a line besides what it is called."""


def summary(run: Run) -> str:
    """What a person looks for first: the pick, the particles, the resamplings, log Z, what was used, the notes."""
    rows = [
        ("best", _best(run)),
        ("particles", _particles(run)),
        ("resampled", _resamplings(run)),
        ("log Z", "not known" if math.isnan(run.log_evidence) else f"{run.log_evidence:.4g}"),
        ("settings", _settings(run)),
        *(("usage", line) for line in _usage(run)),
        *(("note", note) for note in _first(run.notes, MOST_NOTES, "notes")),
    ]
    first = f"Run of task {run.best.task.id!r}: return {run.best.return_:.4g}"
    return "\n".join([excerpt(first, WIDTH), *(f"  {name:<10} {excerpt(text, WIDTH)}" for name, text in rows)])


def _best(run: Run) -> str:
    where = "from the archive of finished ones" if run.best_index < 0 else f"particle {run.best_index}"
    value = "" if run.best_index < 0 else f", value {run.population.values[run.best_index]:.4g}"
    end = "cut at the limit of steps" if run.best.truncated else "done" if run.best.done else "not done"
    seen = "no reward was seen: deployable" if run.deployable else "rewards were seen"
    steps = _counted(len(run.best.steps), "step")
    return f'{where} by "{run.select}" ({seen}): return {run.best.return_:.4g}{value}, {steps}, {end}'


def _particles(run: Run) -> str:
    steps = [len(one.steps) for one in run.population.trajectories]
    n_particles = run.config.get("n_particles", len(steps))
    more = [f"{len(steps) - n_particles} retired"] if len(steps) > n_particles else []
    more += [f"{sum(run.population.failed)} failed"] if any(run.population.failed) else []
    cut = sum(one.truncated for one in run.population.trajectories)
    more += [f"{cut} cut at the limit of steps"] if cut else []
    returns = [one.return_ for one in run.population.trajectories]
    return (
        f"N = {n_particles}{''.join(f', {one}' for one in more)}; {min(steps)} to {max(steps)} steps; returns "
        f"{min(returns):.4g} to {max(returns):.4g}, mean {math.fsum(returns) / len(returns):.4g}"
    )


def _resamplings(run: Run) -> str:
    points = [point for point in run.history if point.ancestors is not None]
    if not points:
        return f"never, at {_counted(len(run.history), 'weighing point')}"
    told = [f"step {point.step} (ESS {point.ess:.1f})" for point in points]
    if len(told) > MOST_POINTS:
        told = [*told[: MOST_POINTS - 1], "...", told[-1]]
    return f"{_counted(len(points), 'time')}: {', '.join(told)}"


def _settings(run: Run) -> str:
    names = ("critic", "resample", "beta", "scheme", "finished", "horizon")
    return ", ".join([*(f"{name} {run.config[name]}" for name in names if name in run.config), f"seed {run.seed}"])


def _usage(run: Run) -> list[str]:
    told = []
    for role, used in run.usage.items():
        tokens = f"{used.input_tokens:,} tokens in ({used.cached_tokens:,} cached), {used.output_tokens:,} out"
        missing = f", {used.missing:,} without reported usage" if used.missing else ""
        told.append(f"{role}: {_counted(used.calls, 'call')}{missing}, {tokens}{_dollars(run, role)}")
    return _first(told, MOST_ROLES, "roles") or ["nothing was counted"]


def _dollars(run: Run, role: str) -> str:
    if role not in run.usage_by_model or not run.usage[role].tokens:
        return ""
    spent = cost({role: run.usage_by_model[role]})
    if spent.unpriced and not spent.total:
        return f", no price for {', '.join(name or 'a model without a name' for name in spent.unpriced)}"
    return f", {'at least ' if spent.is_lower_bound else ''}${spent.total:.4f}"


def _first(told: Sequence[str], most: int, what: str) -> list[str]:
    """All of them, or the first and how many there are besides."""
    if len(told) <= most:
        return list(told)
    return [*told[: most - 1], f"and {len(told) - most + 1} further {what}"]


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
