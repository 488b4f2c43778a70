"""The page of one run: its answer, the family tree of its particles, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amc_agents.operations.page.family_tree import genealogy
from amc_agents.operations.page.markup import (
    Child,
    Html,
    definitions,
    details,
    document,
    element,
    figures,
    join,
    number_text,
    section,
    shortened,
    table,
)
from amc_agents.operations.page.run_view import RunView
from amc_agents.prices import cost
from amc_agents.quoting import excerpt
from amc_agents.usage import Usage, total

_LONG = 4_000
"""Characters of a text that the answer's steps show."""


def run_page(run: RunView) -> str:
    """Build the page of a run."""
    return document(
        f"Run of {excerpt(run.best['task']['id'], 60)}",
        headline(run),
        run_sections(run),
        kicker=f"One run of AMC · task {excerpt(run.best['task']['id'], 80)}",
        summary=excerpt(run.best["task"]["instruction"], 320),
        footer=f"Made by amc-agents from a run with seed {run.seed}. This page loads nothing from a network.",
    )


def run_sections(run: RunView) -> list[Html]:
    """Build all sections of a run's page."""
    return [
        figures(_figures(run)),
        section(
            "Genealogy", genealogy(run),
            note="Each line is a particle. At a resampling, lines with a low weight end and others multiply. Choose a "
            "node to read its step; arrow keys move along a line and between lines.",
        ),
        section("The answer, step by step", answer_steps(run.best)),
        section("Particles", _particles(run), _points(run)),
        section("What it cost", *_cost(run)),
        section("Failures and notes", _notes(run)),
        section("Settings", definitions([*sorted(_settings_shown(run.config).items()), ("seed", run.seed)])),
    ]  # fmt: skip


def headline(run: RunView) -> str:
    """State the result in a sentence."""
    n = len(run.trajectories)
    among = f"{n} trajectories" if n > 1 else "one trajectory"
    if run.deployable and not run.has_rewards:
        value = run.values[run.best_index] if run.best_index >= 0 else math.nan
        by_value = "" if math.isnan(value) else f", with the value {number_text(value)}"
        return f"The answer was picked from {among} by {run.select}{by_value}."
    how = "without seeing a reward" if run.deployable else "with the rewards seen"
    return f"The answer returned {number_text(_return(run.best))}, picked from {among} {how}."


def answer_steps(trajectory: Mapping[str, Any]) -> Html:
    """Show the steps of a trajectory, each as it can be read and printed."""
    steps = [
        element(
            "li",
            *(
                element("div", element("h3", name), element("pre", shortened(step[name], _LONG)), class_=name)
                for name in ("thought", "action", "observation")
                if step.get(name)
            ),
            element("p", f"reward {number_text(step['reward'])}", class_="reward") if step.get("reward") else None,
        )
        for step in trajectory["steps"]
    ]
    return element("ol", *steps, class_="steps")


def usage_table(usages: Mapping[str, Usage], heading: str, prices: Mapping[str, str] | None = None) -> Html:
    """Show usage by role or fate, with the costs of the priced roles."""
    prices = prices or {}
    header = [heading, "calls", "tokens in", "of them cached", "tokens out", *(["cost"] if prices else [])]
    rows: list[list[Child]] = []
    for name, usage in usages.items():
        counts = (usage.calls, usage.input_tokens, usage.cached_tokens, usage.output_tokens)
        rows.append([name, *(f"{count:,}" for count in counts), *([prices.get(name, "")] if prices else [])])
    return table(header, rows, "l" + "r" * (len(header) - 1))


def _figures(run: RunView) -> list[tuple[str, Child]]:
    spent = total(run.usage)
    boxes: list[tuple[str, Child]] = []
    if run.has_rewards:
        known = [value for value in run.returns if not math.isnan(value)]
        boxes += [
            ("return of the answer", number_text(_return(run.best))),
            ("mean over particles", number_text(math.fsum(known) / len(known))),
        ]
    boxes += [
        ("particles" + (f", and {run.n_retired} retired" if run.n_retired else ""), run.n_particles),
        ("steps of the answer", len(run.best["steps"])),
        ("model calls", f"{spent.calls:,}"),
        ("tokens", f"{spent.tokens:,}"),
    ]
    price = _prices(run)
    return [*boxes, ("cost", price["all"])] if "$" in price.get("all", "") else boxes


