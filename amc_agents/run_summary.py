"""Summarise a run in at most 20 lines, as `print(run)` shows it."""

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
"""Maximum number of characters of a line after its label."""


def summary(run: Run) -> str:
    """Format the best trajectory, the particles, the resamplings, log Z, the settings, the usage and the notes."""
    rows = [
        ("best", _best(run)),
        ("particles", _particles(run)),
        ("resampled", _resamplings(run)),
        ("log Z", "unknown" if math.isnan(run.log_evidence) else f"{run.log_evidence:.4g}"),
        ("settings", _settings(run)),
        *(("usage", line) for line in _usage(run)),
        *(("note", note) for note in _first(run.notes, MOST_NOTES, "notes")),
    ]
    first = f"Run of task {run.best.task.id!r}: return {run.best.return_:.4g}"
    return "\n".join([excerpt(first, WIDTH), *(f"  {name:<10} {excerpt(text, WIDTH)}" for name, text in rows)])


def _best(run: Run) -> str:
    where = "from the archive of finished trajectories" if run.best_index < 0 else f"particle {run.best_index}"
    value = "" if run.best_index < 0 else f", value {run.population.values[run.best_index]:.4g}"
    end = "cut at the step limit" if run.best.truncated else "done" if run.best.done else "not done"
    seen = "no reward was seen: deployable" if run.deployable else "rewards were seen"
    steps = _counted(len(run.best.steps), "step")
    return f'{where} by "{run.select}" ({seen}): return {run.best.return_:.4g}{value}, {steps}, {end}'


def _particles(run: Run) -> str:
    trajectories = run.population.trajectories
    steps = [len(trajectory.steps) for trajectory in trajectories]
    n_particles = run.config.get("n_particles", len(steps))
    more = [f"{len(steps) - n_particles} retired"] if len(steps) > n_particles else []
    more += [f"{sum(run.population.failed)} failed"] if any(run.population.failed) else []
    cut = sum(trajectory.truncated for trajectory in trajectories)
    more += [f"{cut} cut at the step limit"] if cut else []
    returns = [trajectory.return_ for trajectory in trajectories]
    return (
        f"N = {n_particles}{''.join(f', {count}' for count in more)}; {min(steps)} to {max(steps)} steps; returns "
        f"{min(returns):.4g} to {max(returns):.4g}, mean {math.fsum(returns) / len(returns):.4g}"
    )


def _resamplings(run: Run) -> str:
    points = [point for point in run.history if point.ancestors is not None]
    if not points:
        return f"never, at {_counted(len(run.history), 'weighing point')}"
    shown = [f"step {point.step} (ESS {point.ess:.1f})" for point in points]
    if len(shown) > MOST_POINTS:
        shown = [*shown[: MOST_POINTS - 1], "...", shown[-1]]
    return f"{_counted(len(points), 'time')}: {', '.join(shown)}"


def _settings(run: Run) -> str:
    names = ("critic", "resample", "beta", "scheme", "finished", "horizon")
    return ", ".join([*(f"{name} {run.config[name]}" for name in names if name in run.config), f"seed {run.seed}"])


def _usage(run: Run) -> list[str]:
    lines = []
    for role, usage in run.usage.items():
        tokens = f"{usage.input_tokens:,} tokens in ({usage.cached_tokens:,} cached), {usage.output_tokens:,} out"
        missing = f", {usage.missing:,} without reported usage" if usage.missing else ""
        lines.append(f"{role}: {_counted(usage.calls, 'call')}{missing}, {tokens}{_dollars(run, role)}")
    return _first(lines, MOST_ROLES, "roles") or ["none recorded"]


def _dollars(run: Run, role: str) -> str:
    if role not in run.usage_by_model or not run.usage[role].tokens:
        return ""
    spent = cost({role: run.usage_by_model[role]})
    if spent.unpriced and not spent.total:
        return f", no price for {', '.join(name or 'an unnamed model' for name in spent.unpriced)}"
    return f", {'at least ' if spent.is_lower_bound else ''}${spent.total:.4f}"


def _first(lines: Sequence[str], most: int, plural: str) -> list[str]:
    """The first lines, with the number of omitted lines as the last."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"and {len(lines) - most + 1} further {plural}"]


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