def _particles(run: RunView) -> Html:
    rows: list[list[Child]] = []
    for i, trajectory in enumerate(run.trajectories):
        state = "failed" if run.failed[i] else "retired" if i >= run.n_particles else ""
        state = state or ("cut at the step limit" if trajectory.get("truncated") else "ended")
        chosen = [element("strong", "answer")] if i == run.best_index else []
        rows.append([
            i, join([*chosen, f"{state}"], " · " if chosen else ""), len(trajectory["steps"]),
            number_text(run.returns[i]) if run.has_rewards else "", number_text(run.values[i]),
            number_text(run.log_weights[i]),
        ])  # fmt: skip
    header = ["particle", "state", "steps", "return", "value", "log-weight"]
    caption = "The answer comes from the archive of finished trajectories." if run.best_index < 0 else None
    return table(header, rows, "rlrrrr", caption=caption)


def _points(run: RunView) -> Html | None:
    if not run.history:
        return None
    rows: list[list[Child]] = []
    for point in run.history:
        n_kept = len(set(point.ancestors)) if point.ancestors is not None else None
        kept = "not resampled" if n_kept is None else f"{n_kept} of {len(point.values)}"
        kept = kept if point.selected is None else f"{point.selected}, selected for a commit"
        known = [value for value in point.values if not math.isnan(value)]
        spread = f"{number_text(min(known))} to {number_text(max(known))}" if known else "unknown"
        rows.append([point.step, spread, number_text(point.ess), kept, len(point.retired)])
    header = ["weighed at step", "values", "effective sample size", "particles with offspring", "retired"]
    return table(header, rows, "rrrrr")


def _cost(run: RunView) -> Iterable[Html]:
    if not run.usage:
        yield element("p", "No usage was recorded.")
        return
    yield usage_table(run.usage, "role", _prices(run))
    missing = total(run.usage).missing
    if missing:
        yield element("p", f"{missing:,} calls reported no usage: the counts are lower bounds.", class_="caption")
    if len(run.usage_by_fate) > 1:
        yield element("h3", "What became of the policy's work")
        yield usage_table(run.usage_by_fate, "fate of the particles")


def _prices(run: RunView) -> dict[str, str]:
    """Format the cost of each role, and of "all"."""
    prices = {}
    for name, models in [*((role, {role: models}) for role, models in run.usage_by_model.items()),
                         ("all", run.usage_by_model)]:  # fmt: skip
        spent = cost(models)
        if spent.total or not spent.is_lower_bound:
            prices[name] = f"{'at least ' if spent.is_lower_bound else ''}${spent.total:.4f}"
        else:
            prices[name] = "unknown"
    return prices if any("$" in price for price in prices.values()) else {}


def _notes(run: RunView) -> Html:
    failed = sum(run.failed)
    notes = [f"{failed} of {len(run.failed)} particles ended with an error of a model, a tool or the world."] * (
        failed > 0
    )
    if run.stopped_by:
        notes.append(f"The run was ended by {run.stopped_by} before all particles had ended.")
    notes += run.notes
    if not notes:
        return element("p", "No particle failed, and the run has no notes.")
    return element("ul", *(element("li", note) for note in notes))


def _settings_shown(config: Mapping[str, Any]) -> dict[str, Child]:
    return {name: excerpt(str(value)) for name, value in config.items() if value is not None}


def _return(trajectory: Mapping[str, Any]) -> float:
    return math.fsum(step.get("reward") or 0.0 for step in trajectory["steps"])


def notebook_fragment(rows: Sequence[tuple[str, str]], run: RunView) -> Html:
    """Build the display of a run in a notebook: its summary, and the steps of the answer to unfold.

    Args:
        rows: (label, text) of the summary.
        run: the run.
    """
    cell = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"
    lines = [
        element("tr", element("th", name, style=cell, scope="row"), element("td", text, style=cell))
        for name, text in rows
    ]
    how = element("p", "The whole page: ", element("code", 'run.to_html("run.html")'))
    return element(
        "div",
        element("p", element("strong", headline(run))),
        element("table", element("tbody", *lines)),
        details("The answer, step by step", answer_steps(run.best)),
        how,
    )
